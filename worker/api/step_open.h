/* step_open.h - rates, loss scale and inputs of the step in progress. */
#ifndef WORKER_STEP_OPEN_H
#define WORKER_STEP_OPEN_H

#include "worker/context.h"

/* Writes *step whole, as pen_step_begin() gives it. */
void step_describe(pen_ctx *ctx, pen_step *step);

/* The first gradient of a step fixes its weight and rates: they travel with it.  Tells the strategy. */
pen_status step_open(pen_ctx *ctx, pen_error *why);

#endif
