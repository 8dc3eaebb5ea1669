/* step_decided.h - what was decided about a step: known at its end, or, on a device, while later steps are in progress.
 *
 * DESIGN.  A lazy step on a device ends for the host before the device has decided it.  It is pending: the program sees
 * PEN_PENDING, and rates follow as if it were applied.  Its strategy settles it later (strategy_ops.settle), in the order
 * of the steps: counters, the log, the loss scale and pen_step_decided() then get what a step that is not lazy gives
 * them at its end.
 * Threads: the program's, under the step's lock.
 */
#ifndef WORKER_STEP_DECIDED_H
#define WORKER_STEP_DECIDED_H

#include "worker/context.h"

/* For strategies: step `index` was decided, with `pending` later steps undecided; outcome->scalars is not read.  That of
 * the step in progress goes to ctx->step.outcome.  INVALID_ARGUMENT as pen_step_end(). */
pen_status step_decided(pen_ctx *ctx, int64_t index, const ps_client_outcome *outcome,
                        uint32_t pending, pen_error *why);
/* For strategies: the step in progress ends undecided. */
void step_is_pending(pen_ctx *ctx);

/* The step in progress has ended with ctx->step.outcome: fills *step and counts it. */
pen_status step_conclude(pen_ctx *ctx, pen_step *step, const pen_result *result, pen_error *why);

/* A step begins: at most as many steps stay undecided as it does not depend on. */
pen_status step_settle_before(pen_ctx *ctx, pen_error *why);
/* The context ends: no step stays undecided. */
pen_status step_settle_all(pen_ctx *ctx, pen_error *why);
/* For pen_step_decided(): waits until step->index is decided, and fills *step.  NOT_FOUND: too old, or not ended. */
pen_status step_wait_decided(pen_ctx *ctx, pen_step *step, pen_error *why);

#endif
