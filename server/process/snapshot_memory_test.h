/* snapshot_memory_test.h - what only tests ask of the memory of snapshots. */
#ifndef SERVER_SNAPSHOT_MEMORY_TEST_H
#define SERVER_SNAPSHOT_MEMORY_TEST_H

#include "server/process/snapshot_memory.h"

uint64_t snapshot_memory_copied(snapshot_memory *self); /* bytes in copies now */

#endif
