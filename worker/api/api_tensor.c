/* api_tensor.c - pen_params_new, pen_params_lr, pen_register, pen_commit, pen_bind. */
#include "worker/api/api.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/why.h"
#include "common/system/fp_env.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/tensor/param_memory.h"
#include "worker/tensor/stack.h"
#include "worker/train/buffers.h"

#include <stdlib.h>

/* Errors are remembered; pen_commit() returns the first. */
pen_status api_check_open(const pen_ctx *ctx, const char *call, pen_error *why)
{
    if (ctx->phase == CONTEXT_OPEN) return PEN_OK;
    return why_set(
        why, PEN_WRONG_STATE,
        "%s: nothing can be added after pen_commit; the order is: register, then commit, then step",
        call);
}

pen_status pen_params_new(pen_ctx *ctx, const pen_params_desc *d, pen_params **p)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_check(ctx, "pen_params_new");
    if (status != PEN_OK) return status;
    if (d == NULL || p == NULL)
        status = why_set(&why, PEN_INVALID_ARGUMENT, "pen_params_new: d or p is NULL");
    else
        status = api_check_open(ctx, "pen_params_new", &why);
    if (status == PEN_OK) status = model_add_group(&ctx->model, ctx, d, p, &why);
    return status == PEN_OK ? status : context_remember(&ctx->remembered, &why);
}

pen_status pen_params_lr(pen_params *p, double lr)
{
    FP_ENV_OURS();
    if (p == NULL) return last_error_report(PEN_INVALID_ARGUMENT, "pen_params_lr: p is NULL");
    const pen_status status = context_check(p->ctx, "pen_params_lr");
    if (status != PEN_OK) return status;
    if (p->ctx->phase != CONTEXT_COMMITTED || p->ctx->step.is_open)
        return last_error_report(
            PEN_WRONG_STATE,
            "pen_params_lr('%s'): the rate changes after pen_commit() and between steps, before a "
            "step's first pen_ready()",
            p->name);
    if (!(lr >= 0) || lr > 1e6)
        return last_error_report(PEN_INVALID_ARGUMENT,
                                 "pen_params_lr('%s'): invalid rate %g; expected 0 to 1e6", p->name,
                                 lr);
    p->hyper.lr = lr;
    return PEN_OK;
}

pen_status pen_register(pen_ctx *ctx, const pen_tensor_desc *d, pen_tensor **t)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_check(ctx, "pen_register");
    if (status != PEN_OK) return status;
    if (d == NULL)
        status = why_set(&why, PEN_INVALID_ARGUMENT, "pen_register: d is NULL");
    else if (model_check_reserved(d->reserved, 8, "pen_tensor_desc", &why) != PEN_OK)
        status = why.status; /* the rest may be garbage, too */
    else if (d->params != NULL && d->params->ctx != ctx)
        status =
            why_set(&why, PEN_INVALID_ARGUMENT, "pen_register: params belong to another context");
    else
        status = api_check_open(ctx, "pen_register", &why);
    if (status == PEN_OK)
        status = (d->flags & PEN_STACKED) != 0 ? stack_add(&ctx->model, ctx, d, t, &why)
                                               : model_add_tensor(&ctx->model, ctx, d, t, &why);
    return status == PEN_OK ? status : context_remember(&ctx->remembered, &why);
}

/* So that the last bucket, which nothing hides, is a small part of the model.  All ranks have the same one. */
static void choose_buckets(pen_ctx *ctx)
{
    const model *m       = &ctx->model;
    const uint64_t least = 1 << 20, most = 25 << 20;
    uint64_t bytes = 0;
    if (ctx->settings.bucket_bytes != 0) return;
    for (uint32_t i = 0; i < m->n_tensors; i++)
        bytes += m->tensor[i]->trained ? m->tensor[i]->elements * sizeof(float) : 0;
    const uint64_t share       = bytes / 16;
    ctx->settings.bucket_bytes = share < least ? least : share > most ? most : share;
}

static pen_status freeze(pen_ctx *ctx)
{
    pen_error why;
    if (ctx->remembered.status != PEN_OK) return last_error_set(&ctx->remembered);
    if (ctx->phase == CONTEXT_COMMITTED)
        return last_error_report(
            PEN_UNSUPPORTED, "pen_commit: called a second time; call it once, after pen_register");
    ctx->step.rate = calloc(ctx->model.n_groups, sizeof *ctx->step.rate);
    if (ctx->step.rate == NULL)
        return last_error_report(PEN_NO_MEMORY, "no memory for %u rates", ctx->model.n_groups);
    const char *mode  = context_mode_name(ctx);
    pen_status status = stack_arrange(&ctx->model, &why);
    if (status == PEN_OK) status = model_freeze(&ctx->model, &ctx->settings, mode, ctx->sync, &why);
    choose_buckets(ctx);
    if (status == PEN_OK) status = model_make_units(&ctx->model, &ctx->settings, &why);
    if (status == PEN_OK) status = device_copies_commit(ctx, api_deliver, &why);
    if (status == PEN_OK) status = model_first_values(&ctx->model, &why);
    return status == PEN_OK ? status : last_error_set(&why);
}

