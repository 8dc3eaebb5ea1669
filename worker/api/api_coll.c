/* api_coll.c - collectives and point to point: the public functions over the engine. */
#include "worker/api/api_coll.h"

#include "common/base/clock.h"
#include "common/system/fp_env.h"

/* ---- shared ---------------------------------------------------------------------------------- */
/* The members of g have changed.  A job that waits for replacements ends: they are in no group of the others, so the
 * program would fail here again after each restart. */
static pen_status members_changed(const pen_group *g, const pen_error *why)
{
    if (g->ctx->has_servers) coll_engine_report_change(g->ctx->coll, g->id, why);
    return last_error_set(why);
}

pen_status api_coll_enter(const pen_group *g, const char *function, const pen_opts *o, bool waits)
{
    if (g == NULL)
        return last_error_report(PEN_INVALID_ARGUMENT, "%s: the group is NULL", function);
    if (g->engine == NULL && g->has_failed)
        return members_changed(g, &g->failure); /* context_follow_members() */
    pen_status status = api_check_opts(o);
    return status == PEN_OK ? context_enter(g->ctx, function, waits) : status;
}

const char *api_coll_label(const pen_opts *o)
{
    return o != NULL && o->label != NULL ? o->label : "";
}

/* ---- running a call -------------------------------------------------------------------------- */
/* On any thread. */
static void request_over(void *user, pen_status status, const pen_error *why)
{
    request *r           = user;
    request_table *table = &r->ctx->requests;
    if (status == PEN_PEER_LOST && r->ctx->has_servers)
        coll_engine_report_change(r->ctx->coll, r->u.coll.group->id, why);
    request_end(r, status, why);
    request_notify(table);
}

static pen_status give_up(request *r, pen_req *req, const pen_error *why)
{
    *req = (pen_req){0};
    request_abandon(r);
    return last_error_set(why);
}

static pen_status begin(pen_group *g, const coll_call *call, const pen_opts *o, pen_req *req)
{
    request *r;
    pen_error why;
    pen_status status = request_begin(g->ctx, REQUEST_COLL, o, req, &r);
    if (status != PEN_OK) return status;
    r->result.count = coll_out_elements(call, g->size, g->rank);
    r->u.coll.group = g;
    status          = coll_submit(g, call, context_patience(g->ctx, o), request_over, r, &why);
    return status == PEN_OK ? PEN_OK : give_up(r, req, &why);
}

pen_status api_coll_wait(pen_group *g, const coll_call *call, const pen_opts *o)
{
    pen_error why;
    const bool is_told   = o != NULL && o->done != NULL; /* else no clock is read: 45 ns */
    const uint64_t begun = is_told ? clock_ns(&clock_real) : 0;
    pen_status status    = engine_run(g, call, context_patience(g->ctx, o), &why);
    if (status == PEN_PEER_LOST)
        members_changed(g, &why);
    else if (status != PEN_OK)
        last_error_set(&why);
    if (!is_told) return status;
    const pen_result result = {.status  = status,
                               .count   = coll_out_elements(call, g->size, g->rank),
                               .seconds = (double)(clock_ns(&clock_real) - begun) / 1e9};
    api_notify(o, &result);
    return status;
}

/* Calls on host memory without a stream use none. */
static pen_status check_stream(const char *function, const coll_call *call)
{
    const void *data = call->in != NULL ? call->in : call->out;
    pen_error why;
    if (!device_is_loaded() ||
        (call->stream == NULL && (data == NULL || device_is_host(device_of(data)))))
        return PEN_OK;
    const pen_status status = api_check_stream(function, call->stream, &why);
    return status == PEN_OK ? status : last_error_set(&why);
}

pen_status api_coll_check(const pen_group *g, const char *function, const coll_call *call)
{
    pen_error why;
    const pen_status status = coll_call_check(call, g->size, g->rank, function, &why);
    return status == PEN_OK ? status : last_error_set(&why);
}

