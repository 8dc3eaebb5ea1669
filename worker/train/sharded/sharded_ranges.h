/* sharded_ranges.h - which worker owns which part of each tensor, if the state is sharded over the workers.
 *
 * DESIGN.  Every tensor is divided at block borders of its sums of squares (PLAN_BLOCK), into one range per member, in
 * member order; a range may be empty.  So a large tensor has a part on every member, for any units and buckets.  Every
 * call that sums or gathers it keeps all links busy, and values are gathered in place.  The next tensor corrects a
 * member's surplus or deficit: over the whole model members differ by about one block.  Trained and frozen tensors are
 * balanced separately.
 *   ZeRO divides the flat model (stages 1 and 2), or divides and pads every parameter (stage 3).
 * A pure function, with the same result on all ranks.
 */
#ifndef WORKER_TRAIN_SHARDED_RANGES_H
#define WORKER_TRAIN_SHARDED_RANGES_H

#include "penstock.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct { /* elements [start, start + count) of a tensor */
    uint64_t start, count;
} sharded_range;

/* Fills range[n_tensors * size]: tensor t and member m at t * size + m.  Every tensor has at least one element.
 * NO_MEMORY. */
pen_status sharded_ranges(uint32_t n_tensors, const uint64_t *elements, const bool *trained,
                          int size, sharded_range *range, pen_error *why);

#endif
