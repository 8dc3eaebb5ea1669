/* step_open.h - rates, loss scale and inputs of the step in progress. */
#ifndef WORKER_STEP_OPEN_H
#define WORKER_STEP_OPEN_H

#include "worker/context.h"

/* Fills all of *step for pen_step_begin(). */
void step_describe(pen_ctx *ctx, pen_step *step);

/* At the first gradient of a step: fixes weight and rates, which are sent with it, and opens the step in the strategy. */
pen_status step_open(pen_ctx *ctx, pen_error *why);

/* The rate of a group in this step, if the steps before it made `applied` updates. */
double step_rate(const pen_ctx *ctx, uint32_t group, int64_t applied);

#endif
