/* mirror.c - gradients down, values up, and the thread that waits for copies. */
#include "worker/mirror.h"

#include "common/trace.h"
#include "common/why.h"
#include "worker/context.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { AHEAD = 2 }; /* units that may be released and not computed yet */

typedef struct job { /* a copy under way */
    struct job *next;
    pen_tensor *tensor;
    twin *twin;
    bool is_up;
    uint64_t begun_ns;
} job;

struct mirror {
    twin_set twins;
    mirror_deliver_fn deliver;
    bool holds; /* memory of the SDK lies on the device too */
    bool has_thread;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t comes, drained;
    job *first, *last; /* under the lock, as is all below and every twin of a tensor */
    uint32_t n_down;   /* gradients that are not handed over yet */
    bool is_stopping;
    _Atomic device_stream stream; /* the program's */
    device_event *ahead[AHEAD];
    uint64_t n_released;
};

static mirror *mirror_of(const pen_tensor *t)
{
    return t->ctx->mirror;
}

/* ---- life ------------------------------------------------------------------------------------- */
static pen_status no_memory(pen_error *why)
{
    return why_set(why, PEN_NO_MEMORY, "no memory for tensors on a device");
}

static void destroy(mirror *m)
{
    for (int i = 0; i < AHEAD; i++)
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
    if (m == NULL) return no_memory(why);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->comes, NULL);
    pthread_cond_init(&m->drained, NULL);
    pen_status status = twins_open(&m->twins, ops, device, why);
    for (int i = 0; i < AHEAD && status == PEN_OK; i++) {
        m->ahead[i] = ops->event_new();
        if (m->ahead[i] == NULL) status = no_memory(why);
    }
    if (status == PEN_OK)
        ctx->mirror = m;
    else
        destroy(m);
    return status;
}

