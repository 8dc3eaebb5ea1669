/* own_state.h - state of the SDK itself in a snapshot: the dynamic loss scale.
 *
 * A snapshot is taken after a step.  With servers this state is sent before the verdict is known, so
 * it is the state before the step.  After a restore the number of updates tells the verdict, which is
 * then applied.  (A step in which no rank had data counts as an overflow.)
 */
#ifndef WORKER_OWN_STATE_H
#define WORKER_OWN_STATE_H

#include "penstock.h"
#include "worker/train/schedule/loss_scale.h"

#include <stdint.h>

enum { OWN_STATE_UNKNOWN = -1, OWN_STATE_SETTLED = -2 };

typedef struct {
    int64_t applied; /* updates before the step; -1: empty */
    /* pen_outcome of the step, which is not in `scale` yet; UNKNOWN; SETTLED: between two steps */
    int32_t verdict;
    int32_t zero;
    uint8_t scale[LOSS_SCALE_BYTES];
} own_state;

/* Adds ctx->own to the states, if the loss scale is dynamic. */
pen_status own_state_init(pen_ctx *ctx, pen_error *why);

/* Call it before the states are packed. */
void own_state_note(pen_ctx *ctx, int32_t verdict);

/* Call it after the states of ctx->restored were read. */
pen_status own_state_adopt(pen_ctx *ctx, pen_error *why);

#endif
