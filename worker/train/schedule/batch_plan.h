/* batch_plan.h - train_batch = micro_batch x accum x workers: computes the missing numbers.
 *
 *   two given   the third follows, and must be a whole number
 *   train only  accum is 1, and each worker's share is one micro-batch
 *   micro only  accum is 1
 *   accum only  batches stay unknown: the program has its own
 * The unit is samples or tokens, as in the program.
 * Source   DeepSpeed, deepspeed/runtime/config.py, _set_batch_related_parameters.
 */
#ifndef WORKER_TRAIN_BATCH_PLAN_H
#define WORKER_TRAIN_BATCH_PLAN_H

#include "penstock.h"

typedef struct {
    uint64_t train, micro, accum; /* 0: not given */
} batch_plan;

enum { BATCH_ACCUM_MAX = 65536 };

/* Replaces zeros; accum is at least 1 afterwards.  BAD_SETTING: the numbers contradict each other, and
 * *b is unchanged; the sentence names the nearest numbers that fit. */
pen_status batch_plan_resolve(batch_plan *b, uint64_t world, pen_error *why);

#endif
