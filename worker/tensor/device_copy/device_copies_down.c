/* device_copies_down.c - gradients, from a device to the host. */
#include "worker/tensor/device_copy/device_copies_internal.h"

#include "common/base/why.h"
#include "common/containers/list.h"
#include "common/system/fp_env.h"
#include "common/trace/trace.h"

#include <stdlib.h>

/* ---- the thread that waits for copies ------------------------------------------------------------ */
static bool is_gradient(const device_copies_job *j)
{
    return !j->is_up && j->done == NULL;
}

/* Nobody waits for its end: values that go up, which the timeline shows. */
static bool is_for_timeline(const device_copies_job *j)
{
    return j->is_up && j->done == NULL;
}

pen_status device_copies_add_job(const pen_ctx *ctx, const device_copies_job *job, pen_error *why)
{
    device_copies *m = ctx->memory.device_copies;
    if (m->is_stopping) return why_set(why, PEN_ABORTED, "the context ends");
    device_copies_job *j = malloc(sizeof *j);
    if (j == NULL) return device_copies_no_memory(why);
    *j          = *job;
    j->step     = atomic_load(&ctx->step_index);
    j->begun_ns = trace_begin();
    LIST_APPEND(m->jobs, j);
    m->n_down += is_gradient(j);
    pthread_cond_signal(&m->comes);
    return PEN_OK;
}

static device_copies_job *next_job(device_copies *m)
{
    pthread_mutex_lock(&m->lock);
    while (m->jobs == NULL && !m->is_stopping) pthread_cond_wait(&m->comes, &m->lock);
    device_copies_job *j = m->jobs;
    if (m->is_stopping && j != NULL && !is_for_timeline(j)) j = NULL;
    pthread_mutex_unlock(&m->lock);
    return j;
}

static void end_job(device_copies *m, device_copies_job *j)
{
    pthread_mutex_lock(&m->lock);
    LIST_REMOVE(m->jobs, j);
    m->n_down -= is_gradient(j);
    if (m->n_down == 0) pthread_cond_broadcast(&m->drained);
    pthread_mutex_unlock(&m->lock);
    free(j);
}

static const char *name_of(const device_copies_job *j)
{
    return j->tensor != NULL ? j->tensor->name : "own share";
}

/* The timed interval of a gradient's copy begins when the gradient is computed. */
static pen_status await_gradient(const pen_ctx *ctx, device_copies_job *j, pen_error *why)
{
    const pen_status status =
        pinned_pair_wait(&ctx->memory.device_copies->pinned_pairs, j->pinned_pair->used,
                         ctx->settings.deadline_ms, why);
    if (j->begun_ns != 0) j->begun_ns = trace_begin();
    return status;
}

static pen_status await_job(const pen_ctx *ctx, device_copies_job *j, pen_error *why)
{
    pen_status status = j->is_up ? PEN_OK : await_gradient(ctx, j, why);
    if (status == PEN_OK)
        status = pinned_pair_wait(&ctx->memory.device_copies->pinned_pairs, j->pinned_pair->moved,
                                  ctx->settings.deadline_ms, why);
    if (status == PEN_OK) return PEN_OK;
    const pen_error found = *why;
    why_set(why, status, "the gradient of '%s': %.400s", name_of(j), found.text);
    why_culprit(why, PEN_WORKER, ctx->env.rank, j->step, name_of(j));
    return status;
}

static void *copier(void *arg)
{
    pen_ctx *ctx     = arg;
    device_copies *m = ctx->memory.device_copies;
    pen_error why;
    fp_env_set_ours();
    trace_thread("pen-copy", PEN_WORKER, ctx->env.rank);
    for (device_copies_job *j; (j = next_job(m)) != NULL; end_job(m, j)) {
        const pen_status status = await_job(ctx, j, &why);
        trace_span(
            j->is_up ? TRACE_COPY_UP : TRACE_COPY_DOWN, j->begun_ns,
            &(trace_note){.step = j->step, .bytes = j->pinned_pair->bytes, .label = name_of(j)});
        const pen_error *failure = status != PEN_OK ? &why : NULL;
        if (is_gradient(j))
            m->deliver(ctx, j->tensor, j->pinned_pair->host, failure);
        else if (j->done != NULL)
            j->done(j->user, failure);
    }
    return NULL;
}

