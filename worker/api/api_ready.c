/* api_ready.c - pen_ready and pen_step_micro, and the path of a gradient to the strategy. */
#include "worker/api/api.h"

#include "common/base/clock.h"
#include "common/base/why.h"
#include "common/system/fp_env.h"
#include "common/trace/trace.h"
#include "worker/step_open.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/tensor/grad_sum.h"
#include "worker/tensor/param_memory.h"
#include "worker/tensor/stack.h"

bool api_is_last_micro(const pen_ctx *ctx)
{
    return (uint64_t)ctx->step.micro + 1 >= ctx->settings.accum;
}

pen_status api_ask(pen_ctx *ctx, pen_tensor *t, grad_event event, pen_error *why)
{
    pthread_mutex_lock(&ctx->step.lock);
    const pen_status status = grad_slot_move(&t->slot, event, t->name, ctx->step.next_index, why);
    pthread_mutex_unlock(&ctx->step.lock);
    return status;
}

/* ---- one gradient, where the strategy works ------------------------------------------------------ */
/* Only gradients of the last micro-batch are sent, unless the strategy sums each one. */
static bool goes_now(const pen_ctx *ctx)
{
    return api_is_last_micro(ctx) || ctx->reduces_each;
}

/* A tensor is ready when all its names are.  Memory of the SDK is lent before the strategy is called,
 * because the strategy may return it at once. */
static pen_status offer(pen_ctx *ctx, pen_tensor *t, const void *grad, pen_error *why)
{
    const int64_t step = ctx->step.next_index;
    const bool goes    = goes_now(ctx);
    pen_tensor *base   = tied_base(t);
    const void *sum    = grad;
    pen_status status  = grad_slot_move(&t->slot, GRAD_OFFER, t->name, step, why);
    t->slot.bytes      = grad;
    if (base->next_alias != NULL && status == PEN_OK) {
        if (!tied_is_complete(base)) return PEN_OK;
        status = grad_sum_names(base, &sum, why);
    }
    if (status == PEN_OK && !goes) status = grad_sum_add(base, sum, why);
    if (status == PEN_OK && goes && (base->slot.sums & GRAD_SUM_KEPT) != 0)
        status = grad_sum_take(base, sum, &sum, why);
    if (status == PEN_OK && goes && !ctx->step.is_open) status = step_open(ctx, why);
    for (pen_tensor *n = base; n != NULL && status == PEN_OK; n = n->next_alias) {
        if (!n->trained) continue;
        status = grad_slot_move(&n->slot, goes ? GRAD_LEND : GRAD_ADD, n->name, step, why);
        if (n->slot.bytes != NULL) param_grad_pass(n, goes ? sum : NULL);
    }
    if (status != PEN_OK || !goes) return status;
    trace_moment(TRACE_READY, &(trace_note){.step = step, .label = base->name});
    ctx->strategy->ops->ready(ctx->strategy, base, sum);
    return PEN_OK;
}

/* ---- from a device to a strategy on the host --------------------------------------------------------- */
void api_deliver(pen_ctx *ctx, pen_tensor *t, const void *grad, const pen_error *failure)
{
    pen_error why;
    pthread_mutex_lock(&ctx->step.lock);
    if (failure != NULL || atomic_load(&ctx->has_failed))
        (void)grad_slot_move(&t->slot, GRAD_FAIL, t->name, ctx->step.next_index, NULL);
    else if (offer(ctx, t, grad, &why) != PEN_OK)
        failure = &why;
    if (failure != NULL) context_remember(&ctx->step.remembered, failure);
    pthread_mutex_unlock(&ctx->step.lock);
}

void api_send_sums(pen_ctx *ctx)
{
    pen_error why;
    pthread_mutex_lock(&ctx->step.lock);
    for (uint32_t i = 0; i < ctx->model.n_tensors && api_is_last_micro(ctx); i++) {
        pen_tensor *t = ctx->model.tensor[i];
        if ((t->slot.sums & GRAD_SUM_ON_DEVICE) == 0 || grad_slot_state(&t->slot) != GRAD_PROGRAM ||
            (t->desc.flags & PEN_ZERO_IF_UNUSED) == 0)
            continue;
        pen_status status = PEN_OK;
        if (t->grad == NULL && param_grad(t, &why) == NULL) status = why.status;
        if (status == PEN_OK) status = device_copies_copy(t, false, &why);
        if (status == PEN_OK)
            status = grad_slot_move(&t->slot, GRAD_COPY, t->name, ctx->step.next_index, &why);
        if (status != PEN_OK) context_remember(&ctx->step.remembered, &why);
    }
    pthread_mutex_unlock(&ctx->step.lock);
}