pen_status mirror_open(pen_ctx *ctx, pen_error *why)
{
    const device_ops *ops = device_all[0];
    char note[256];
    if (ctx->settings.device == WORKER_DEVICE_HOST) return PEN_OK;
    if (device_all[1] == NULL || !ops->available(note, sizeof note))
        return why_set(why, PEN_UNSUPPORTED,
                       "device=cuda: %s; say device=host, or see `penstock doctor`",
                       device_all[1] == NULL ? "this build has no CUDA device" : note);
    const int local   = ctx->env.local_rank > 0 ? ctx->env.local_rank : 0;
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
/* The device of `data`, made known to the context; *is_host: it needs none. */
static pen_status meet_device(pen_tensor *t, const void *data, bool *is_host, pen_error *why)
{
    const device_ops *ops = data != NULL ? device_of(data) : NULL;
    *is_host              = ops == NULL || strcmp(ops->name, "cpu") == 0;
    if (*is_host) return PEN_OK;
    const int device = ops->device(data);
    if (mirror_of(t) == NULL) return create(t->ctx, ops, device, why);
    if (mirror_device(t->ctx) == device) return PEN_OK;
    return why_set(
        why, PEN_INVALID_ARGUMENT,
        "'%s' lies on %s device %d, and this context works on device %d; one process for "
        "each device is usual",
        t->name, ops->name, device, mirror_device(t->ctx));
}

static pen_status make_room(pen_tensor *t, pen_error *why)
{
    if (t->mirror == NULL) t->mirror = calloc(1, sizeof *t->mirror);
    return t->mirror != NULL ? PEN_OK : no_memory(why);
}

/* A twin whose device's side is `data`: that of before with another address, or a new one. */
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

pen_status mirror_place_param(pen_tensor *t, void *data, pen_error *why)
{
    bool is_host;
    if (meet_device(t, data, &is_host, why) != PEN_OK) return why->status;
    if (is_host) {
        if (t->mirror != NULL) unplace(t, &t->mirror->values, STAT_PARAM_BYTES);
        t->param = data;
        return PEN_OK;
    }
    if (make_room(t, why) != PEN_OK) return why->status;
    const void *before = t->mirror->values == NULL ? t->param : NULL;
    if (place(t, &t->mirror->values, data, t->bytes, STAT_PARAM_BYTES, why) != PEN_OK)
        return why->status;
    t->param = t->mirror->values->host;
    if (before == NULL) return PEN_OK;
    memcpy(t->param, before, t->bytes);
    t->mirror->values->is_old = true;
    return PEN_OK;
}

pen_status mirror_place_grad(pen_tensor *t, void *data, pen_error *why)
{
    bool is_host;
    if (meet_device(t, data, &is_host, why) != PEN_OK) return why->status;
    if (is_host) {
        if (t->mirror != NULL) unplace(t, &t->mirror->grad, STAT_GRAD_BYTES);
        t->grad = data;
        return PEN_OK;
    }
    if (make_room(t, why) != PEN_OK) return why->status;
    if (place(t, &t->mirror->grad, data, t->grad_bytes, STAT_GRAD_BYTES, why) != PEN_OK)
        return why->status;
    t->grad = t->mirror->grad->host;
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

/* Kernels that used these bytes for another tensor come first, on whichever stream they are. */
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

/* ---- the thread that waits for copies ------------------------------------------------------------ */
/* With the lock held. */
static pen_status add_job(mirror *m, pen_tensor *t, twin *w, bool is_up, pen_error *why)
{
    job *j = calloc(1, sizeof *j);
    if (j == NULL) return no_memory(why);
    *j = (job){.tensor = t, .twin = w, .is_up = is_up, .begun_ns = trace_begin()};
    *(m->last != NULL ? &m->last->next : &m->first) = j;
    m->last                                         = j;
    m->n_down += !is_up;
    pthread_cond_signal(&m->comes);
    return PEN_OK;
}

static job *next_job(mirror *m)
{
    pthread_mutex_lock(&m->lock);
    while (m->first == NULL && !m->is_stopping) pthread_cond_wait(&m->comes, &m->lock);
    job *j = m->is_stopping ? NULL : m->first;
    pthread_mutex_unlock(&m->lock);
    return j;
}

static void end_job(mirror *m, job *j)
{
    pthread_mutex_lock(&m->lock);
    m->first = j->next;
    if (m->first == NULL) m->last = NULL;
    m->n_down -= !j->is_up;
    if (m->n_down == 0) pthread_cond_broadcast(&m->drained);
    pthread_mutex_unlock(&m->lock);
    free(j);
}

/* Until the copy is done; a gradient's, from when it is computed on. */
static pen_status await_job(const pen_ctx *ctx, job *j, pen_error *why)
{
    const twin_set *twins  = &ctx->mirror->twins;
    const int64_t deadline = ctx->settings.deadline_ms;
    pen_status status      = PEN_OK;
    if (!j->is_up) {
        status = twin_wait(twins, j->twin->used, deadline, why);
        if (j->begun_ns != 0) j->begun_ns = trace_begin();
    }
    if (status == PEN_OK) status = twin_wait(twins, j->twin->moved, deadline, why);
    if (status == PEN_OK) return PEN_OK;
    const pen_error found = *why;
    why_set(why, status, "the gradient of '%s': %.400s", j->tensor->name, found.text);
    why_culprit(why, PEN_WORKER, ctx->env.rank, atomic_load(&ctx->step_index), j->tensor->name);
    return status;
}

static void *copier(void *arg)
{
    pen_ctx *ctx = arg;
    mirror *m    = ctx->mirror;
    pen_error why;
    trace_thread("pen-copy", PEN_WORKER, ctx->env.rank);
    for (job *j; (j = next_job(m)) != NULL; end_job(m, j)) {
        const pen_status status = await_job(ctx, j, &why);
        trace_span(j->is_up ? TRACE_COPY_UP : TRACE_COPY_DOWN, j->begun_ns,
                   &(trace_note){.step  = atomic_load(&ctx->step_index),
                                 .bytes = j->twin->bytes,
                                 .label = j->tensor->name});
        if (!j->is_up) m->deliver(ctx, j->tensor, j->twin->host, status != PEN_OK ? &why : NULL);
    }
    return NULL;
}

void mirror_drain(pen_ctx *ctx)
{
    mirror *m = ctx->mirror;
    if (m == NULL) return;
    pthread_mutex_lock(&m->lock);
    while (m->n_down > 0 && !m->is_stopping) pthread_cond_wait(&m->drained, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

void mirror_stop(pen_ctx *ctx)
{
    mirror *m = ctx->mirror;
    if (m == NULL || !m->has_thread) return;
    pthread_mutex_lock(&m->lock);
    m->is_stopping = true;
    pthread_cond_broadcast(&m->comes);
    pthread_cond_broadcast(&m->drained);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    m->has_thread = false;
    for (job *j; (j = m->first) != NULL;) {
        m->first = j->next;
        free(j);
    }
}

/* ---- gradients --------------------------------------------------------------------------------- */
static pen_status device_memory(mirror *m, void **data, size_t bytes, pen_error *why)
{
    if (*data == NULL) *data = m->twins.ops->alloc(bytes, m->twins.device, why);
    return *data != NULL ? PEN_OK : why->status;
}

static pen_status add_up(pen_tensor *t, pen_error *why)
{
    mirror *m               = mirror_of(t);
    struct mirror_tensor *x = t->mirror;
    void *sum               = x->sum;
    if (device_memory(m, &sum, t->elements * sizeof(float), why) != PEN_OK) return why->status;
    x->sum            = sum;
    pen_status status = m->twins.ops->accumulate(x->sum, x->grad->device, t->desc.grad_dtype,
                                                 t->elements, !x->has_sum, m->stream, why);
    x->has_sum        = status == PEN_OK;
    return status;
}

pen_status mirror_accumulate(pen_tensor *t, pen_error *why)
{
    mirror *m = mirror_of(t);
    pthread_mutex_lock(&m->lock);
    pen_status status = add_up(t, why);
    if (status == PEN_OK) status = twin_note_use(&m->twins, t->mirror->grad, m->stream, why);
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* Where what travels is, on the device. */
static pen_status settle_sum(pen_tensor *t, bool with_grad, const void **from, pen_error *why)
{
    mirror *m               = mirror_of(t);
    struct mirror_tensor *x = t->mirror;
    *from                   = x->grad->device;
    if (!x->has_sum) return PEN_OK;
    if (with_grad && add_up(t, why) != PEN_OK) return why->status;
    x->has_sum = false;
    *from      = x->sum;
    if (t->desc.grad_dtype == PEN_F32) return PEN_OK;
    if (device_memory(m, &x->narrowed, t->grad_bytes, why) != PEN_OK) return why->status;
    *from = x->narrowed;
    return m->twins.ops->narrow(x->narrowed, x->sum, t->desc.grad_dtype, t->elements, m->stream,
                                why);
}

pen_status mirror_copy(pen_tensor *t, bool with_grad, pen_error *why)
{
    mirror *m = mirror_of(t);
    const void *from;
    pthread_mutex_lock(&m->lock);
    pen_status status = settle_sum(t, with_grad, &from, why);
    if (status == PEN_OK) status = twin_down(&m->twins, t->mirror->grad, from, m->stream, why);
    if (status == PEN_OK) status = add_job(m, t, t->mirror->grad, false, why);
    if (status == PEN_OK) t->mirror->is_copying = true;
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* ---- values --------------------------------------------------------------------------------------- */
/* Of a tensor that comes and goes, only while its unit is in use. */
static twin *values_of(const pen_tensor *t)
{
    return t->mirror != NULL ? t->mirror->values : NULL;
}

static pen_status bring(mirror *m, pen_tensor *t, twin **newest, pen_error *why)
{
    twin *w = values_of(t);
    if (w == NULL || !w->is_old) return PEN_OK;
    pen_status status = twin_up(&m->twins, w, why);
    if (status == PEN_OK && trace_on()) status = add_job(m, t, w, true, why);
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
    device_event *older = m->n_released >= AHEAD ? m->ahead[m->n_released % AHEAD] : NULL;
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
        status = m->twins.ops->event_record(m->ahead[m->n_released++ % AHEAD], stream, why);
    pthread_mutex_unlock(&m->lock);
    m->twins.ops->leave();
    return status;
}

/* The program's stream may still read what it was told to read before. */
static pen_status age(mirror *m, pen_ctx *ctx, pen_error *why)
{
    pen_status status = PEN_OK;
    pthread_mutex_lock(&ctx->held_lock); /* units in use may be dropped meanwhile */
    for (uint32_t i = 0; i < ctx->model.n_tensors && status == PEN_OK; i++) {
        twin *w = values_of(ctx->model.tensor[i]);
        if (w == NULL) continue;
        w->is_old = true;
        status    = twin_note_use(&m->twins, w, m->stream, why);
    }
    pthread_mutex_unlock(&ctx->held_lock);
    return status;
}

pen_status mirror_changed(pen_ctx *ctx, bool waits, pen_error *why)
{
    mirror *m    = ctx->mirror;
    twin *newest = NULL;
    if (m == NULL) return PEN_OK;
    pthread_mutex_lock(&m->lock);
    pen_status status = age(m, ctx, why);
    if (status == PEN_OK && waits) status = bring_all(m, &ctx->model, &newest, why);
    pthread_mutex_unlock(&m->lock);
    if (status == PEN_OK && newest != NULL)
        status = twin_wait(&m->twins, newest->moved, ctx->settings.deadline_ms, why);
    return status;
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
/* What the program wrote on the device before it commits; what is drawn is drawn on the host. */
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
    if (pthread_create(&m->thread, NULL, copier, ctx) != 0)
        return why_set(why, PEN_NO_MEMORY, "no thread to wait for copies of a device");
    m->has_thread = true;
    pthread_setname_np(m->thread, "pen-copy");
    return PEN_OK;
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