void device_copies_drain(pen_ctx *ctx)
{
    device_copies *m = ctx->memory.device_copies;
    if (m == NULL) return;
    pthread_mutex_lock(&m->lock);
    while (m->n_down > 0 && !m->is_stopping) pthread_cond_wait(&m->drained, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

void device_copies_stop(pen_ctx *ctx)
{
    device_copies *m = ctx->memory.device_copies;
    if (m == NULL || !m->has_thread) return;
    pthread_mutex_lock(&m->lock);
    m->is_stopping = true;
    pinned_pairs_hurry(&m->pinned_pairs);
    pthread_cond_broadcast(&m->comes);
    pthread_cond_broadcast(&m->drained);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    m->has_thread = false;
    /* Ends the jobs that are left: a strategy may be waiting for its own. */
    pen_error why;
    why_set(&why, PEN_ABORTED, "the context ends");
    LIST_EACH(j, m->jobs) {
        if (j->done != NULL) j->done(j->user, &why);
        free(j);
    }
    m->jobs = NULL;
}

pen_status device_copies_begin_thread(pen_ctx *ctx, pen_error *why)
{
    device_copies *m = ctx->memory.device_copies;
    if (pthread_create(&m->thread, NULL, copier, ctx) != 0)
        return why_set(why, PEN_NO_MEMORY,
                       "cannot start the thread that waits for copies of a device");
    m->has_thread = true;
    pthread_setname_np(m->thread, "pen-copy");
    return PEN_OK;
}

/* ---- gradients --------------------------------------------------------------------------------- */
static pen_status device_memory(device_copies *m, void **data, size_t bytes, pen_error *why)
{
    if (*data == NULL) *data = m->pinned_pairs.ops->alloc(bytes, m->pinned_pairs.device, why);
    return *data != NULL ? PEN_OK : why->status;
}

static pen_status add_up(pen_tensor *t, pen_error *why)
{
    device_copies *m               = device_copies_of(t);
    struct device_copies_tensor *x = t->device_copies;
    void *sum                      = x->sum;
    const bool is_first            = (t->slot.sums & GRAD_SUM_ON_DEVICE) == 0;
    if (device_memory(m, &sum, t->elements * sizeof(float), why) != PEN_OK) return why->status;
    x->sum = sum;
    pen_status status =
        m->pinned_pairs.ops->accumulate(x->sum, x->grad->device, t->desc.grad_dtype, t->elements,
                                        is_first, device_copies_stream(t), why);
    t->slot.sums &= ~GRAD_SUM_ON_DEVICE;
    if (status == PEN_OK) t->slot.sums |= GRAD_SUM_ON_DEVICE;
    return status;
}

static pen_status accumulate(pen_tensor *t, pen_error *why)
{
    device_copies *m = device_copies_of(t);
    pthread_mutex_lock(&m->lock);
    pen_status status = add_up(t, why);
    if (status == PEN_OK)
        status = pinned_pair_note_use(&m->pinned_pairs, t->device_copies->grad,
                                      device_copies_stream(t), why);
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* *from: the bytes to send, on the device. */
static pen_status settle_sum(pen_tensor *t, bool with_grad, const void **from, pen_error *why)
{
    device_copies *m               = device_copies_of(t);
    struct device_copies_tensor *x = t->device_copies;
    *from                          = x->grad->device;
    if ((t->slot.sums & GRAD_SUM_ON_DEVICE) == 0) return PEN_OK;
    if (with_grad && add_up(t, why) != PEN_OK) return why->status;
    t->slot.sums &= ~GRAD_SUM_ON_DEVICE;
    *from = x->sum;
    if (t->desc.grad_dtype == PEN_F32) return PEN_OK;
    if (device_memory(m, &x->narrowed, t->grad_bytes, why) != PEN_OK) return why->status;
    *from = x->narrowed;
    return m->pinned_pairs.ops->narrow(x->narrowed, x->sum, t->desc.grad_dtype, t->elements,
                                       device_copies_stream(t), why);
}

pen_status device_copies_copy(pen_tensor *t, bool with_grad, pen_error *why)
{
    device_copies *m = device_copies_of(t);
    const void *from;
    pthread_mutex_lock(&m->lock);
    pen_status status = settle_sum(t, with_grad, &from, why);
    if (status == PEN_OK)
        status = pinned_pair_down(&m->pinned_pairs, t->device_copies->grad, from, TRAFFIC_GRAD,
                                  device_copies_stream(t), why);
    if (status == PEN_OK)
        status = device_copies_add_job(
            t->ctx, &(device_copies_job){.tensor = t, .pinned_pair = t->device_copies->grad}, why);
    pthread_mutex_unlock(&m->lock);
    return status;
}

pen_status device_copies_bring(pen_tensor *t, const device_stream *stream, bool goes,
                               const void **grad, device_copies_way *way, pen_error *why)
{
    const bool works_there = space_is_device(&t->ctx->memory.work);
    const bool is_there    = t->device_copies != NULL && t->device_copies->grad != NULL;
    const bool is_tied     = t->tied_to != NULL || t->next_alias != NULL;
    *way                   = DEVICE_COPIES_HERE;
    if (*grad == NULL) return PEN_OK;
    if (!is_there && works_there)
        return why_set(why, PEN_UNSUPPORTED,
                       "pen_ready('%s'): the gradient is in host memory, but this job sums and "
                       "updates on device %d; bind device memory before pen_commit()",
                       t->name, device_copies_device(t->ctx));
    if (!is_there) return PEN_OK;
    if (device_copies_note_stream(t, stream, why) != PEN_OK) return why->status;
    if (works_there) {
        *grad = t->device_copies->grad->device;
        return PEN_OK;
    }
    *way = goes || is_tied ? DEVICE_COPIES_COMES : DEVICE_COPIES_ADDED;
    return *way == DEVICE_COPIES_COMES ? device_copies_copy(t, true, why) : accumulate(t, why);
}
