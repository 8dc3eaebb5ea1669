/* precision.h - what the settings of precision, loss scale and batches come to in one context. */
#ifndef WORKER_PRECISION_H
#define WORKER_PRECISION_H

#include "worker/context.h"

/* Whether precision and loss scale of these settings go together. */
pen_status precision_check(const worker_settings *s, pen_error *why);

/* They do.  Mode and world are known, nothing is registered.  BAD_SETTING names what contradicts what. */
pen_status precision_set_up(pen_ctx *ctx, pen_error *why);

/* Whether a group may be trained by this rule: a loss scale that changes needs steps that can be
 * skipped as a whole. */
pen_status precision_check_group(const pen_ctx *ctx, const char *group, ps_client_rule rule,
                                 pen_error *why);

/* A step has ended with ctx->step.outcome: the next one's loss scale.  INVALID_ARGUMENT, on all ranks
 * alike, when it overflowed at the smallest one; the step counts all the same. */
pen_status precision_step_ended(pen_ctx *ctx, pen_error *why);

#endif
