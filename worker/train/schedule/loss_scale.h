/* loss_scale.h - the factor of the loss that keeps 16-bit gradients from underflowing.
 *
 * DESIGN.  A pure state machine.  Its input is the outcome of every step.  That is equal on all ranks,
 * so the scale is, too.  The rule is DeepSpeed's: an overflow halves the scale once the hysteresis is
 * used up; `window` steps without an overflow double it.  One difference: here the state changes when
 * a step has ended, and gradients are divided by the scale they were made with.  (DeepSpeed changes it
 * earlier: in a step that completes a window it divides by twice as much.)
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
    bool is_dynamic; /* false: it never changes */
    bool is_consecutive;
    double min;
    uint64_t window;
    uint32_t hysteresis, hysteresis_left;
    int64_t iteration, last_overflow; /* of steps that had data; -1: none yet */
} loss_scale;

void loss_scale_static(loss_scale *l, double scale);
void loss_scale_dynamic(loss_scale *l, double first, double min, uint64_t window,
                        uint32_t hysteresis, bool is_consecutive);

/* A step with data has ended.  False: it overflowed at the minimum scale, which stays; the step is
 * counted. */
bool loss_scale_update(loss_scale *l, bool has_overflown);

/* Saves what changes: scale, hysteresis, iterations; little-endian.  Loaded bytes are not trusted:
 * CORRUPT, and *l unchanged, if the state is impossible. */
void loss_scale_save(const loss_scale *l, void *bytes);
pen_status loss_scale_load(loss_scale *l, const void *bytes, size_t size, pen_error *why);

#endif
