/* state_ranges.h - the part of the model's state that a worker without servers holds, for snapshots.
 *
 * A strategy fills a holding (strategy_ops.holding); snapshot_writer.h saves it, and restores a snapshot into it.
 */
#ifndef WORKER_TRAIN_STATE_RANGES_H
#define WORKER_TRAIN_STATE_RANGES_H

#include "common/compute/optim/optim.h"

#include <stdint.h>

typedef struct { /* a range of one tensor, frozen ones too */
    uint32_t tensor;
    uint64_t start, count;        /* elements */
    float *param;                 /* [count] the values as they are trained, in float32 */
    float *slot[OPTIM_SLOTS_MAX]; /* [count] each; as many as the rule has; frozen: none */
    uint64_t version;             /* updates applied to it */
} state_range;

typedef struct {
    uint32_t n;
    state_range *span; /* the strategy's; until the context is closed */
    int copies,
        copy; /* `copies` members hold these ranges, this one is number `copy`: each writes its share */
    int64_t applied; /* updates of the whole model */
} state_ranges;

#endif
