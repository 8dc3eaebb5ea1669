/* sharded_cut.h - which worker owns which part of each tensor, where the state is sharded over the workers.
 *
 * DESIGN.  Every tensor is cut on the borders of the blocks that sums of squares are made of (PLAN_BLOCK), into one range
 * per member, in the order of the members; a range may be empty.  So a large tensor has a part on everybody, whatever
 * units and buckets there are, every call that sums or gathers it keeps all links busy, and values are gathered in place.
 * What a member got too much or too little of is made good with the next tensor: over the whole model members differ
 * by about one block.  Trained and frozen tensors are balanced each for themselves.
 *   ZeRO cuts the flat model (stages 1 and 2), or every parameter and pads it (stage 3): training.md 2.8.
 * A pure function, computed alike by all.
 */
#ifndef WORKER_TRAIN_SHARDED_CUT_H
#define WORKER_TRAIN_SHARDED_CUT_H

#include "penstock.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct { /* elements [start, start + count) of a tensor */
    uint64_t start, count;
} sharded_range;

/* range[n_tensors * size]: of tensor t and member m at t * size + m.  Every tensor has at least one element.
 * NO_MEMORY. */
pen_status sharded_cut(uint32_t n_tensors, const uint64_t *elements, const bool *trained, int size,
                       sharded_range *range, pen_error *why);

#endif
