/* device_copies_work.c - a strategy that works on the device: its gradients, and the order of its stream. */
#include "worker/tensor/device_copy/device_copies_internal.h"

#include "common/base/why.h"

void device_copies_work_on(pen_ctx *ctx, device_stream work)
{
    ctx->memory.device_copies->work = work;
}

const pinned_pair_set *device_copies_set(const pen_ctx *ctx)
{
    return &ctx->memory.device_copies->pinned_pairs;
}

/* ---- order ------------------------------------------------------------------------------------- */
/* Call with the lock. */
static pen_status follow(device_copies *m, device_stream stream, pen_error *why)
{
    const pen_status status = pinned_pair_record(&m->pinned_pairs, m->before, stream, why);
    return status == PEN_OK ? pinned_pair_stream_waits(&m->pinned_pairs, m->work, m->before, why)
                            : status;
}

pen_status device_copies_precede(pen_ctx *ctx, device_stream stream, pen_error *why)
{
    device_copies *m = ctx->memory.device_copies;
    if (!space_is_device(&ctx->memory.work)) return PEN_OK;
    pthread_mutex_lock(&m->lock);
    const pen_status status = follow(m, stream, why);
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* The event is recorded now: the program may destroy its stream before the update.  Sums that are enqueued before the
 * update do not wait. */
pen_status device_copies_note_reader(device_copies *m, device_stream stream, pen_error *why)
{
    int i = 0;
    while (i < m->n_readers && m->reader[i].stream != stream) i++;
    if (i == DEVICE_COPIES_STREAMS) return follow(m, stream, why);
    struct device_copies_reader *r = &m->reader[i];
    if (r->done == NULL) r->done = m->pinned_pairs.ops->event_new();
    if (r->done == NULL) return device_copies_no_memory(why);
    if (i == m->n_readers) m->n_readers++;
    r->stream = stream;
    return pinned_pair_record(&m->pinned_pairs, r->done, stream, why);
}

static pen_status follow_readers(device_copies *m, pen_error *why)
{
    pen_status status = PEN_OK;
    for (int i = 0; i < m->n_readers && status == PEN_OK; i++)
        status = pinned_pair_stream_waits(&m->pinned_pairs, m->work, m->reader[i].done, why);
    m->n_readers = 0;
    return status == PEN_OK ? follow(m, m->stream, why) : status;
}

/* ---- gradients --------------------------------------------------------------------------------- */
device_stream device_copies_stream(const pen_tensor *t)
{
    const device_copies *m               = device_copies_of(t);
    const pen_tensor *base               = t->tied_to != NULL ? t->tied_to : t;
    const struct device_copies_tensor *x = base->device_copies;
    if (x != NULL && x->has_stream) return x->stream;
    return m != NULL ? atomic_load(&m->stream) : NULL;
}

/* Sums of names and of micro-batches stay in the order in which they are enqueued.  w: of the gradient. */
static pen_status change_stream(device_copies *m, pen_tensor *base, pinned_pair *w,
                                device_stream to, bool is_given, pen_error *why)
{
    const device_stream from = device_copies_stream(base);
    pen_status status        = device_copies_make_room(base, why);
    if (status == PEN_OK && from != to) {
        status = pinned_pair_note_use(&m->pinned_pairs, w, from, why);
        if (status == PEN_OK) status = pinned_pair_stream_waits(&m->pinned_pairs, to, w->used, why);
    }
    if (status != PEN_OK) return status;
    base->device_copies->stream     = to;
    base->device_copies->has_stream = is_given;
    return PEN_OK;
}

pen_status device_copies_note_stream(pen_tensor *t, const device_stream *stream, pen_error *why)
{
    device_copies *m       = device_copies_of(t);
    pen_tensor *base       = t->tied_to != NULL ? t->tied_to : t;
    const device_stream to = stream != NULL ? *stream : atomic_load(&m->stream);
    /* A stream that is named once may be captured later. */
    const device_ops *ops = m->pinned_pairs.ops;
    pen_status status = ops->may_enqueue != NULL ? ops->may_enqueue("pen_ready", to, why) : PEN_OK;
    pthread_mutex_lock(&m->lock);
    pinned_pair *w = t->device_copies->grad;
    if (status == PEN_OK) status = change_stream(m, base, w, to, stream != NULL, why);
    if (status == PEN_OK) status = pinned_pair_note_use(&m->pinned_pairs, w, to, why);
    pthread_mutex_unlock(&m->lock);
    return status;
}

void device_copies_blame(pen_ctx *ctx, pen_error *why)
{
    const device_copies *m = ctx->memory.device_copies;
    const model *all       = &ctx->model;
    const pen_error found  = *why;
    if (m == NULL || found.status != PEN_TIMED_OUT) return;
    for (uint32_t i = all->n_tensors; i-- > 0;) {
        const pen_tensor *t                  = all->tensor[i];
        const struct device_copies_tensor *x = t->device_copies;
        if (!t->trained || x == NULL || x->grad == NULL ||
            m->pinned_pairs.ops->event_done(x->grad->used, why) != PEN_AGAIN)
            continue;
        why_set(why, found.status, "the gradient of '%s': %.400s", t->name, found.text);
        why_culprit(why, PEN_WORKER, ctx->env.rank, atomic_load(&ctx->step_index), t->name);
        return;
    }
    *why = found;
}

/* ---- values ------------------------------------------------------------------------------------ */
pen_status device_copies_begin_update(pen_ctx *ctx, pen_error *why)
{
    device_copies *m = ctx->memory.device_copies;
    if (!space_is_device(&ctx->memory.work)) return PEN_OK;
    pthread_mutex_lock(&m->lock);
    const pen_status status = follow_readers(m, why);
    pthread_mutex_unlock(&m->lock);
    return status;
}

pen_status device_copies_updated(pen_ctx *ctx, pen_error *why)
{
    device_copies *m = ctx->memory.device_copies;
    if (!space_is_device(&ctx->memory.work)) return PEN_OK;
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const pen_tensor *t = ctx->model.tensor[i];
        if (t->trained && t->stays && t->device_copies->values != NULL)
            t->device_copies->values->is_host_old = true;
    }
    const pen_status status = pinned_pair_record(&m->pinned_pairs, m->updated, m->work, why);
    pthread_mutex_unlock(&m->lock);
    return status;
}

