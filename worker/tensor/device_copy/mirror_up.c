/* mirror_up.c - values, from the host to a device. */
#include "worker/tensor/device_copy/mirror_internal.h"

#include "common/trace/trace.h"

/* ---- values --------------------------------------------------------------------------------------- */
/* NULL: a tensor that comes and goes, and whose unit is not in use. */
static twin *values_of(const pen_tensor *t)
{
    return t->mirror != NULL ? t->mirror->values : NULL;
}

static pen_status bring(mirror *m, pen_tensor *t, twin **newest, pen_error *why)
{
    twin *w = values_of(t);
    if (w == NULL || !w->is_old) return PEN_OK;
    pen_status status = twin_up(&m->twins, w, why);
    if (status == PEN_OK && trace_on()) status = mirror_add_job(m, t, w, true, why);
    if (newest != NULL) *newest = w;
    return status;
}

static pen_status bring_all(mirror *m, const model *all, twin **newest, pen_error *why)
{
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < all->n_tensors && status == PEN_OK; i++)
        if (all->tensor[i]->stays) status = bring(m, all->tensor[i], newest, why);
    return status;
}

static pen_status wait_for_older(pen_ctx *ctx, pen_error *why)
{
    mirror *m = ctx->mirror;
    if (ctx->stage < 2) return PEN_OK;
    pthread_mutex_lock(&m->lock);
    device_event *older =
        m->n_released >= MIRROR_AHEAD ? m->ahead[m->n_released % MIRROR_AHEAD] : NULL;
    pthread_mutex_unlock(&m->lock);
    return older != NULL ? twin_wait(&m->twins, older, ctx->settings.deadline_ms, why) : PEN_OK;
}

pen_status mirror_use(pen_ctx *ctx, const pen_unit *handle, void *stream, pen_error *why)
{
    mirror *m        = ctx->mirror;
    const model *all = &ctx->model;
    if (m == NULL) return PEN_OK;
    pen_status status = wait_for_older(ctx, why);
    pthread_mutex_lock(&m->lock);
    atomic_store(&m->stream, stream);
    for (uint32_t i = 0; i < handle->n_tensors && status == PEN_OK; i++)
        status = bring(m, all->tensor[handle->tensor[i]], NULL, why);
    if (status == PEN_OK) status = bring_all(m, all, NULL, why);
    for (uint32_t i = 0; i < handle->n_tensors && status == PEN_OK; i++) {
        twin *w = values_of(all->tensor[handle->tensor[i]]);
        if (w != NULL) status = twin_see(&m->twins, w, stream, why);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

pen_status mirror_release(pen_ctx *ctx, const pen_unit *handle, void *stream, pen_error *why)
{
    mirror *m = ctx->mirror;
    if (m == NULL) return PEN_OK;
    pen_status status = m->twins.ops->enter(m->twins.device, why);
    if (status != PEN_OK) return status;
    pthread_mutex_lock(&m->lock);
    atomic_store(&m->stream, stream);
    for (uint32_t i = 0; i < handle->n_tensors && status == PEN_OK; i++) {
        twin *w = values_of(ctx->model.tensor[handle->tensor[i]]);
        if (w != NULL) status = twin_note_use(&m->twins, w, stream, why);
    }
    if (status == PEN_OK && ctx->stage >= 2)
        status = m->twins.ops->event_record(m->ahead[m->n_released++ % MIRROR_AHEAD], stream, why);
    pthread_mutex_unlock(&m->lock);
    m->twins.ops->leave();
    return status;
}

/* Marks values as old. The program's stream may still read them. */
static pen_status age(mirror *m, pen_ctx *ctx, bool frozen_too, pen_error *why)
{
    pen_status status = PEN_OK;
    pthread_mutex_lock(&ctx->held_lock); /* units in use may be dropped meanwhile */
    for (uint32_t i = 0; i < ctx->model.n_tensors && status == PEN_OK; i++) {
        const pen_tensor *t = ctx->model.tensor[i];
        twin *w             = values_of(t);
        if (w == NULL || (!t->trained && !frozen_too)) continue;
        w->is_old = true;
        status    = twin_note_use(&m->twins, w, m->stream, why);
    }
    pthread_mutex_unlock(&ctx->held_lock);
    return status;
}

static pen_status changed(pen_ctx *ctx, bool frozen_too, bool waits, pen_error *why)
{
    mirror *m    = ctx->mirror;
    twin *newest = NULL;
    if (m == NULL) return PEN_OK;
    pthread_mutex_lock(&m->lock);
    pen_status status = age(m, ctx, frozen_too, why);
    if (status == PEN_OK && waits) status = bring_all(m, &ctx->model, &newest, why);
    pthread_mutex_unlock(&m->lock);
    if (status == PEN_OK && newest != NULL)
        status = twin_wait(&m->twins, newest->moved, ctx->settings.deadline_ms, why);
    return status;
}

pen_status mirror_stepped(pen_ctx *ctx, bool waits, pen_error *why)
{
    return changed(ctx, false, waits, why);
}

pen_status mirror_changed(pen_ctx *ctx, pen_error *why)
{
    return changed(ctx, true, true, why);
}

pen_status mirror_changed_one(pen_tensor *t, pen_error *why)
{
    mirror *m = mirror_of(t);
    twin *w   = values_of(t);
    if (w == NULL) return PEN_OK;
    pthread_mutex_lock(&m->lock);
    pen_status status = twin_note_use(&m->twins, w, m->stream, why);
    if (status == PEN_OK) status = twin_up(&m->twins, w, why);
    pthread_mutex_unlock(&m->lock);
    return status == PEN_OK ? twin_wait(&m->twins, w->moved, t->ctx->settings.deadline_ms, why)
                            : status;
}

/* ---- the start --------------------------------------------------------------------------------- */
/* Fetches values that the program wrote on the device before pen_commit(); init strings are computed on the host. */
static pen_status fetch_first_values(pen_ctx *ctx, pen_error *why)
{
    mirror *m         = ctx->mirror;
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < ctx->model.n_tensors && status == PEN_OK; i++) {
        pen_tensor *t = ctx->model.tensor[i];
        twin *w       = values_of(t);
        if (w == NULL || t->has_draw) continue;
        status = twin_down(&m->twins, w, w->device, m->stream, why);
        if (status == PEN_OK)
            status = twin_wait(&m->twins, w->moved, ctx->settings.deadline_ms, why);
    }
    return status;
}

pen_status mirror_commit(pen_ctx *ctx, mirror_deliver_fn deliver, pen_error *why)
{
    mirror *m = ctx->mirror;
    if (m == NULL) return PEN_OK;
    if (fetch_first_values(ctx, why) != PEN_OK) return why->status;
    m->deliver = deliver;
    return mirror_begin_thread(ctx, why);
}
