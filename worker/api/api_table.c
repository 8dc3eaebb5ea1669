/* api_table.c - tables by key: pen_table_new, pen_kv_push, pen_kv_pull, pen_kv_push_pull. */
#include "worker/api/api.h"

#include "common/system/fp_env.h"
#include "worker/tensor/table_request.h"

pen_status pen_table_new(pen_ctx *ctx, const pen_table_desc *d, pen_table **t)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_check(ctx, "pen_table_new");
    if (status != PEN_OK) return status;
    if (d == NULL || t == NULL)
        status = why_set(&why, PEN_INVALID_ARGUMENT, "pen_table_new: d or t is NULL");
    else
        status = api_check_open(ctx, "pen_table_new", &why);
    if (status == PEN_OK) status = table_add(&ctx->model, ctx, d, t, &why);
    return status == PEN_OK ? status : context_remember(&ctx->remembered, &why);
}

static pen_status check(const pen_ctx *ctx, const char *call, const pen_kv *kv, const pen_opts *o)
{
    if (api_check_committed(ctx, call) != PEN_OK) return PEN_WRONG_STATE;
    if (kv == NULL) return last_error_report(PEN_INVALID_ARGUMENT, "%s: kv is NULL", call);
    return api_check_opts(o);
}

static pen_status start(pen_table *t, const pen_kv *kv, ps_client_verb verb, const pen_opts *o,
                        pen_req *req)
{
    pen_error why;
    request *r;
    pen_result result = {0};
    pen_status status = request_begin(t->ctx, REQUEST_KV, o, req, &r);
    if (status != PEN_OK) return status;
    status = table_request_begin(t, kv, verb, &r->u.kv, &result.count, &why);
    if (status == PEN_OK) return api_start(r, o, req);
    request_abandon(r);
    if (req != NULL) *req = (pen_req){0};
    result.status = status;
    if (req == NULL) api_notify(o, &result);
    return last_error_set(&why);
}

static pen_status run_rows(pen_table *t, const char *call, ps_client_verb verb, const pen_kv *kv,
                           const pen_opts *o, pen_req *req)
{
    if (t == NULL) return last_error_report(PEN_INVALID_ARGUMENT, "%s: t is NULL", call);
    pen_status status = context_enter(t->ctx, call, req == NULL);
    if (status != PEN_OK) return status;
    status = check(t->ctx, call, kv, o);
    if (status == PEN_OK) status = start(t, kv, verb, o, req);
    return req == NULL ? context_leave(t->ctx, status) : status;
}

pen_status pen_kv_push(pen_table *t, const pen_kv *kv, const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    return run_rows(t, "pen_kv_push", PS_PUSH, kv, o, req);
}

pen_status pen_kv_pull(pen_table *t, const pen_kv *kv, const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    return run_rows(t, "pen_kv_pull", PS_PULL, kv, o, req);
}

pen_status pen_kv_push_pull(pen_table *t, const pen_kv *kv, const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    return run_rows(t, "pen_kv_push_pull", PS_PUSH_PULL, kv, o, req);
}
