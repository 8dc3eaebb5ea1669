/* recycler_test.h - accessors of a recycler for tests. */
#ifndef SERVER_RECYCLER_TEST_H
#define SERVER_RECYCLER_TEST_H

#include "server/shard/recycler.h"

uint64_t recycler_kept(recycler *self); /* bytes in the free list */

#endif
