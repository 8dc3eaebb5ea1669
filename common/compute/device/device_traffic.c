/* device_traffic.c - copies between memories, counted. */
#include "common/compute/device/device_traffic.h"

pen_status device_copy(const device_ops *ops, stat_traffic what, stat_set *stats, void *to,
                       const void *from, size_t bytes, device_stream stream, pen_error *why)
{
    const pen_status status = ops->copy(to, from, bytes, stream, why);
    if (status != PEN_OK || stats == NULL || bytes == 0 || device_is_host(ops)) return status;
    const bool is_up = ops->owns(to);
    if (is_up != ops->owns(from)) stat_crossed(stats, what, is_up, bytes);
    return status;
}
