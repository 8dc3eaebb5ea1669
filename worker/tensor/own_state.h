/* own_state.h - what the SDK itself keeps in a snapshot beside tensors: the loss scale that changes.
 *
 * A snapshot is of the moment after a step.  With servers its bytes leave before the step's verdict is known; they are
 * those of before, and who goes on from them makes up for the verdict: the number of updates says which it was.
 * (A step in which no rank had data is then taken for one that overflowed.)
 */
#ifndef WORKER_OWN_STATE_H
#define WORKER_OWN_STATE_H

#include "penstock.h"
#include "worker/train/loss_scale.h"

#include <stdint.h>

enum { OWN_STATE_UNKNOWN = -1, OWN_STATE_SETTLED = -2 };

typedef struct {
    int64_t applied; /* updates before the step; -1: nothing is in here */
    int32_t
        verdict; /* pen_outcome of the step, which is not in `scale` yet; UNKNOWN; SETTLED: between two steps */
    int32_t zero;
    uint8_t scale[LOSS_SCALE_BYTES];
} own_state;

/* Puts ctx->own among the states, when there is anything to keep. */
pen_status own_state_init(pen_ctx *ctx, pen_error *why);

/* Before the states are packed. */
void own_state_note(pen_ctx *ctx, int32_t verdict);

/* After the states of ctx->restored were read. */
pen_status own_state_adopt(pen_ctx *ctx, pen_error *why);

#endif
