/* holding.h - the part of the model's state that a worker without servers holds, for snapshots.
 *
 * A strategy fills a holding (strategy_ops.holding); keeper.h saves it, and restores a snapshot into it.
 */
#ifndef WORKER_TRAIN_HOLDING_H
#define WORKER_TRAIN_HOLDING_H

#include "common/compute/optim/optim.h"

#include <stdint.h>

typedef struct { /* a range of one tensor, frozen ones too */
    uint32_t tensor;
    uint64_t start, count;        /* elements */
    float *param;                 /* [count] the values as they are trained, in float32 */
    float *slot[OPTIM_SLOTS_MAX]; /* [count] each; as many as the rule has; frozen: none */
    uint64_t version;             /* updates applied to it */
} holding_span;

typedef struct {
    uint32_t n;
    holding_span *span; /* the strategy's; until the context is closed */
    int copies,
        copy; /* `copies` members hold these ranges, this one is number `copy`: each writes its share */
    int64_t applied; /* updates of the whole model */
} holding;

#endif