/* Waits for the call, or starts it as *req, or adds it to the batch of this thread. */
static pen_status run_coll(pen_group *g, const char *function, coll_call *call, const pen_opts *o,
                           pen_req *req)
{
    const bool waits  = req == NULL;
    pen_status status = api_coll_enter(g, function, o, waits);
    if (status != PEN_OK) return status;
    call->scale      = o != NULL && (o->flags & PEN_SCALED) != 0 ? o->scale : 1;
    call->label      = api_coll_label(o);
    call->stream     = o != NULL ? o->stream : NULL;
    call->overwrites = o != NULL && (o->flags & PEN_OVERWRITE) != 0;
    status           = check_stream(function, call);
    if (status == PEN_OK) status = api_coll_check(g, function, call);
    if (status == PEN_OK && req != NULL)
        status = begin(g, call, o, req);
    else if (status == PEN_OK && api_batch_is_open(g->ctx))
        status = api_batch_add_call(g, call, context_patience(g->ctx, o));
    else if (status == PEN_OK)
        status = api_coll_wait(g, call, o);
    return waits ? context_leave(g->ctx, status) : status;
}

/* ---- collectives ----------------------------------------------------------------------------- */
pen_status pen_barrier(pen_group *g, const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    coll_call call = {.kind = COLL_BARRIER, .dtype = PEN_U8};
    return run_coll(g, "pen_barrier", &call, o, req);
}

pen_status pen_broadcast(pen_group *g, void *data, size_t n, pen_dtype t, int root,
                         const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    coll_call call = {
        .kind = COLL_BROADCAST, .dtype = t, .root = root, .n = n, .in = data, .out = data};
    return run_coll(g, "pen_broadcast", &call, o, req);
}

pen_status pen_reduce(pen_group *g, const void *in, void *out, size_t n, pen_dtype t, pen_op op,
                      int root, const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    coll_call call = {
        .kind = COLL_REDUCE, .op = op, .dtype = t, .root = root, .n = n, .in = in, .out = out};
    return run_coll(g, "pen_reduce", &call, o, req);
}

pen_status pen_all_reduce(pen_group *g, const void *in, void *out, size_t n, pen_dtype t, pen_op op,
                          const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    coll_call call = {.kind = COLL_ALL_REDUCE, .op = op, .dtype = t, .n = n, .in = in, .out = out};
    return run_coll(g, "pen_all_reduce", &call, o, req);
}

pen_status pen_gather(pen_group *g, const void *in, size_t n, void *out, const size_t *counts,
                      pen_dtype t, int root, const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    coll_call call = {.kind   = root == PEN_EVERY ? COLL_ALL_GATHER : COLL_GATHER,
                      .dtype  = t,
                      .root   = root == PEN_EVERY ? 0 : root,
                      .n      = n,
                      .in     = in,
                      .out    = out,
                      .counts = counts};
    return run_coll(g, "pen_gather", &call, o, req);
}

pen_status pen_all_gather(pen_group *g, const void *in, size_t n, void *out, const size_t *counts,
                          pen_dtype t, const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    coll_call call = {
        .kind = COLL_ALL_GATHER, .dtype = t, .n = n, .in = in, .out = out, .counts = counts};
    return run_coll(g, "pen_all_gather", &call, o, req);
}

pen_status pen_scatter(pen_group *g, const void *in, const size_t *counts, void *out, size_t n,
                       pen_dtype t, int root, const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    coll_call call = {.kind   = COLL_SCATTER,
                      .dtype  = t,
                      .root   = root,
                      .n      = n,
                      .in     = in,
                      .out    = out,
                      .counts = counts};
    return run_coll(g, "pen_scatter", &call, o, req);
}

pen_status pen_reduce_scatter(pen_group *g, const void *in, const size_t *counts, void *out,
                              size_t n, pen_dtype t, pen_op op, const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    coll_call call = {.kind   = COLL_REDUCE_SCATTER,
                      .op     = op,
                      .dtype  = t,
                      .n      = n,
                      .in     = in,
                      .out    = out,
                      .counts = counts};
    return run_coll(g, "pen_reduce_scatter", &call, o, req);
}

pen_status pen_all_to_all(pen_group *g, const void *in, const size_t *in_counts, void *out,
                          const size_t *out_counts, size_t n, pen_dtype t, const pen_opts *o,
                          pen_req *req)
{
    FP_ENV_OURS();
    coll_call call = {.kind       = COLL_ALL_TO_ALL,
                      .dtype      = t,
                      .n          = n,
                      .in         = in,
                      .out        = out,
                      .counts     = in_counts,
                      .out_counts = out_counts};
    return run_coll(g, "pen_all_to_all", &call, o, req);
}

