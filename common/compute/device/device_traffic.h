/* device_traffic.h - copies between memories, counted where they cross from a device to the host or back.
 *
 * The worker copies by device_copy() only, so that its counters (stat.h, device.*.bytes) miss nothing.
 */
#ifndef COMMON_DEVICE_TRAFFIC_H
#define COMMON_DEVICE_TRAFFIC_H

#include "common/base/stat.h"
#include "common/compute/device/device.h"

/* ops->copy(), counted in `stats` when it is enqueued.  stats NULL: not counted. */
pen_status device_copy(const device_ops *ops, stat_traffic what, stat_set *stats, void *to,
                       const void *from, size_t bytes, device_stream stream, pen_error *why);

#endif
