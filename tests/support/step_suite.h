/* step_suite.h - the arithmetic of a step on any device (device_step.h) against the host's functions: bit for bit, but
 * NaNs may differ in their payload.  For unit tests on the host's device and for programs on a GPU. */
#ifndef TESTS_SUPPORT_STEP_SUITE_H
#define TESTS_SUPPORT_STEP_SUITE_H

#include "common/compute/device/device.h"

typedef struct {
    const device_ops *ops;
    /* Host to device or back, after all earlier work; false: it failed. */
    bool (*copy)(void *to, const void *from, size_t bytes);
} step_device;

/* Random gradients of every type, weight and alignment: weighed as by simd_weigh(). */
bool step_suite_weigh(const step_device *d);
/* Sums of squares as by simd()->norm; 16-bit floats as widened by simd()->decode. */
bool step_suite_norm(const step_device *d);
/* Every outcome, and the count of updates. */
bool step_suite_decide(const step_device *d);
/* Every rule of optim_all with every pair of its settings changed: several steps of many tensors, measured, decided and
 * updated on the device alone, with skipped and abandoned steps among them, as by optim_apply(). */
bool step_suite_update(const step_device *d);
/* The golden vectors of update rules. */
bool step_suite_golden(const step_device *d);

#endif
