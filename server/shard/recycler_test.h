/* recycler_test.h - what only tests ask of a recycler. */
#ifndef SERVER_RECYCLER_TEST_H
#define SERVER_RECYCLER_TEST_H

#include "server/shard/recycler.h"

uint64_t recycler_kept(recycler *self); /* bytes that wait for use */

#endif
