/* precision.h - applies the settings of precision, loss scale and batches to a context. */
#ifndef WORKER_PRECISION_H
#define WORKER_PRECISION_H

#include "worker/context.h"

/* Checks that precision and loss scale fit together. */
pen_status precision_check(const worker_settings *s, pen_error *why);

/* After precision_check(); mode and world are known, nothing is registered.  BAD_SETTING names the contradiction. */
pen_status precision_set_up(pen_ctx *ctx, pen_error *why);

/* Checks that a group may be trained by this rule: a dynamic loss scale needs steps that can be
 * skipped as a whole. */
pen_status precision_check_group(const pen_ctx *ctx, const char *group, ps_client_rule rule,
                                 pen_error *why);

/* A step was decided: sets the next one's loss scale.  INVALID_ARGUMENT, on all ranks alike: it overflowed at the minimum
 * scale; the step still counts. */
pen_status precision_step_ended(pen_ctx *ctx, int64_t step, const ps_client_outcome *o,
                                pen_error *why);

#endif
