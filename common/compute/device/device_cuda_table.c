/* device_cuda_table.c - the operations of the CUDA device, or of a build without it. */
#include "common/compute/device/device_cuda.h"

#include "common/base/why.h"
#include <stdio.h>

#ifdef PENSTOCK_CUDA

const device_ops device_cuda = {
    .name         = "cuda",
    .doc          = "Memory of an NVIDIA GPU.",
    .available    = cuda_available,
    .owns         = cuda_owns,
    .enter        = cuda_enter,
    .leave        = cuda_leave,
    .alloc        = cuda_alloc,
    .free         = cuda_free,
    .share        = cuda_share,
    .map          = cuda_map,
    .unmap        = cuda_unmap,
    .host_alloc   = cuda_host_alloc,
    .host_free    = cuda_host_free,
    .pin          = cuda_pin,
    .unpin        = cuda_unpin,
    .stream_new   = cuda_stream_new,
    .stream_free  = cuda_stream_free,
    .may_enqueue  = cuda_may_enqueue,
    .copy         = cuda_copy,
    .reduce       = cuda_reduce,
    .accumulate   = cuda_accumulate,
    .narrow       = cuda_narrow,
    .zero         = cuda_zero,
    .weigh        = cuda_weigh,
    .norm         = cuda_norm,
    .decide       = cuda_decide,
    .update       = cuda_update,
    .roots        = cuda_roots,
    .widen        = cuda_widen,
    .event_new    = cuda_event_new,
    .event_free   = cuda_event_free,
    .event_record = cuda_event_record,
    .event_done   = cuda_event_done,
    .stream_wait  = cuda_stream_wait,
    .event_share  = cuda_event_share,
    .event_map    = cuda_event_map,
    .flag_set     = cuda_flag_set,
    .flag_wait    = cuda_flag_wait,
    .uuid         = cuda_uuid,
    .count        = cuda_count,
    .current      = cuda_current,
    .device       = cuda_device,
};

#else

static bool cuda_available(char *note, size_t note_size)
{
    snprintf(note, note_size,
             "built off (PENSTOCK_CUDA=OFF, or no CUDA toolkit at configure time)");
    return false;
}

static bool cuda_owns(const void *pointer)
{
    (void)pointer;
    return false;
}

static pen_status off(pen_error *why)
{
    return why_set(why, PEN_UNSUPPORTED,
                   "this library was built without CUDA; configure with PENSTOCK_CUDA=ON");
}

static void *cuda_alloc(size_t bytes, int device, pen_error *why)
{
    (void)bytes, (void)device;
    off(why);
    return NULL;
}

static void *cuda_host_alloc(size_t bytes, pen_error *why)
{
    return cuda_alloc(bytes, 0, why);
}

static pen_status cuda_enter(int device, pen_error *why)
{
    (void)device;
    return off(why);
}

static pen_status cuda_pin(void *data, size_t bytes, pen_error *why)
{
    (void)data, (void)bytes;
    return off(why);
}

static pen_status cuda_stream_new(int device, device_stream *stream, pen_error *why)
{
    (void)device, (void)stream;
    return off(why);
}

static int cuda_count(void)
{
    return 0;
}

static int cuda_current(void)
{
    return -1;
}

static int cuda_device(const void *pointer)
{
    (void)pointer;
    return -1;
}

/* Operations on this device's memory or events are unreachable: it owns no memory. */
const device_ops device_cuda = {
    .name       = "cuda",
    .doc        = "Memory of an NVIDIA GPU.",
    .available  = cuda_available,
    .owns       = cuda_owns,
    .enter      = cuda_enter,
    .alloc      = cuda_alloc,
    .host_alloc = cuda_host_alloc,
    .pin        = cuda_pin,
    .stream_new = cuda_stream_new,
    .count      = cuda_count,
    .current    = cuda_current,
    .device     = cuda_device,
};

#endif
