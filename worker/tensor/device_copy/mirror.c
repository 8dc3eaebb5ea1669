/* mirror.c - the device of a context, and its memory. */
#include "worker/tensor/device_copy/mirror_internal.h"

#include "common/base/why.h"

#include <stdlib.h>
#include <string.h>

/* ---- life ------------------------------------------------------------------------------------- */
pen_status mirror_no_memory(pen_error *why)
{
    return why_set(why, PEN_NO_MEMORY, "no memory for tensors on a device");
}

static void destroy(mirror *m)
{
    for (int i = 0; i < MIRROR_AHEAD; i++)
        if (m->ahead[i] != NULL) m->twins.ops->event_free(m->ahead[i]);
    twins_close(&m->twins);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->comes);
    pthread_cond_destroy(&m->drained);
    free(m);
}

static pen_status create(pen_ctx *ctx, const device_ops *ops, int device, pen_error *why)
{
    mirror *m = calloc(1, sizeof *m);
    if (m == NULL) return mirror_no_memory(why);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->comes, NULL);
    pthread_cond_init(&m->drained, NULL);
    pen_status status = twins_open(&m->twins, ops, device, why);
    for (int i = 0; i < MIRROR_AHEAD && status == PEN_OK; i++) {
        m->ahead[i] = ops->event_new();
        if (m->ahead[i] == NULL) status = mirror_no_memory(why);
    }
    if (status == PEN_OK)
        ctx->mirror = m;
    else
        destroy(m);
    return status;
}

pen_status mirror_open(pen_ctx *ctx, pen_error *why)
{
    char note[256];
    if (ctx->settings.device == WORKER_DEVICE_HOST || ctx->mirror != NULL) return PEN_OK;
    const device_ops *ops = device_beside_host(note, sizeof note);
    if (ops == NULL && ctx->settings.device == WORKER_DEVICE_AUTO) return PEN_OK;
    if (ops == NULL)
        return why_set(why, PEN_UNSUPPORTED,
                       "device=cuda: %s; use device=host, or see `penstock doctor`", note);
    if (ops->current() < 0 && ctx->env.local_rank < 0) return PEN_OK; /* again when it is known */
    const int local   = ctx->env.local_rank;
    const int device  = ops->current() >= 0 ? ops->current() : local % ops->count();
    pen_status status = create(ctx, ops, device, why);
    if (status == PEN_OK) ctx->mirror->holds = true;
    return status;
}

void mirror_destroy(pen_ctx *ctx)
{
    if (ctx->mirror != NULL) destroy(ctx->mirror);
    ctx->mirror = NULL;
}

int mirror_device(const pen_ctx *ctx)
{
    return ctx->mirror != NULL ? ctx->mirror->twins.device : -1;
}

/* ---- memory ------------------------------------------------------------------------------------ */
/* Makes the device of `data` that of the context; *is_host: host memory. */
static pen_status meet_device(pen_tensor *t, const void *data, bool *is_host, pen_error *why)
{
    const device_ops *ops = device_of(data);
    *is_host              = device_is_host(ops);
    if (*is_host) return PEN_OK;
    const int device = ops->device(data);
    if (mirror_of(t) == NULL) return create(t->ctx, ops, device, why);
    if (mirror_device(t->ctx) == device) return PEN_OK;
    return why_set(
        why, PEN_INVALID_ARGUMENT,
        "'%s' is on %s device %d, but this context uses device %d; run one process for each device",
        t->name, ops->name, device, mirror_device(t->ctx));
}

static pen_status make_room(pen_tensor *t, pen_error *why)
{
    if (t->mirror == NULL) t->mirror = calloc(1, sizeof *t->mirror);
    return t->mirror != NULL ? PEN_OK : mirror_no_memory(why);
}

/* A pinned pair with `data` as its device side: the old pair with a new address, or a new pair. */
static pen_status place(pen_tensor *t, twin **w, void *data, size_t bytes, stat_id level,
                        pen_error *why)
{
    if (*w != NULL) {
        (*w)->device = data;
        (*w)->is_old = true;
        return PEN_OK;
    }
    *w = twin_new(&mirror_of(t)->twins, data, bytes, why);
    if (*w == NULL) return why->status;
    stat_hold(&t->ctx->stats, level, (int64_t)bytes);
    return PEN_OK;
}

static void unplace(pen_tensor *t, twin **w, stat_id level)
{
    if (*w == NULL) return;
    stat_hold(&t->ctx->stats, level, -(int64_t)(*w)->bytes);
    twin_free(&mirror_of(t)->twins, *w);
    *w = NULL;
}