/* ---- missing gradients ------------------------------------------------------------------------- */
static bool is_missing(const pen_tensor *t)
{
    return t->trained && grad_slot_state(&t->slot) < GRAD_OFFERED;
}

/* Some of its names were made ready in this micro-batch. */
static bool is_begun(const pen_tensor *base)
{
    for (const pen_tensor *t = base; t != NULL; t = t->next_alias)
        if (t->trained && !is_missing(t)) return true;
    return false;
}

/* They count as zeros: all of them, or only the other names of tensors that were used. */
static pen_status offer_missing(pen_ctx *ctx, bool are_all, pen_error *why)
{
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < model_names(&ctx->model) && status == PEN_OK; i++) {
        pen_tensor *t = model_name(&ctx->model, i);
        if (is_missing(t) && (are_all || is_begun(tied_base(t)))) status = offer(ctx, t, NULL, why);
    }
    return status;
}

pen_status api_close_gradients(pen_ctx *ctx, pen_error *why)
{
    const int64_t step = ctx->step.next_index;
    for (uint32_t i = 0; i < model_names(&ctx->model); i++) {
        pen_tensor *t = model_name(&ctx->model, i);
        if (!t->trained || (t->desc.flags & PEN_ZERO_IF_UNUSED) != 0) continue;
        if (grad_slot_move(&t->slot, GRAD_CLOSE, t->name, step, why) == PEN_OK) continue;
        why_culprit(why, PEN_WORKER, ctx->env.rank, step, t->name);
        return why->status;
    }
    const pen_status status = offer_missing(ctx, true, why);
    /* A model with nothing to train still steps. */
    return status == PEN_OK && !ctx->step.is_open ? step_open(ctx, why) : status;
}

/* ---- micro-batches ------------------------------------------------------------------------------- */
static pen_status begin_micro(pen_ctx *ctx, int m, pen_error *why)
{
    context_step *s = &ctx->step;
    if (ctx->phase != CONTEXT_COMMITTED || !s->is_begun)
        return why_set(why, PEN_WRONG_STATE,
                       "pen_step_micro(%d): no step is begun; the order is: register, then commit, "
                       "then step",
                       m);
    if (m < 0 || (uint64_t)m >= ctx->settings.accum)
        return why_set(
            why, PEN_INVALID_ARGUMENT,
            "pen_step_micro(%d): a step has %llu micro-batches (setting accum), numbered from 0", m,
            (unsigned long long)ctx->settings.accum);
    if (m != s->micro && m != s->micro + 1)
        return why_set(
            why, PEN_WRONG_STATE,
            "pen_step_micro(%d): expected %d or the next one; micro-batches come in order", m,
            s->micro);
    if (m == s->micro) return PEN_OK;
    /* When each micro-batch is summed over the ranks, every rank adds something to it, at least zeros. */
    if (offer_missing(ctx, ctx->reduces_each, why) != PEN_OK) return why->status;
    s->micro = m;
    progress_enter(&s->progress, PROGRESS_FORWARD, clock_ns(&clock_real));
    for (uint32_t i = 0; i < model_names(&ctx->model); i++) {
        pen_tensor *t = model_name(&ctx->model, i);
        (void)grad_slot_move(&t->slot, GRAD_NEXT, t->name, s->next_index, NULL);
        param_grad_begin(t);
    }
    return PEN_OK;
}

pen_status pen_step_micro(pen_ctx *ctx, int m)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_enter(ctx, "pen_step_micro", false);
    if (status != PEN_OK) return status;
    device_copies_drain(ctx);
    status = api_lock_step(ctx, "pen_step_micro");
    if (status != PEN_OK) return status;
    status = begin_micro(ctx, m, &why);
    if (status != PEN_OK) context_remember(&ctx->step.remembered, &why);
    pthread_mutex_unlock(&ctx->step.lock);
    return status;
}

