/* device_check.h - what every device checks in the arguments of device_step.h. */
#ifndef COMMON_DEVICE_CHECK_H
#define COMMON_DEVICE_CHECK_H

#include "common/compute/device/device.h"

/* INVALID_ARGUMENT: a type, formula, pass or number of rows that does not exist. */
pen_status device_check_weigh(const device_weigh *w, pen_error *why);
pen_status device_check_update(const device_update *u, pen_error *why);
pen_status device_check_float(pen_dtype dtype, pen_error *why);

#endif
