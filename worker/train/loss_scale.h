/* loss_scale.h - what the loss is multiplied by, so that gradients of 16 bits do not vanish.
 *
 * DESIGN.  A pure state machine, told the outcome of every step, which is the same on all ranks; so
 * the scale is, too.  The rule is DeepSpeed's: an overflow halves the scale, but only when the
 * hysteresis is used up; `window` steps without one double it.  One thing differs: here the state
 * changes when a step has ended, and gradients are divided by the scale they were made with.  (There
 * it changes before, so that in a step that completes a window they are divided by twice as much.)
 * Source   DeepSpeed, deepspeed/runtime/fp16/loss_scaler.py, DynamicLossScaler; the fault:
 *          github.com/microsoft/DeepSpeed/issues/2686.
 */
#ifndef WORKER_TRAIN_LOSS_SCALE_H
#define WORKER_TRAIN_LOSS_SCALE_H

#include "penstock.h"

#include <stdbool.h>
#include <stddef.h>

enum { LOSS_SCALE_BYTES = 32 };

typedef struct {
    double scale;
    bool is_dynamic; /* else it never changes */
    bool is_consecutive;
    double min;
    uint64_t window;
    uint32_t hysteresis, hysteresis_left;
    int64_t iteration, last_overflow; /* of steps that had data; -1: none yet */
} loss_scale;

void loss_scale_static(loss_scale *l, double scale);
void loss_scale_dynamic(loss_scale *l, double first, double min, uint64_t window,
                        uint32_t hysteresis, bool is_consecutive);

/* One step with data has ended.  False: it overflowed, and the scale is at its minimum: it stays, and
 * the state counts the step. */
bool loss_scale_update(loss_scale *l, bool has_overflown);

/* The part that changes: scale, hysteresis, iterations; little-endian.  What was saved is not
 * trusted: CORRUPT, and *l as it was, when it cannot be the state of such a machine. */
void loss_scale_save(const loss_scale *l, void *bytes);
pen_status loss_scale_load(loss_scale *l, const void *bytes, size_t size, pen_error *why);

#endif
