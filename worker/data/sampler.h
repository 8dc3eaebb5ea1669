/* sampler.h - a rank's samples: torch's DistributedSampler bit for bit, with positions and exact epochs.
 *
 * DESIGN.  An epoch is one list: 0..n-1, perhaps shuffled by (seed + epoch).  One number, `consumed`,
 * is the position of all ranks together; rank r of w takes entries consumed + r, consumed + r + w, ...
 * The position therefore does not depend on the number of ranks: any world continues with the first
 * sample that no rank has had.
 * The list is padded with its own beginning, or shortened (drop_last), so that all ranks get the same
 * number of the remaining samples; at consumed 0 that is exactly torch's rule.  `is_exact` does
 * neither: every sample is used once, and ranks differ by at most one.
 * consumed grows by (wanted x world), whatever a rank really got.  It is therefore equal on all ranks
 * that make the same calls, even after the last, short batch.
 * Pure except for the memory of the order.  Thread: one at a time.
 * Source   PyTorch, torch/utils/data/distributed.py.
 */
#ifndef WORKER_DATA_SAMPLER_H
#define WORKER_DATA_SAMPLER_H

#include "worker/data/permutation.h"

#include <stdbool.h>

#define SAMPLER_SAMPLES_MAX ((int64_t)1 << 48)

typedef struct {
    int64_t n; /* of its sampler */
    int64_t epoch, consumed;
} sampler_position;

typedef struct {
    int64_t n; /* 1 to SAMPLER_SAMPLES_MAX */
    uint64_t seed;
    bool shuffles, drops_last, is_exact;
    sampler_position at; /* callers may overwrite it between calls */
    permutation order;   /* of epoch drawn_epoch; empty unless shuffles */
    int64_t drawn_epoch;
} sampler;

void sampler_init(sampler *s, int64_t n, uint64_t seed);
void sampler_fini(sampler *s);

/* Up to `want` indices of one rank.  END, and *got 0, after the last of the epoch.  The first call of
 * an epoch draws its order: O(n) then, O(want) later.
 * Errors  NO_MEMORY   for the order.
 *         MISMATCH    the position belongs to a sampler of another n. */
pen_status sampler_next(sampler *s, int world, int rank, int64_t *index, size_t want, size_t *got,
                        pen_error *why);

#endif
