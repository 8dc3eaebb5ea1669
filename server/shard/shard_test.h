/* shard_test.h - shard functions for tests only. */
#ifndef SERVER_SHARD_TEST_H
#define SERVER_SHARD_TEST_H

#include "server/shard/shard.h"

/* As shard_install() with this shard as the only copy, and nothing to resolve. */
void shard_epoch(shard *self, uint64_t term, uint64_t epoch, const wire_member *worker,
                 uint32_t n_workers);

/* Number of log entries applied here, and a digest of their effects; comparable between filled copies with equal
 * indexes. */
uint64_t shard_index(const shard *self, uint64_t *digest);
/* Counters of a chunk: [world_size], BORROWED until the next message; NULL: not here. */
const uint64_t *shard_clocks(const shard *self, uint32_t chunk, uint64_t *round);
/* NULL: not here.  BORROWED until the next message, or the next load of an offloaded array. */
const float *shard_values(const shard *self, uint32_t chunk, uint64_t *version);
struct row_store;
const struct row_store *shard_rows(const shard *self,
                                   uint32_t chunk); /* NULL: no part of a table here */
const float *shard_slot(const shard *self, uint32_t chunk, int slot);

#endif
