/* device_copies.c - the device of a context; explicit verbs. */
#include "worker/tensor/device_copy/device_copies_internal.h"

#include "common/base/why.h"

#include <stdlib.h>
#include <string.h>

/* ---- life ------------------------------------------------------------------------------------- */
pen_status device_copies_no_memory(pen_error *why)
{
    return why_set(why, PEN_NO_MEMORY, "no memory for tensors on a device");
}

static void destroy(device_copies *m)
{
    for (int i = 0; i < DEVICE_COPIES_AHEAD; i++)
        if (m->ahead[i] != NULL) m->pinned_pairs.ops->event_free(m->ahead[i]);
    for (int i = 0; i < DEVICE_COPIES_STREAMS; i++)
        if (m->reader[i].done != NULL) m->pinned_pairs.ops->event_free(m->reader[i].done);
    if (m->before != NULL) m->pinned_pairs.ops->event_free(m->before);
    if (m->updated != NULL) m->pinned_pairs.ops->event_free(m->updated);
    pinned_pairs_close(&m->pinned_pairs);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->comes);
    pthread_cond_destroy(&m->drained);
    free(m);
}

pen_status device_copies_create(pen_ctx *ctx, const device_ops *ops, int device, pen_error *why)
{
    device_copies *m = calloc(1, sizeof *m);
    if (m == NULL) return device_copies_no_memory(why);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->comes, NULL);
    pthread_cond_init(&m->drained, NULL);
    pen_status status = pinned_pairs_open(&m->pinned_pairs, ops, device, &ctx->stats, why);
    m->before         = ops->event_new();
    m->updated        = ops->event_new();
    if (status == PEN_OK && (m->before == NULL || m->updated == NULL))
        status = device_copies_no_memory(why);
    for (int i = 0; i < DEVICE_COPIES_AHEAD && status == PEN_OK; i++) {
        m->ahead[i] = ops->event_new();
        if (m->ahead[i] == NULL) status = device_copies_no_memory(why);
    }
    if (status == PEN_OK)
        ctx->memory.device_copies = m;
    else
        destroy(m);
    return status;
}

pen_status device_copies_open(pen_ctx *ctx, pen_error *why)
{
    char note[256];
    if (ctx->settings.device == WORKER_DEVICE_HOST || ctx->memory.device_copies != NULL)
        return PEN_OK;
    const device_ops *ops = device_beside_host(note, sizeof note);
    if (ops == NULL && ctx->settings.device == WORKER_DEVICE_AUTO) return PEN_OK;
    if (ops == NULL)
        return why_set(why, PEN_UNSUPPORTED,
                       "device=cuda: %s; use device=host, or see `penstock doctor`", note);
    if (ops->current() < 0 && ctx->env.local_rank < 0) return PEN_OK; /* called again later */
    const int local   = ctx->env.local_rank;
    const int device  = ops->current() >= 0 ? ops->current() : local % ops->count();
    pen_status status = device_copies_create(ctx, ops, device, why);
    if (status == PEN_OK) ctx->memory.device_copies->holds = true;
    return status;
}

void device_copies_destroy(pen_ctx *ctx)
{
    if (ctx->memory.device_copies != NULL) destroy(ctx->memory.device_copies);
    ctx->memory.device_copies = NULL;
}

int device_copies_device(const pen_ctx *ctx)
{
    return ctx->memory.device_copies != NULL ? ctx->memory.device_copies->pinned_pairs.device : -1;
}

/* ---- the device of an address ----------------------------------------------------------------- */
pen_status device_copies_meet(pen_tensor *t, const void *data, bool *is_host, pen_error *why)
{
    const device_ops *ops = device_of(data);
    *is_host              = device_is_host(ops);
    if (*is_host) return PEN_OK;
    const int device = ops->device(data);
    if (device_copies_of(t) == NULL) return device_copies_create(t->ctx, ops, device, why);
    if (device_copies_device(t->ctx) == device) return PEN_OK;
    return why_set(
        why, PEN_INVALID_ARGUMENT,
        "'%s' is on %s device %d, but this context uses device %d; run one process for each device",
        t->name, ops->name, device, device_copies_device(t->ctx));
}

pen_status device_copies_make_room(pen_tensor *t, pen_error *why)
{
    if (t->device_copies == NULL) t->device_copies = calloc(1, sizeof *t->device_copies);
    return t->device_copies != NULL ? PEN_OK : device_copies_no_memory(why);
}

/* ---- explicit verbs -------------------------------------------------------------------------- */
pinned_pair *device_copies_lend(pen_tensor *t, void *data, size_t bytes, bool is_read, void *stream,
                                pen_error *why)
{
    bool is_host;
    why->status = PEN_OK;
    if (device_copies_meet(t, data, &is_host, why) != PEN_OK || is_host) return NULL;
    device_copies *m = device_copies_of(t);
    pinned_pair *w   = pinned_pair_new(&m->pinned_pairs, data, bytes, why);
    if (w == NULL) return NULL;
    pen_status status = is_read
                            ? pinned_pair_down(&m->pinned_pairs, w, data, TRAFFIC_GRAD, stream, why)
                            : pinned_pair_note_use(&m->pinned_pairs, w, stream, why);
    if (status == PEN_OK && is_read)
        status = pinned_pair_wait(&m->pinned_pairs, w->moved, t->ctx->settings.deadline_ms, why);
    if (status == PEN_OK) return w;
    pinned_pair_free(&m->pinned_pairs, w);
    return NULL;
}

pen_status device_copies_unlend(pen_tensor *t, pinned_pair *lent, bool is_written, pen_error *why)
{
    device_copies *m  = device_copies_of(t);
    pen_status status = PEN_OK;
    if (lent == NULL) return PEN_OK;
    if (is_written) status = pinned_pair_up(&m->pinned_pairs, lent, why);
    if (is_written && status == PEN_OK)
        status = pinned_pair_wait(&m->pinned_pairs, lent->moved, t->ctx->settings.deadline_ms, why);
    pinned_pair_free(&m->pinned_pairs, lent);
    return status;
}

pen_status device_copies_fetch_grad(pen_tensor *t, void *stream, pen_error *why)
{
    device_copies *m = device_copies_of(t);
    if (t->device_copies == NULL || t->device_copies->grad == NULL) return PEN_OK;
    pinned_pair *w    = t->device_copies->grad;
    pen_status status = pinned_pair_down(&m->pinned_pairs, w, w->device, TRAFFIC_GRAD, stream, why);
    return status == PEN_OK
               ? pinned_pair_wait(&m->pinned_pairs, w->moved, t->ctx->settings.deadline_ms, why)
               : status;
}
