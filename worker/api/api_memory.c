/* api_memory.c - pen_alloc and pen_free: host memory in segments that other workers can map, or device memory. */
#include "worker/api/api.h"
#include "worker/tensor/device_copy/device_copies.h"

#include "common/compute/device/device.h"
#include "common/system/fp_env.h"
#include "common/system/segment.h"

#include <stdlib.h>

/* The device of the context, else that of the calling thread (cudaSetDevice()), else the first. */
static int device_for(const pen_ctx *ctx, const device_ops *device)
{
    if (ctx != NULL && device_copies_device(ctx) >= 0) return device_copies_device(ctx);
    return device->current() >= 0 ? device->current() : 0;
}

static void *alloc_on_device(const pen_ctx *ctx, size_t bytes)
{
    char note[256];
    pen_error why;
    const device_ops *device = device_beside_host(note, sizeof note);
    if (device == NULL) {
        last_error_report(PEN_UNSUPPORTED, "pen_alloc: no CUDA device: %s", note);
        return NULL;
    }
    void *data = device->alloc(bytes, device_for(ctx, device), &why);
    if (data == NULL) last_error_set(&why);
    return data;
}

void *pen_alloc(pen_ctx *ctx, size_t bytes, pen_space where)
{
    FP_ENV_OURS();
    pen_error why;
    if (ctx != NULL && context_check(ctx, "pen_alloc") != PEN_OK) return NULL;
    if (where == PEN_CUDA) return alloc_on_device(ctx, bytes);
    if (where != PEN_HOST && where != PEN_HOST_PINNED) {
        last_error_report(PEN_INVALID_ARGUMENT, "pen_alloc: invalid memory space %d", (int)where);
        return NULL;
    }
    void *data = segment_alloc(bytes, &why);
    if (data == NULL)
        last_error_set(&why);
    else
        segment_populate(data, bytes);
    return data;
}

pen_status pen_keep(const void *data)
{
    FP_ENV_OURS();
    if (segment_keep(data)) return PEN_OK;
    return last_error_report(PEN_INVALID_ARGUMENT,
                             "pen_keep: %p is not in host memory of pen_alloc() or pen_view()",
                             data);
}

void pen_free(void *data)
{
    FP_ENV_OURS();
    if (data == NULL || segment_free(data)) return;
    const device_ops *device = device_of(data);
    if (device_is_host(device))
        free(data); /* memory that the SDK handed out */
    else
        device->free(data);
}
