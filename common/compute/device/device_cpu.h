/* device_cpu.h - the arithmetic of a step on the host, for the table in device_cpu.c only. */
#ifndef COMMON_DEVICE_CPU_H
#define COMMON_DEVICE_CPU_H

#include "common/compute/device/device.h"

pen_status cpu_weigh(const device_weigh *w, device_stream stream, pen_error *why);
pen_status cpu_norm(const device_norm_span *spans, size_t n, uint32_t *bad, device_stream stream,
                    pen_error *why);
pen_status cpu_decide(const device_decide *d, device_stream stream, pen_error *why);
pen_status cpu_update(const device_update *u, device_stream stream, pen_error *why);
pen_status cpu_roots(const double *param_sums, const double *update_sums, size_t n_blocks,
                     double *norms, device_stream stream, pen_error *why);
pen_status cpu_widen(float *to, const void *from, pen_dtype dtype, size_t n, device_stream stream,
                     pen_error *why);

#endif
