/* device_copies_up.c - values, from the host to a device. */
#include "worker/tensor/device_copy/device_copies_internal.h"

#include "common/trace/trace.h"

/* ---- values --------------------------------------------------------------------------------------- */
/* NULL: the tensor does not stay, and its unit is not in use. */
static pinned_pair *values_of(const pen_tensor *t)
{
    return t->device_copies != NULL ? t->device_copies->values : NULL;
}

static pen_status bring(device_copies *m, pen_tensor *t, pinned_pair **newest, pen_error *why)
{
    pinned_pair *w = values_of(t);
    if (w == NULL || !w->is_old) return PEN_OK;
    pen_status status = pinned_pair_up(&m->pinned_pairs, w, why);
    if (status == PEN_OK && trace_on())
        status = device_copies_add_job(
            t->ctx, &(device_copies_job){.tensor = t, .pinned_pair = w, .is_up = true}, why);
    if (newest != NULL) *newest = w;
    return status;
}

static pen_status bring_all(device_copies *m, const model *all, pinned_pair **newest,
                            pen_error *why)
{
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < all->n_tensors && status == PEN_OK; i++)
        if (all->tensor[i]->stays) status = bring(m, all->tensor[i], newest, why);
    return status;
}

static pen_status wait_for_older(pen_ctx *ctx, pen_error *why)
{
    device_copies *m = ctx->memory.device_copies;
    if (ctx->stage < 2 || space_is_device(&ctx->memory.work)) return PEN_OK;
    pthread_mutex_lock(&m->lock);
    device_event *older =
        m->n_released >= DEVICE_COPIES_AHEAD ? m->ahead[m->n_released % DEVICE_COPIES_AHEAD] : NULL;
    pthread_mutex_unlock(&m->lock);
    return older != NULL ? pinned_pair_wait(&m->pinned_pairs, older, ctx->settings.deadline_ms, why)
                         : PEN_OK;
}

/* Of a strategy on the device: `stream` sees the values that the newest step made there. */
static pen_status see_update(const device_copies *m, device_stream stream, pen_error *why)
{
    return pinned_pair_stream_waits(&m->pinned_pairs, stream, m->updated, why);
}

