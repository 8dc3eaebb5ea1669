/* store_test.h - store functions for tests only. */
#ifndef COMMON_STORE_STORE_TEST_H
#define COMMON_STORE_STORE_TEST_H

#include "common/snapshot/store.h"

/* Sets the memory in which a part is gathered, instead of STORE_GROUP_BYTES. */
void store_group(store *s, uint64_t bytes);

#endif