pen_status device_copies_begin_values(pen_tensor *t, device_stream stream, pen_error *why)
{
    return space_is_device(&t->ctx->memory.work)
               ? pinned_pair_stream_waits(&device_copies_of(t)->pinned_pairs, stream,
                                          t->device_copies->values->used, why)
               : PEN_OK;
}

pen_status device_copies_made_values(pen_tensor *t, device_stream stream, pen_error *why)
{
    return space_is_device(&t->ctx->memory.work)
               ? pinned_pair_made(&device_copies_of(t)->pinned_pairs, t->device_copies->values,
                                  stream, why)
               : PEN_OK;
}

pen_status device_copies_fetch_values(pen_tensor *t, pen_error *why)
{
    device_copies *m = device_copies_of(t);
    pinned_pair *w   = t->device_copies != NULL ? t->device_copies->values : NULL;
    if (w == NULL || !w->is_host_old) return PEN_OK;
    pthread_mutex_lock(&m->lock);
    pen_status status = pinned_pair_see(&m->pinned_pairs, w, m->work, why);
    if (status == PEN_OK)
        status = pinned_pair_down(&m->pinned_pairs, w, w->device, TRAFFIC_VALUE, m->work, why);
    if (status == PEN_OK)
        status = pinned_pair_wait(&m->pinned_pairs, w->moved, t->ctx->settings.deadline_ms, why);
    w->is_host_old = status != PEN_OK;
    pthread_mutex_unlock(&m->lock);
    return status;
}

pen_status device_copies_fetch_all(pen_ctx *ctx, pen_error *why)
{
    pen_status status = device_copies_updated(ctx, why);
    for (uint32_t i = 0; i < ctx->model.n_tensors && status == PEN_OK; i++)
        if (ctx->model.tensor[i]->trained)
            status = device_copies_fetch_values(ctx->model.tensor[i], why);
    return status;
}
