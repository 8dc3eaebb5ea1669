/* space.c - memory of a space, and copies between it and the host. */
#include "worker/tensor/device_copy/space.h"

#include "common/base/why.h"
#include "common/system/segment.h"
#include "worker/context.h"
#include "worker/tensor/device_copy/device_copies.h"

#include <stdlib.h>
#include <string.h>

/* ---- which ------------------------------------------------------------------------------------- */
memory_space space_host(void)
{
    return (memory_space){.ops = device_host(), .device = -1};
}

pen_status space_open(pen_ctx *ctx, bool on_device, memory_space *p, pen_error *why)
{
    *p = space_host();
    if (!on_device) return PEN_OK;
    const pinned_pair_set *set = device_copies_set(ctx);
    const memory_space there   = {.ops         = set->ops,
                                  .device      = set->device,
                                  .set         = set,
                                  .deadline_ms = &ctx->settings.deadline_ms};
    if (space_beside(&there, p, why) != PEN_OK) return why->status;
    ctx->memory.work = *p;
    device_copies_work_on(ctx, p->stream);
    return PEN_OK;
}

pen_status space_beside(const memory_space *of, memory_space *p, pen_error *why)
{
    device_stream stream = NULL;
    *p                   = space_host();
    if (of->set != NULL && of->ops->stream_new(of->device, &stream, why) != PEN_OK)
        return why->status;
    *p        = *of;
    p->stream = stream;
    return PEN_OK;
}

void space_close(memory_space *p)
{
    if (p->set != NULL) p->ops->stream_free(p->stream);
    *p = (memory_space){.device = -1};
}

/* ---- memory ------------------------------------------------------------------------------------ */
void *space_alloc(const memory_space *p, size_t bytes, bool shared, pen_error *why)
{
    const size_t least = bytes > 0 ? bytes : 1;
    if (space_is_device(p)) return p->ops->alloc(least, p->device, why);
    if (shared) return segment_alloc(least, why);
    void *data = calloc(1, least);
    if (data == NULL) why_set(why, PEN_NO_MEMORY, "no memory for %zu bytes", bytes);
    return data;
}

void space_free(const memory_space *p, void *data, bool shared)
{
    if (data == NULL) return;
    if (space_is_device(p))
        p->ops->free(data);
    else if (shared)
        segment_free(data);
    else
        free(data);
}

void *space_alloc_host(const memory_space *p, size_t bytes, pen_error *why)
{
    if (!space_is_device(p)) return space_alloc(p, bytes, false, why);
    if (p->ops->enter(p->device, why) != PEN_OK) return NULL;
    void *data = p->ops->host_alloc(bytes > 0 ? bytes : 1, why);
    p->ops->leave();
    return data;
}

void space_free_host(const memory_space *p, void *data)
{
    if (!space_is_device(p))
        space_free(p, data, false);
    else if (data != NULL)
        p->ops->host_free(data);
}

void *space_values(const memory_space *p, const pen_tensor *t)
{
    return space_is_device(p) ? device_copies_param_of(t) : t->param;
}

/* ---- copies ------------------------------------------------------------------------------------ */
pen_status space_wait(const memory_space *p, pen_error *why)
{
    device_event *event;
    pen_status status = space_event(p, &event, why);
    if (status == PEN_OK) status = space_record(p, event, why);
    if (status == PEN_OK) status = space_await(p, event, why);
    space_event_free(p, event);
    return status;
}

pen_status space_copy(const memory_space *p, stat_traffic what, void *to, const void *from,
                      size_t bytes, pen_error *why)
{
    return device_copy(p->ops, what, p->set != NULL ? p->set->stats : NULL, to, from, bytes,
                       p->stream, why);
}

static pen_status copy(const memory_space *p, void *to, const void *from, size_t bytes,
                       pen_error *why)
{
    if (bytes == 0) return PEN_OK;
    if (!space_is_device(p)) {
        memmove(to, from, bytes);
        return PEN_OK;
    }
    const pen_status status = space_copy(p, TRAFFIC_OTHER, to, from, bytes, why);
    return status == PEN_OK ? space_wait(p, why) : status;
}

pen_status space_read(const memory_space *p, void *host, const void *from, size_t bytes,
                      pen_error *why)
{
    return copy(p, host, from, bytes, why);
}

pen_status space_write(const memory_space *p, void *to, const void *host, size_t bytes,
                       pen_error *why)
{
    return copy(p, to, host, bytes, why);
}

void *space_stage(const memory_space *p, void *data, size_t bytes, pen_error *why)
{
    if (p->set == NULL) return data;
    const memory_space host = space_host();
    return space_alloc(&host, bytes, false, why);
}

pen_status space_put(const memory_space *p, void *data, void *staged, size_t bytes,
                     pen_status status, pen_error *why)
{
    if (staged == data || staged == NULL) return status;
    if (status == PEN_OK) status = space_write(p, data, staged, bytes, why);
    free(staged);
    return status;
}

/* ---- order ------------------------------------------------------------------------------------- */
pen_status space_event(const memory_space *p, device_event **event, pen_error *why)
{
    *event = p->set != NULL ? p->ops->event_new() : NULL;
    return p->set == NULL || *event != NULL
               ? PEN_OK
               : why_set(why, PEN_NO_MEMORY, "no memory for an event of a device");
}

void space_event_free(const memory_space *p, device_event *event)
{
    if (event != NULL) p->ops->event_free(event);
}

pen_status space_record_on(const memory_space *p, device_event *event, device_stream stream,
                           pen_error *why)
{
    return p->set != NULL ? pinned_pair_record(p->set, event, stream, why) : PEN_OK;
}

pen_status space_record(const memory_space *p, device_event *event, pen_error *why)
{
    return space_record_on(p, event, p->stream, why);
}

pen_status space_follow(const memory_space *p, device_stream stream, device_event *event,
                        pen_error *why)
{
    return space_is_in_order(p, stream) ? PEN_OK
                                        : pinned_pair_stream_waits(p->set, stream, event, why);
}

pen_status space_await(const memory_space *p, device_event *event, pen_error *why)
{
    return p->set != NULL ? pinned_pair_wait(p->set, event, *p->deadline_ms, why) : PEN_OK;
}
