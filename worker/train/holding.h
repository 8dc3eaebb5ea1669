/* holding.h - what a worker that trains without servers holds of the model's state: what its snapshots are made of.
 *
 * A strategy fills a holding when it is asked (strategy_ops.holding); keeper.h writes what is in it, and writes
 * into it what a snapshot has.
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
        copy; /* so many members hold these very ranges, and this is the copy-th: each writes its share */
    int64_t applied; /* updates of the whole model */
} holding;

#endif
