/* snapshot_memory_test.h - accessors of snapshot_memory for tests. */
#ifndef SERVER_SNAPSHOT_MEMORY_TEST_H
#define SERVER_SNAPSHOT_MEMORY_TEST_H

#include "server/process/snapshot_memory.h"

uint64_t snapshot_memory_copied(snapshot_memory *self); /* bytes in copies now */

#endif
