/* api_verbs.c - explicit push and pull of one tensor. */
#include "worker/api/api.h"

#include "common/system/fp_env.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/tensor/stack.h"

#include <string.h>

static pen_status refuse_decided(const pen_ctx *ctx, const char *call, const pen_tensor *t)
{
    if (ctx->settings.clip > 0)
        return last_error_report(PEN_WRONG_STATE,
                                 "%s('%s'): clipping needs all gradients before any update; use "
                                 "pen_ready() and pen_step_end()",
                                 call, t->name);
    return last_error_report(
        PEN_WRONG_STATE,
        "%s('%s'): commit=decide applies or skips whole steps; use pen_ready() "
        "and pen_step_end(), or commit=eager",
        call, t->name);
}

/* *one: what (t, slice) means. */
static pen_status choose(const pen_ctx *ctx, const char *call, pen_tensor *t, int64_t slice,
                         pen_tensor **one)
{
    stack_part part;
    pen_error why;
    if (t == NULL || t->ctx != ctx)
        return last_error_report(PEN_INVALID_ARGUMENT,
                                 "%s: the tensor does not belong to this context", call);
    if (stack_slices(&t, slice, call, &part, &why) != PEN_OK) return last_error_set(&why);
    if (part.is_whole)
        return last_error_report(PEN_INVALID_ARGUMENT,
                                 "%s('%s'): it is stacked; name one of its %u slices", call,
                                 t->name, part.n);
    *one = part.tensor[0];
    return PEN_OK;
}

static pen_status check(const pen_ctx *ctx, const char *call, bool pushes, const pen_tensor *t)
{
    if (api_check_committed(ctx, call) != PEN_OK) return PEN_WRONG_STATE;
    if (!t->trained)
        return last_error_report(PEN_INVALID_ARGUMENT, "%s('%s'): a frozen tensor never changes",
                                 call, t->name);
    if (model_rule_of(&ctx->model, t) == STEP_TWO_PHASE) return refuse_decided(ctx, call, t);
    const char *schedule = ctx->model.group[t->desc.group]->schedule;
    if (pushes && strcmp(schedule, "constant") != 0)
        return last_error_report(PEN_UNSUPPORTED,
                                 "%s('%s'): the schedule '%.64s' of its group counts steps; use "
                                 "pen_ready() and pen_step_end()",
                                 call, t->name, schedule);
    return PEN_OK;
}

/* ---- memory of a device ------------------------------------------------------------------------ */
/* Host memory that the strategy reads and writes in place of device memory. */
typedef struct {
    pinned_pair *from, *to; /* NULL: already host memory */
} loans;

static pen_status borrow(request *r, loans *l, void *stream, pen_error *why)
{
    pen_tensor *t     = r->u.verb.tensor;
    const bool pushes = r->u.verb.verb != PS_PULL, pulls = r->u.verb.verb != PS_PUSH;
    why->status = PEN_OK;
    if (pushes && r->u.verb.from == t->grad) {
        if (device_copies_fetch_grad(t, stream, why) != PEN_OK) return why->status;
    } else if (pushes) {
        l->from = device_copies_lend(t, (void *)(uintptr_t)r->u.verb.from, t->grad_bytes, true,
                                     stream, why);
        if (l->from != NULL) r->u.verb.from = l->from->host;
    }
    if (why->status == PEN_OK && pulls && r->u.verb.to != t->param) {
        l->to = device_copies_lend(t, r->u.verb.to, t->bytes, false, stream, why);
        if (l->to != NULL) r->u.verb.to = l->to->host;
    }
    return why->status;
}

static pen_status give_back(pen_tensor *t, const loans *l, bool is_written, pen_error *why)
{
    const pen_status status = device_copies_unlend(t, l->from, false, why);
    const pen_status later  = device_copies_unlend(t, l->to, is_written, why);
    if (status != PEN_OK || later != PEN_OK) return status != PEN_OK ? status : later;
    return is_written ? device_copies_changed_one(t, why) : PEN_OK;
}

static pen_status run_on_device(request *r, const pen_opts *o)
{
    pen_tensor *t = r->u.verb.tensor;
    loans l       = {NULL, NULL};
    pen_error why, later;
    pen_status status = borrow(r, &l, o != NULL ? o->stream : NULL, &why);
    if (status != PEN_OK) {
        request_abandon(r);
        last_error_set(&why);
    } else {
        status = api_start(r, o, NULL);
    }
    if (give_back(t, &l, status == PEN_OK, &later) != PEN_OK && status == PEN_OK)
        status = last_error_set(&later);
    return status;
}

static pen_status run_verb(pen_ctx *ctx, const char *call, ps_client_verb verb, pen_tensor *t,
                           const void *from, void *to, const pen_opts *o, pen_req *req)
{
    request *r;
    if (verb != PS_PULL && from == NULL && t->grad == NULL)
        return last_error_report(
            PEN_WRONG_STATE,
            "%s('%s'): missing gradient buffer; pass one here, to pen_register or to pen_bind",
            call, t->name);
    const bool on_device = t->device_copies != NULL || !device_is_host(device_of(from)) ||
                           !device_is_host(device_of(to));
    if (on_device && req != NULL)
        return last_error_report(
            PEN_UNSUPPORTED,
            "%s('%s'): device memory needs a call that waits; pass req NULL, or "
            "use pen_ready() and pen_step_end() to overlap",
            call, t->name);
    pen_error why;
    pen_status status = api_check_opts(o);
    if (status == PEN_OK && on_device &&
        api_check_stream(call, o != NULL ? o->stream : NULL, &why) != PEN_OK)
        status = last_error_set(&why);
    if (status == PEN_OK) status = request_begin(ctx, REQUEST_VERB, o, req, &r);
    if (status != PEN_OK) return status;
    r->u.verb.verb   = verb;
    r->u.verb.tensor = t;
    r->u.verb.from   = from != NULL ? from : t->grad;
    r->u.verb.to     = to != NULL ? to : t->param;
    return on_device ? run_on_device(r, o) : api_start(r, o, req);
}

static pen_status verb(pen_ctx *ctx, const char *call, ps_client_verb what, pen_tensor *t,
                       int64_t slice, const void *from, void *to, const pen_opts *o, pen_req *req)
{
    pen_status status = context_enter(ctx, call, req == NULL);
    if (status != PEN_OK) return status;
    status = choose(ctx, call, t, slice, &t);
    if (status == PEN_OK) status = check(ctx, call, what != PS_PULL, t);
    if (status == PEN_OK) status = api_wait_for_values(ctx, call);
    if (status == PEN_OK) status = run_verb(ctx, call, what, t, from, to, o, req);
    return req == NULL ? context_leave(ctx, status) : status;
}

pen_status pen_push(pen_ctx *ctx, pen_tensor *t, int64_t slice, const void *grad, const pen_opts *o,
                    pen_req *req)
{
    FP_ENV_OURS();
    return verb(ctx, "pen_push", PS_PUSH, t, slice, grad, NULL, o, req);
}

pen_status pen_pull(pen_ctx *ctx, pen_tensor *t, int64_t slice, void *param, const pen_opts *o,
                    pen_req *req)
{
    FP_ENV_OURS();
    return verb(ctx, "pen_pull", PS_PULL, t, slice, NULL, param, o, req);
}

pen_status pen_push_pull(pen_ctx *ctx, pen_tensor *t, int64_t slice, const void *grad, void *param,
                         const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    return verb(ctx, "pen_push_pull", PS_PUSH_PULL, t, slice, grad, param, o, req);
}