/* ---- pen_ready ----------------------------------------------------------------------------------- */
/* stream NULL: the newest one that the program named. */
static pen_status ready_one(pen_ctx *ctx, pen_tensor *t, const device_stream *stream,
                            pen_error *why)
{
    progress_gradient(&ctx->step.progress, clock_ns(&clock_real));
    ctx->step.has_last_gradients |= api_is_last_micro(ctx);
    if (!t->trained)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "pen_ready('%s'): a frozen tensor has no gradient", t->name);
    if (grad_slot_move(&t->slot, GRAD_READY, t->name, ctx->step.next_index, why) != PEN_OK)
        return why->status;
    const void *grad = t->grad != NULL ? t->grad : param_grad_seen(t);
    if (grad == NULL && (t->desc.flags & PEN_ZERO_IF_UNUSED) == 0)
        return why_set(why, PEN_WRONG_STATE,
                       "pen_ready('%s'): missing gradient buffer; pass one to pen_register or "
                       "pen_bind, or write to pen_view(PEN_GRAD)",
                       t->name);
    device_copies_way way;
    if (device_copies_bring(t, stream, goes_now(ctx), &grad, &way, why) != PEN_OK)
        return why->status;
    if (way == DEVICE_COPIES_HERE) return offer(ctx, t, grad, why);
    if (way == DEVICE_COPIES_ADDED) param_grad_pass(t, NULL);
    return grad_slot_move(&t->slot, way == DEVICE_COPIES_ADDED ? GRAD_ADD : GRAD_COPY, t->name,
                          ctx->step.next_index, why);
}

static pen_status check_ready(const pen_ctx *ctx, pen_tensor *const *t, int64_t slice,
                              const char *call, stack_part *part, pen_error *why)
{
    if (ctx->phase != CONTEXT_COMMITTED || !ctx->step.is_begun)
        return why_set(why, PEN_WRONG_STATE,
                       "%s: no step is begun; the order is: register, then commit, then step",
                       call);
    if (*t == NULL) return PEN_OK;
    if ((*t)->ctx != ctx)
        return why_set(why, PEN_INVALID_ARGUMENT, "%s: the tensor belongs to another context",
                       call);
    return stack_slices(t, slice, call, part, why);
}

/* The slices of t, the last one first, as in a backward pass; t NULL: all tensors that are not ready yet. */
static pen_status ready(pen_ctx *ctx, pen_tensor *t, int64_t slice, const device_stream *stream,
                        const char *call)
{
    pen_error why;
    stack_part part;
    pen_status status = context_enter(ctx, call, false);
    if (status != PEN_OK) return status;
    status = api_lock_step(ctx, call);
    if (status != PEN_OK) return status;
    status = check_ready(ctx, &t, slice, call, &part, &why);
    if (status == PEN_OK && api_values_came(ctx) != PEN_OK) {
        pen_last_error(&why);
        status = why.status;
    }
    for (uint32_t i = t != NULL ? part.n : 0; i-- > 0 && status == PEN_OK;)
        status = ready_one(ctx, part.tensor[i], stream, &why);
    for (uint32_t i = 0; t == NULL && i < model_names(&ctx->model) && status == PEN_OK; i++) {
        pen_tensor *each = model_name(&ctx->model, i);
        if (each->trained && grad_slot_state(&each->slot) == GRAD_PROGRAM)
            status = ready_one(ctx, each, stream, &why);
    }
    if (status != PEN_OK) context_remember(&ctx->step.remembered, &why);
    pthread_mutex_unlock(&ctx->step.lock);
    return status;
}

pen_status pen_ready(pen_ctx *ctx, pen_tensor *t, int64_t slice)
{
    FP_ENV_OURS();
    return ready(ctx, t, slice, NULL, "pen_ready");
}

pen_status pen_ready_on(pen_ctx *ctx, pen_tensor *t, int64_t slice, void *stream)
{
    FP_ENV_OURS();
    char note[256];
    const device_stream given = stream;
    if (stream != NULL && device_beside_host(note, sizeof note) == NULL)
        return last_error_report(PEN_UNSUPPORTED, "pen_ready_on: stream needs a CUDA device: %s",
                                 note);
    return ready(ctx, t, slice, &given, "pen_ready_on");
}