/* ---- point to point -------------------------------------------------------------------------- */
static void message_over(void *user, const mesh_result *result)
{
    request *r           = user;
    request_table *table = &r->ctx->requests;
    r->result.source     = result->source;
    r->result.tag        = result->tag;
    r->result.count      = result->count;
    request_end(r, result->status, result->status != PEN_OK ? &result->why : NULL);
    request_notify(table);
}

static pen_status transfer_begin(pen_group *g, const engine_transfer *t, const pen_opts *o,
                                 pen_req *req)
{
    request *r;
    pen_error why;
    pen_status status = request_begin(g->ctx, REQUEST_COLL, o, req, &r);
    if (status != PEN_OK) return status;
    status = engine_transfer_begin(g, t, r->deadline_ms, message_over, r, &why);
    return status == PEN_OK ? PEN_OK : give_up(r, req, &why);
}

static pen_status transfer_wait(pen_group *g, const engine_transfer *t, const pen_opts *o)
{
    pen_error why;
    mesh_result came     = {0};
    const uint64_t begun = clock_ns(&clock_real), span = context_patience(g->ctx, o);
    pen_status status =
        engine_transfer_run(g, t, span > 0 ? begun / 1000000 + span : 0, &came, &why);
    if (status != PEN_OK) last_error_set(&why);
    const pen_result result = {.status  = status,
                               .source  = came.source,
                               .tag     = came.tag,
                               .count   = came.count,
                               .seconds = (double)(clock_ns(&clock_real) - begun) / 1e9};
    api_notify(o, &result);
    return status;
}

static pen_status check_transfer(const pen_group *g, const char *function, const engine_transfer *t)
{
    const bool any_is_fine = !t->is_send;
    /* The buffer is checked like that of a broadcast. */
    const coll_call like = {.kind  = COLL_BROADCAST,
                            .dtype = t->dtype,
                            .root  = g->rank,
                            .n     = t->n,
                            .in    = t->data,
                            .out   = t->data,
                            .scale = 1,
                            .label = t->label};
    pen_error why;
    if ((t->peer < 0 || t->peer >= g->size) && !(any_is_fine && t->peer == PEN_ANY))
        return last_error_report(PEN_INVALID_ARGUMENT,
                                 "%s: invalid member %d; the group has 0 to %d", function, t->peer,
                                 g->size - 1);
    if (t->tag < 0 && !(any_is_fine && t->tag == PEN_ANY))
        return last_error_report(PEN_INVALID_ARGUMENT, "%s: invalid tag %d; tags are 0 or more",
                                 function, t->tag);
    if (coll_call_check(&like, g->size, g->rank, function, &why) != PEN_OK)
        return last_error_set(&why);
    return PEN_OK;
}

static pen_status transfer(pen_group *g, const char *function, const engine_transfer *t,
                           const pen_opts *o, pen_req *req)
{
    const bool waits  = req == NULL;
    pen_status status = api_coll_enter(g, function, o, waits);
    if (status != PEN_OK) return status;
    status = check_transfer(g, function, t);
    if (status == PEN_OK && !waits)
        status = transfer_begin(g, t, o, req);
    else if (status == PEN_OK && api_batch_is_open(g->ctx))
        status = api_batch_add_transfer(g, t, context_patience(g->ctx, o));
    else if (status == PEN_OK)
        status = transfer_wait(g, t, o);
    return waits ? context_leave(g->ctx, status) : status;
}

pen_status pen_send(pen_group *g, const void *data, size_t n, pen_dtype t, int to, int tag,
                    const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    const engine_transfer one = {.is_send = true,
                                 .peer    = to,
                                 .tag     = tag,
                                 .data    = (void *)(uintptr_t)data, /* only read */
                                 .n       = n,
                                 .dtype   = t,
                                 .label   = api_coll_label(o)};
    return transfer(g, "pen_send", &one, o, req);
}

pen_status pen_recv(pen_group *g, void *data, size_t n, pen_dtype t, int from, int tag,
                    const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    const engine_transfer one = {
        .peer = from, .tag = tag, .data = data, .n = n, .dtype = t, .label = api_coll_label(o)};
    return transfer(g, "pen_recv", &one, o, req);
}
