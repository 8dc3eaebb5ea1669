/* api_verbs.c - explicit push and pull of one tensor. */
#include "worker/api.h"

#include <string.h>

static pen_status refuse_decided(const pen_ctx *ctx, const char *call, const pen_tensor *t)
{
    if (ctx->settings.clip > 0)
        return last_error_say(PEN_WRONG_STATE,
                              "%s('%s'): clipping needs all gradients before any update; use "
                              "pen_ready() and pen_step_end()",
                              call, t->name);
    return last_error_say(PEN_WRONG_STATE,
                          "%s('%s'): a step is applied or skipped as a whole, which needs all "
                          "gradients before any update; use pen_ready() "
                          "and pen_step_end(), or commit=eager",
                          call, t->name);
}

static pen_status check(const pen_ctx *ctx, const char *call, bool pushes, const pen_tensor *t,
                        int64_t slice)
{
    if (t == NULL || t->ctx != ctx)
        return last_error_say(PEN_INVALID_ARGUMENT, "%s: no tensor of this context", call);
    if (ctx->phase != CONTEXT_COMMITTED)
        return last_error_say(
            PEN_WRONG_STATE,
            "%s('%s'): pen_commit has not been called; register, then commit, then step", call,
            t->name);
    if (slice != PEN_ALL && slice != 0)
        return last_error_say(PEN_INVALID_ARGUMENT,
                              "%s('%s'): slice %lld, but there are no stacked tensors; say PEN_ALL",
                              call, t->name, (long long)slice);
    if (!t->trained)
        return last_error_say(PEN_INVALID_ARGUMENT, "%s('%s'): a frozen tensor never changes", call,
                              t->name);
    if (model_rule_of(&ctx->model, t) == EXCHANGE_DECIDE) return refuse_decided(ctx, call, t);
    const char *schedule = ctx->model.group[t->desc.group]->schedule;
    if (pushes && strcmp(schedule, "constant") != 0)
        return last_error_say(PEN_UNSUPPORTED,
                              "%s('%s'): its group has the schedule '%.64s', which counts the "
                              "updates of steps; use pen_ready() and pen_step_end()",
                              call, t->name, schedule);
    return PEN_OK;
}

static pen_status run(pen_ctx *ctx, const char *call, exchange_verb verb, pen_tensor *t,
                      const void *from, void *to, const pen_opts *o, pen_req *req)
{
    request *r;
    if (verb != EXCHANGE_PULL && from == NULL && t->grad == NULL)
        return last_error_say(
            PEN_WRONG_STATE,
            "%s('%s'): it has no gradient buffer; give one here, at pen_register or pen_bind", call,
            t->name);
    pen_status status = api_check_opts(o);
    if (status == PEN_OK) status = request_begin(ctx, REQUEST_VERB, o, req, &r);
    if (status != PEN_OK) return status;
    r->u.verb.verb   = verb;
    r->u.verb.tensor = t;
    r->u.verb.from   = from != NULL ? from : t->grad;
    r->u.verb.to     = to != NULL ? to : t->param;
    return request_run(r, o, req);
}

static pen_status verb(pen_ctx *ctx, const char *call, exchange_verb what, pen_tensor *t,
                       int64_t slice, const void *from, void *to, const pen_opts *o, pen_req *req)
{
    pen_status status = context_enter(ctx, call, req == NULL);
    if (status != PEN_OK) return status;
    status = check(ctx, call, what != EXCHANGE_PULL, t, slice);
    if (status == PEN_OK) status = api_wait_for_values(ctx, call);
    if (status == PEN_OK) status = run(ctx, call, what, t, from, to, o, req);
    return req == NULL ? context_leave(ctx, status) : status;
}

pen_status pen_push(pen_ctx *ctx, pen_tensor *t, int64_t slice, const void *grad, const pen_opts *o,
                    pen_req *req)
{
    return verb(ctx, "pen_push", EXCHANGE_PUSH, t, slice, grad, NULL, o, req);
}

pen_status pen_pull(pen_ctx *ctx, pen_tensor *t, int64_t slice, void *param, const pen_opts *o,
                    pen_req *req)
{
    return verb(ctx, "pen_pull", EXCHANGE_PULL, t, slice, NULL, param, o, req);
}

pen_status pen_push_pull(pen_ctx *ctx, pen_tensor *t, int64_t slice, const void *grad, void *param,
                         const pen_opts *o, pen_req *req)
{
    return verb(ctx, "pen_push_pull", EXCHANGE_PUSH_PULL, t, slice, grad, param, o, req);
}