pen_status mirror_place(pen_tensor *t, pen_what what, void *data, pen_error *why)
{
    const bool is_param = what == PEN_PARAM;
    const size_t bytes  = is_param ? t->bytes : t->grad_bytes;
    const stat_id level = is_param ? STAT_PARAM_BYTES : STAT_GRAD_BYTES;
    void **at           = is_param ? &t->param : &t->grad;
    bool is_host;
    if (meet_device(t, data, &is_host, why) != PEN_OK) return why->status;
    if (!is_host && make_room(t, why) != PEN_OK) return why->status;
    twin **w = t->mirror == NULL ? NULL : is_param ? &t->mirror->values : &t->mirror->grad;
    if (is_host) {
        if (w != NULL) unplace(t, w, level);
        *at = data;
        return PEN_OK;
    }
    const void *before = is_param && *w == NULL ? t->param : NULL;
    if (place(t, w, data, bytes, level, why) != PEN_OK) return why->status;
    *at = (*w)->host;
    if (before == NULL) return PEN_OK;
    memcpy(*at, before, bytes);
    (*w)->is_old = true;
    return PEN_OK;
}

void mirror_forget(pen_tensor *t)
{
    struct mirror_tensor *x = t->mirror;
    if (x == NULL) return;
    const device_ops *ops = mirror_of(t)->twins.ops;
    unplace(t, &x->values, STAT_PARAM_BYTES);
    unplace(t, &x->grad, STAT_GRAD_BYTES);
    ops->free(x->sum);
    ops->free(x->narrowed);
    free(x);
    t->mirror = NULL;
}

bool mirror_holds(const pen_ctx *ctx)
{
    return ctx->mirror != NULL && ctx->mirror->holds;
}

twin *mirror_take(pen_tensor *t, size_t bytes, pen_error *why)
{
    if (make_room(t, why) != PEN_OK) return NULL;
    return twin_take(&mirror_of(t)->twins, bytes, why);
}

void mirror_put(pen_tensor *t, twin *w)
{
    twin_put(&mirror_of(t)->twins, w);
}

/* After the kernels that used these bytes for another tensor, on any stream. */
pen_status mirror_zero(pen_tensor *t, twin *w, pen_error *why)
{
    mirror *m                  = mirror_of(t);
    const device_ops *ops      = m->twins.ops;
    const device_stream stream = atomic_load(&m->stream);
    pen_status status          = ops->enter(m->twins.device, why);
    if (status != PEN_OK) return status;
    status = ops->stream_wait(stream, w->used, why);
    if (status == PEN_OK) status = ops->zero(w->device, w->bytes, stream, why);
    ops->leave();
    return status;
}

/* ---- explicit verbs -------------------------------------------------------------------------- */
twin *mirror_lend(pen_tensor *t, void *data, size_t bytes, bool is_read, void *stream,
                  pen_error *why)
{
    bool is_host;
    why->status = PEN_OK;
    if (meet_device(t, data, &is_host, why) != PEN_OK || is_host) return NULL;
    mirror *m = mirror_of(t);
    twin *w   = twin_new(&m->twins, data, bytes, why);
    if (w == NULL) return NULL;
    pen_status status = is_read ? twin_down(&m->twins, w, data, stream, why)
                                : twin_note_use(&m->twins, w, stream, why);
    if (status == PEN_OK && is_read)
        status = twin_wait(&m->twins, w->moved, t->ctx->settings.deadline_ms, why);
    if (status == PEN_OK) return w;
    twin_free(&m->twins, w);
    return NULL;
}

pen_status mirror_unlend(pen_tensor *t, twin *lent, bool is_written, pen_error *why)
{
    mirror *m         = mirror_of(t);
    pen_status status = PEN_OK;
    if (lent == NULL) return PEN_OK;
    if (is_written) status = twin_up(&m->twins, lent, why);
    if (is_written && status == PEN_OK)
        status = twin_wait(&m->twins, lent->moved, t->ctx->settings.deadline_ms, why);
    twin_free(&m->twins, lent);
    return status;
}

pen_status mirror_fetch_grad(pen_tensor *t, void *stream, pen_error *why)
{
    mirror *m = mirror_of(t);
    if (!mirror_has_grad(t)) return PEN_OK;
    twin *w           = t->mirror->grad;
    pen_status status = twin_down(&m->twins, w, w->device, stream, why);
    return status == PEN_OK ? twin_wait(&m->twins, w->moved, t->ctx->settings.deadline_ms, why)
                            : status;
}
