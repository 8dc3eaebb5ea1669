/* batch_plan.h - train_batch = micro_batch x accum x workers: what is given, and what follows.
 *
 *   given two   the third follows, and must be whole
 *   train only  accum is 1 and each worker's share is a micro-batch
 *   micro only  accum is 1
 *   accum only  batches stay unknown: the program has its own
 * In samples or in tokens, as the program counts.
 * Source   DeepSpeed, deepspeed/runtime/config.py, _set_batch_related_parameters.
 */
#ifndef WORKER_TRAIN_BATCH_PLAN_H
#define WORKER_TRAIN_BATCH_PLAN_H

#include "penstock.h"

typedef struct {
    uint64_t train, micro, accum; /* 0: not given */
} batch_plan;

enum { BATCH_ACCUM_MAX = 65536 };

/* Fills in what was 0; accum is 1 or more then.  BAD_SETTING, and *b as it was, for a contradiction:
 * the sentence names the nearest numbers that fit. */
pen_status batch_plan_resolve(batch_plan *b, uint64_t world, pen_error *why);

#endif
