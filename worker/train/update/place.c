/* place.c - memory of a place, and copies between it and the host. */
#include "worker/train/update/place.h"

#include "common/base/why.h"
#include "common/system/segment.h"
#include "worker/tensor/device_copy/device_copies.h"

#include <stdlib.h>
#include <string.h>

/* ---- which ------------------------------------------------------------------------------------- */
place place_host(void)
{
    return (place){.ops = device_host(), .device = -1};
}

static bool is_on_device(const pen_ctx *ctx, const pen_tensor *t)
{
    const struct device_copies_tensor *x = t->device_copies;
    const bool has_values =
        t->param != NULL ? x != NULL && x->values != NULL : device_copies_holds(ctx);
    const bool has_grad = t->grad != NULL ? x != NULL && x->grad != NULL : has_values;
    return has_values && has_grad;
}

bool place_may_be_device(const pen_ctx *ctx)
{
    const model *m = &ctx->model;
    bool may       = ctx->device_copies != NULL && m->n_trained > 0 && !context_outlives_loss(ctx);
    for (uint32_t i = 0; i < m->n_tensors && may; i++)
        may = !m->tensor[i]->trained ||
              (model_rule_of(m, m->tensor[i]) == STEP_TWO_PHASE && is_on_device(ctx, m->tensor[i]));
    return may;
}

pen_status place_open(pen_ctx *ctx, bool may_be_device, place *p, pen_error *why)
{
    *p = place_host();
    if (!may_be_device) return PEN_OK;
    const pinned_pair_set *set = device_copies_set(ctx);
    device_stream stream;
    if (set->ops->stream_new(set->device, &stream, why) != PEN_OK) return why->status;
    *p = (place){.ops         = set->ops,
                 .device      = set->device,
                 .stream      = stream,
                 .set         = set,
                 .deadline_ms = &ctx->settings.deadline_ms};
    device_copies_work_on(ctx, stream);
    return PEN_OK;
}

void place_close(place *p)
{
    if (p->set != NULL) p->ops->stream_free(p->stream);
    *p = (place){.device = -1};
}

/* ---- memory ------------------------------------------------------------------------------------ */
void *place_alloc(const place *p, size_t bytes, bool shared, pen_error *why)
{
    const size_t least = bytes > 0 ? bytes : 1;
    if (place_is_device(p)) return p->ops->alloc(least, p->device, why);
    if (shared) return segment_alloc(least, why);
    void *data = calloc(1, least);
    if (data == NULL) why_set(why, PEN_NO_MEMORY, "no memory for %zu bytes", bytes);
    return data;
}

void place_free(const place *p, void *data, bool shared)
{
    if (data == NULL) return;
    if (place_is_device(p))
        p->ops->free(data);
    else if (shared)
        segment_free(data);
    else
        free(data);
}

void *place_alloc_host(const place *p, size_t bytes, pen_error *why)
{
    if (!place_is_device(p)) return place_alloc(p, bytes, false, why);
    if (p->ops->enter(p->device, why) != PEN_OK) return NULL;
    void *data = p->ops->host_alloc(bytes > 0 ? bytes : 1, why);
    p->ops->leave();
    return data;
}

void place_free_host(const place *p, void *data)
{
    if (!place_is_device(p))
        place_free(p, data, false);
    else if (data != NULL)
        p->ops->host_free(data);
}

void *place_values(const place *p, const pen_tensor *t)
{
    return place_is_device(p) ? device_copies_param_of(t) : t->param;
}

/* ---- copies ------------------------------------------------------------------------------------ */
pen_status place_wait(const place *p, pen_error *why)
{
    if (!place_is_device(p)) return PEN_OK;
    device_event *event = p->ops->event_new();
    if (event == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for an event of a device");
    pen_status status = place_record(p, event, why);
    if (status == PEN_OK) status = pinned_pair_wait(p->set, event, *p->deadline_ms, why);
    p->ops->event_free(event);
    return status;
}

pen_status place_copy(const place *p, stat_traffic what, void *to, const void *from, size_t bytes,
                      pen_error *why)
{
    return device_copy(p->ops, what, p->set != NULL ? p->set->stats : NULL, to, from, bytes,
                       p->stream, why);
}

static pen_status copy(const place *p, void *to, const void *from, size_t bytes, pen_error *why)
{
    if (bytes == 0) return PEN_OK;
    if (!place_is_device(p)) {
        memmove(to, from, bytes);
        return PEN_OK;
    }
    const pen_status status = place_copy(p, TRAFFIC_OTHER, to, from, bytes, why);
    return status == PEN_OK ? place_wait(p, why) : status;
}

pen_status place_read(const place *p, void *host, const void *from, size_t bytes, pen_error *why)
{
    return copy(p, host, from, bytes, why);
}

pen_status place_write(const place *p, void *to, const void *host, size_t bytes, pen_error *why)
{
    return copy(p, to, host, bytes, why);
}

/* ---- order ------------------------------------------------------------------------------------- */
pen_status place_record(const place *p, device_event *event, pen_error *why)
{
    return pinned_pair_record(p->set, event, p->stream, why);
}

pen_status place_order(const place *p, device_event *event, device_stream before,
                       device_stream after, pen_error *why)
{
    if (before == after) return PEN_OK;
    const pen_status status = pinned_pair_record(p->set, event, before, why);
    return status == PEN_OK ? pinned_pair_stream_waits(p->set, after, event, why) : status;
}
