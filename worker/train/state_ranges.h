/* state_ranges.h - the part of the model's state that a worker holds without servers, for snapshots.
 *
 * A strategy fills it in (strategy_ops.state_ranges); snapshot_writer.h saves it, and restores a snapshot into it.
 */
#ifndef WORKER_TRAIN_STATE_RANGES_H
#define WORKER_TRAIN_STATE_RANGES_H

#include "common/compute/optim/optim.h"

#include <stdint.h>

typedef struct { /* a range of one tensor, frozen ones too */
    uint32_t tensor;
    uint64_t start, count;        /* elements */
    float *param;                 /* [count] the trained values, in float32 */
    float *slot[OPTIM_SLOTS_MAX]; /* [count] each; as many as the rule has; frozen: none */
    uint64_t version;             /* updates applied to it */
} state_range;

typedef struct {
    uint32_t n;
    state_range *span; /* owned by the strategy until the context is closed */
    int copies, copy;  /* members with these ranges, and this one's number: each writes a share */
    int64_t applied;   /* updates of the whole model */
} state_ranges;

#endif