/* No rank can go on without this one, so the job has failed: its verdict is the reason, and nobody is gone. */
static pen_status report(pen_ctx *ctx, const pen_error *why)
{
    request *r;
    if (request_begin(ctx, REQUEST_REPORT, NULL, NULL, &r) != PEN_OK) return last_error_set(why);
    r->u.report.why         = why;
    const pen_status status = api_start(r, NULL, NULL);
    return status != PEN_OK ? status : last_error_set(why); /* OK: alone */
}

static pen_status run_commit(pen_ctx *ctx)
{
    request *r;
    pen_status status = request_begin(ctx, REQUEST_COMMIT, NULL, NULL, &r);
    if (status == PEN_OK) status = api_start(r, NULL, NULL);
    if (status != PEN_OK) return status;
    pen_error why;
    status = strategy_open(ctx, &why);
    if (status == PEN_OK) status = buffers_open(ctx, &why);
    if (status == PEN_OK) return status;
    const bool is_lost = status == PEN_PEER_LOST || status == PEN_TIMED_OUT;
    return ctx->has_servers || is_lost ? last_error_set(&why) : report(ctx, &why);
}

/* `precision` is a word to the program; one that does not listen trains in float32 as before. */
static void tell_precision(const pen_ctx *ctx)
{
    if (ctx->settings.precision == PRECISION_FP32 || ctx->env.rank > 0) return;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++)
        if (ctx->model.tensor[i]->desc.dtype != PEN_F32 ||
            ctx->model.tensor[i]->desc.grad_dtype != PEN_F32)
            return;
    log_notice("precision=%s changes nothing here: all tensors are float32; the program chooses "
               "their type from pen_info.precision",
               worker_precision_name(ctx->settings.precision));
}

pen_status pen_commit(pen_ctx *ctx)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_enter(ctx, "pen_commit", true);
    if (status != PEN_OK) return status;
    status = freeze(ctx);
    if (status == PEN_OK) status = run_commit(ctx);
    if (status == PEN_OK && device_copies_changed(ctx, &why) != PEN_OK)
        status = last_error_set(&why);
    if (status == PEN_OK) {
        ctx->phase        = CONTEXT_COMMITTED;
        ctx->committed_ms = clock_ms(&clock_real);
        tell_precision(ctx);
    } else if (ctx->remembered.status == PEN_OK) {
        /* pen_commit() cannot be repeated: other ranks may have continued. */
        pen_last_error(&ctx->remembered);
    }
    return context_leave(ctx, status);
}

static pen_status bind_one(pen_tensor *t, void *param, void *grad, pen_error *why)
{
    if ((t->desc.flags & PEN_BUFFER) != 0)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "pen_bind('%s'): a PEN_BUFFER stays where it was registered", t->name);
    if (grad_slot_move(&t->slot, GRAD_BIND, t->name, -1, why) != PEN_OK) return why->status;
    if (param != NULL && t->tied_to != NULL)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "pen_bind('%s'): bind the values of '%s', to which it is tied", t->name,
                       t->tied_to->name);
    if (param != NULL && t->holds_param && t->ctx->phase == CONTEXT_COMMITTED)
        return why_set(why, PEN_WRONG_STATE,
                       "pen_bind('%s'): the SDK holds its values since pen_commit(); use "
                       "pen_view(), or pass param to pen_register",
                       t->name);
    if (param != NULL) {
        param_memory_drop(t);
        t->holds_param = false;
        if (device_copies_place(t, PEN_PARAM, param, why) != PEN_OK) return why->status;
    }
    if (grad == NULL) return PEN_OK;
    param_grad_step_end(t, false);
    return device_copies_place(t, PEN_GRAD, grad, why);
}

/* From two flat buffers, without gaps. */
static pen_status bind_list(pen_tensor *const *list, uint32_t n, char *param, char *grad,
                            pen_error *why)
{
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < n && status == PEN_OK; i++) {
        pen_tensor *t = list[i];
        status        = bind_one(t, param, t->trained ? grad : NULL, why);
        if (param != NULL) param += t->bytes;
        if (grad != NULL) grad += t->grad_bytes;
    }
    return status;
}

pen_status pen_bind(pen_ctx *ctx, pen_tensor *t, void *param, void *grad)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_check(ctx, "pen_bind");
    if (status != PEN_OK) return status;
    if (request_is_sdk_thread())
        return last_error_report(PEN_WRONG_STATE,
                                 "pen_bind: called from a callback; bind between steps");
    const model *m = &ctx->model;
    pthread_mutex_lock(&ctx->step.lock);
    if (t != NULL && t->ctx != ctx)
        status =
            why_set(&why, PEN_INVALID_ARGUMENT, "pen_bind: the tensor belongs to another context");
    else if (t == NULL)
        status = bind_list(m->registered != NULL ? m->registered : m->tensor, m->n_tensors, param,
                           grad, &why);
    else
        status = t->slice != NULL ? bind_list(t->slice, t->n_slices, param, grad, &why)
                                  : bind_one(t, param, grad, &why);
    pthread_mutex_unlock(&ctx->step.lock);
    if (status == PEN_OK) return status;
    return context_remember(ctx->phase == CONTEXT_OPEN ? &ctx->remembered : &ctx->step.remembered,
                            &why);
}