pen_status device_copies_use(pen_ctx *ctx, const pen_unit *handle, void *stream, pen_error *why)
{
    device_copies *m = ctx->memory.device_copies;
    const model *all = &ctx->model;
    if (m == NULL) return PEN_OK;
    pen_status status = wait_for_older(ctx, why);
    pthread_mutex_lock(&m->lock);
    atomic_store(&m->stream, stream);
    for (uint32_t i = 0; i < handle->n_tensors && status == PEN_OK; i++)
        status = bring(m, all->tensor[handle->tensor[i]], NULL, why);
    if (status == PEN_OK) status = bring_all(m, all, NULL, why);
    if (status == PEN_OK && space_is_device(&ctx->memory.work)) status = see_update(m, stream, why);
    for (uint32_t i = 0; i < handle->n_tensors && status == PEN_OK; i++) {
        pinned_pair *w = values_of(all->tensor[handle->tensor[i]]);
        if (w != NULL) status = pinned_pair_see(&m->pinned_pairs, w, stream, why);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

pen_status device_copies_release(pen_ctx *ctx, const pen_unit *handle, void *stream, pen_error *why)
{
    device_copies *m = ctx->memory.device_copies;
    if (m == NULL) return PEN_OK;
    pen_status status = m->pinned_pairs.ops->enter(m->pinned_pairs.device, why);
    if (status != PEN_OK) return status;
    pthread_mutex_lock(&m->lock);
    atomic_store(&m->stream, stream);
    for (uint32_t i = 0; i < handle->n_tensors && status == PEN_OK; i++) {
        pinned_pair *w = values_of(ctx->model.tensor[handle->tensor[i]]);
        if (w != NULL) status = pinned_pair_note_use(&m->pinned_pairs, w, stream, why);
    }
    if (status == PEN_OK && ctx->stage >= 2 && !space_is_device(&ctx->memory.work))
        status = m->pinned_pairs.ops->event_record(m->ahead[m->n_released++ % DEVICE_COPIES_AHEAD],
                                                   stream, why);
    if (status == PEN_OK && space_is_device(&ctx->memory.work))
        status = device_copies_note_reader(m, stream, why);
    pthread_mutex_unlock(&m->lock);
    m->pinned_pairs.ops->leave();
    return status;
}

static pen_status changed(pen_ctx *ctx, bool frozen_too, bool waits, pen_error *why)
{
    device_copies *m    = ctx->memory.device_copies;
    pinned_pair *newest = NULL;
    if (m == NULL) return PEN_OK;
    pthread_mutex_lock(&m->lock);
    /* Marks values as old.  The program's stream may still read them. */
    pen_status status = PEN_OK;
    pthread_mutex_lock(&ctx->memory.grad_lock); /* units in use may be dropped meanwhile */
    for (uint32_t i = 0; i < ctx->model.n_tensors && status == PEN_OK; i++) {
        const pen_tensor *t = ctx->model.tensor[i];
        pinned_pair *w      = values_of(t);
        if (w == NULL || w->is_made || (!t->trained && !frozen_too)) continue;
        w->is_old = true;
        status    = pinned_pair_note_use(&m->pinned_pairs, w, m->stream, why);
    }
    pthread_mutex_unlock(&ctx->memory.grad_lock);
    if (status == PEN_OK && waits) status = bring_all(m, &ctx->model, &newest, why);
    pthread_mutex_unlock(&m->lock);
    if (status == PEN_OK && newest != NULL)
        status = pinned_pair_wait(&m->pinned_pairs, newest->moved, ctx->settings.deadline_ms, why);
    return status;
}

static pen_status stepped_there(const pen_ctx *ctx, bool waits, pen_error *why)
{
    device_copies *m  = ctx->memory.device_copies;
    pen_status status = see_update(m, m->stream, why);
    return status == PEN_OK && waits
               ? pinned_pair_wait(&m->pinned_pairs, m->updated, ctx->settings.deadline_ms, why)
               : status;
}

pen_status device_copies_stepped(pen_ctx *ctx, bool waits, pen_error *why)
{
    return space_is_device(&ctx->memory.work) ? stepped_there(ctx, waits, why)
                                              : changed(ctx, false, waits, why);
}

pen_status device_copies_changed(pen_ctx *ctx, pen_error *why)
{
    return changed(ctx, true, true, why);
}

pen_status device_copies_changed_one(pen_tensor *t, pen_error *why)
{
    device_copies *m = device_copies_of(t);
    pinned_pair *w   = values_of(t);
    if (w == NULL) return PEN_OK;
    pthread_mutex_lock(&m->lock);
    pen_status status = pinned_pair_note_use(&m->pinned_pairs, w, m->stream, why);
    if (status == PEN_OK) status = pinned_pair_up(&m->pinned_pairs, w, why);
    pthread_mutex_unlock(&m->lock);
    return status == PEN_OK
               ? pinned_pair_wait(&m->pinned_pairs, w->moved, t->ctx->settings.deadline_ms, why)
               : status;
}

/* ---- the start --------------------------------------------------------------------------------- */
/* Fetches values that the program wrote on the device before pen_commit(); init strings are computed on the host. */
static pen_status fetch_first_values(pen_ctx *ctx, pen_error *why)
{
    device_copies *m  = ctx->memory.device_copies;
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < ctx->model.n_tensors && status == PEN_OK; i++) {
        pen_tensor *t  = ctx->model.tensor[i];
        pinned_pair *w = values_of(t);
        if (w == NULL || t->has_init) continue;
        status = pinned_pair_down(&m->pinned_pairs, w, w->device, TRAFFIC_VALUE, m->stream, why);
        if (status == PEN_OK)
            status = pinned_pair_wait(&m->pinned_pairs, w->moved, ctx->settings.deadline_ms, why);
    }
    return status;
}

pen_status device_copies_commit(pen_ctx *ctx, device_copies_deliver_fn deliver, pen_error *why)
{
    device_copies *m = ctx->memory.device_copies;
    if (m == NULL) return PEN_OK;
    if (fetch_first_values(ctx, why) != PEN_OK) return why->status;
    m->deliver = deliver;
    return device_copies_begin_thread(ctx, why);
}
