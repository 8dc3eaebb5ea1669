/* store_test.h - what only tests ask of a store. */
#ifndef COMMON_STORE_STORE_TEST_H
#define COMMON_STORE_STORE_TEST_H

#include "common/snapshot/store.h"

/* Memory in which a part is gathered before it goes to the kernel, instead of STORE_GROUP_BYTES. */
void store_group(store *s, uint64_t bytes);

#endif
