/* api_coll.c - collectives and point to point: the public functions over the engine. */
#include "worker/api/api_coll.h"

#include "common/base/clock.h"
#include "common/base/fp_env.h"

#include <stdlib.h>
#include <string.h>

/* ---- what all share -------------------------------------------------------------------------- */
pen_status api_coll_enter(const pen_group *g, const char *function, const pen_opts *o, bool waits)
{
    if (g == NULL) return last_error_say(PEN_INVALID_ARGUMENT, "%s: the group is NULL", function);
    if (g->engine == NULL && g->has_failed) return last_error_set(&g->failure); /* world.c */
    pen_status status = api_check_opts(o);
    return status == PEN_OK ? context_enter(g->ctx, function, waits) : status;
}

uint64_t api_coll_patience(const pen_group *g, const pen_opts *o)
{
    const int64_t span =
        o != NULL && o->deadline_ms != 0 ? o->deadline_ms : g->ctx->settings.deadline_ms;
    return span > 0 ? (uint64_t)span : 0;
}

uint64_t api_coll_deadline(const pen_group *g, const pen_opts *o)
{
    const uint64_t span = api_coll_patience(g, o);
    return span > 0 ? clock_ms(&clock_real) + span : 0;
}

static double scale_of(const pen_opts *o)
{
    return o != NULL && (o->flags & PEN_SCALED) != 0 ? o->scale : 1;
}

static const char *label_of(const pen_opts *o)
{
    return o != NULL && o->label != NULL ? o->label : "";
}

/* ---- running a call -------------------------------------------------------------------------- */
/* On whichever thread ended it. */
static void request_over(void *user, pen_status status, const pen_error *why)
{
    request *r           = user;
    request_table *table = &r->ctx->requests;
    request_end(r, status, why);
    request_tell(table);
}

static pen_status begin(pen_group *g, const coll_call *call, const pen_opts *o, pen_req *req)
{
    request *r;
    pen_error why;
    pen_status status = request_begin(g->ctx, REQUEST_COLL, o, req, &r);
    if (status != PEN_OK) return status;
    r->result.count = coll_out_elements(call, g->size, g->rank);
    r->u.coll.group = g;
    /* Before it is handed over: with a callback it may be gone right after. */
    *req   = r->done != NULL ? (pen_req){0} : (pen_req){g->ctx, r->id};
    status = coll_submit(g, call, api_coll_patience(g, o), request_over, r, &why);
    if (status == PEN_OK) return PEN_OK;
    *req = (pen_req){0};
    request_abandon(r);
    return last_error_set(&why);
}

pen_status api_coll_wait(pen_group *g, const coll_call *call, const pen_opts *o)
{
    pen_error why;
    const uint64_t begun = clock_ns(&clock_real);
    pen_status status    = engine_run(g, call, api_coll_deadline(g, o), &why);
    if (status != PEN_OK) last_error_set(&why);
    const pen_result result = {.status  = status,
                               .count   = coll_out_elements(call, g->size, g->rank),
                               .seconds = (double)(clock_ns(&clock_real) - begun) / 1e9};
    api_tell(o, &result);
    return status;
}

pen_status api_coll_run(pen_group *g, const char *function, const coll_call *call,
                        const pen_opts *o, pen_req *req)
{
    pen_error why;
    pen_status status = coll_call_check(call, g->size, g->rank, function, &why);
    if (status != PEN_OK) return last_error_set(&why);
    if (req != NULL) return begin(g, call, o, req);
    if (api_batch_is_open(g->ctx)) return api_batch_add_call(g, call, api_coll_patience(g, o));
    return api_coll_wait(g, call, o);
}

static pen_status run(pen_group *g, const char *function, coll_call *call, const pen_opts *o,
                      pen_req *req)
{
    const bool waits  = req == NULL;
    pen_status status = api_coll_enter(g, function, o, waits);
    if (status != PEN_OK) return status;
    call->scale  = scale_of(o);
    call->label  = label_of(o);
    call->stream = o != NULL ? o->stream : NULL;
    status       = api_coll_run(g, function, call, o, req);
    return waits ? context_leave(g->ctx, status) : status;
}

/* ---- collectives ----------------------------------------------------------------------------- */
pen_status pen_barrier(pen_group *g, const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    coll_call call = {.kind = COLL_BARRIER, .dtype = PEN_U8};
    return run(g, "pen_barrier", &call, o, req);
}

pen_status pen_broadcast(pen_group *g, void *data, size_t n, pen_dtype t, int root,
                         const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    coll_call call = {
        .kind = COLL_BROADCAST, .dtype = t, .root = root, .n = n, .in = data, .out = data};
    return run(g, "pen_broadcast", &call, o, req);
}

pen_status pen_reduce(pen_group *g, const void *in, void *out, size_t n, pen_dtype t, pen_op op,
                      int root, const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    coll_call call = {
        .kind = COLL_REDUCE, .op = op, .dtype = t, .root = root, .n = n, .in = in, .out = out};
    return run(g, "pen_reduce", &call, o, req);
}

pen_status pen_all_reduce(pen_group *g, const void *in, void *out, size_t n, pen_dtype t, pen_op op,
                          const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    coll_call call = {.kind = COLL_ALL_REDUCE, .op = op, .dtype = t, .n = n, .in = in, .out = out};
    return run(g, "pen_all_reduce", &call, o, req);
}

/* root PEN_EVERY: everyone gathers. */
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
    return run(g, "pen_gather", &call, o, req);
}

pen_status pen_all_gather(pen_group *g, const void *in, size_t n, void *out, const size_t *counts,
                          pen_dtype t, const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    coll_call call = {
        .kind = COLL_ALL_GATHER, .dtype = t, .n = n, .in = in, .out = out, .counts = counts};
    return run(g, "pen_all_gather", &call, o, req);
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
    return run(g, "pen_scatter", &call, o, req);
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
    return run(g, "pen_reduce_scatter", &call, o, req);
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
    return run(g, "pen_all_to_all", &call, o, req);
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
    request_tell(table);
}

static pen_status transfer_begin(pen_group *g, const engine_transfer *t, const pen_opts *o,
                                 pen_req *req)
{
    request *r;
    pen_error why;
    pen_status status = request_begin(g->ctx, REQUEST_COLL, o, req, &r);
    if (status != PEN_OK) return status;
    *req   = r->done != NULL ? (pen_req){0} : (pen_req){g->ctx, r->id};
    status = engine_transfer_begin(g, t, r->deadline_ms, message_over, r, &why);
    if (status == PEN_OK) return PEN_OK;
    *req = (pen_req){0};
    request_abandon(r);
    return last_error_set(&why);
}

static pen_status transfer_wait(pen_group *g, const engine_transfer *t, const pen_opts *o)
{
    pen_error why;
    mesh_result came     = {0};
    const uint64_t begun = clock_ns(&clock_real);
    pen_status status    = engine_transfer_run(g, t, api_coll_deadline(g, o), &came, &why);
    if (status != PEN_OK) last_error_set(&why);
    const pen_result result = {.status  = status,
                               .source  = came.source,
                               .tag     = came.tag,
                               .count   = came.count,
                               .seconds = (double)(clock_ns(&clock_real) - begun) / 1e9};
    api_tell(o, &result);
    return status;
}

static pen_status check_transfer(const pen_group *g, const char *function, const engine_transfer *t)
{
    const bool any_is_fine = !t->is_send;
    /* A buffer of no elements is checked as one of a broadcast is. */
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
        return last_error_say(PEN_INVALID_ARGUMENT, "%s: %d is not in the group, which has 0 to %d",
                              function, t->peer, g->size - 1);
    if (t->tag < 0 && !(any_is_fine && t->tag == PEN_ANY))
        return last_error_say(PEN_INVALID_ARGUMENT, "%s: a tag is not negative, and this is %d",
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
        status = api_batch_add_transfer(g, t, api_coll_patience(g, o));
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
                                 .label   = label_of(o)};
    return transfer(g, "pen_send", &one, o, req);
}

pen_status pen_recv(pen_group *g, void *data, size_t n, pen_dtype t, int from, int tag,
                    const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    const engine_transfer one = {
        .peer = from, .tag = tag, .data = data, .n = n, .dtype = t, .label = label_of(o)};
    return transfer(g, "pen_recv", &one, o, req);
}

/* ---- objects of bytes ------------------------------------------------------------------------ */
static pen_status make_room(pen_ctx *ctx, size_t size, void **data)
{
    *data = pen_alloc(ctx, size, PEN_HOST);
    return *data != NULL ? PEN_OK : PEN_NO_MEMORY;
}

static pen_status broadcast_bytes(pen_group *g, pen_bytes *io, int root, const pen_opts *o)
{
    uint64_t size        = io->size;
    void *data           = io->data;
    const bool is_root   = g->rank == root;
    const char *label    = label_of(o);
    const coll_call head = {.kind  = COLL_BROADCAST,
                            .dtype = PEN_U64,
                            .root  = root,
                            .n     = 1,
                            .in    = &size,
                            .out   = &size,
                            .scale = 1,
                            .label = label};
    pen_status status    = api_coll_run(g, "pen_broadcast_bytes", &head, o, NULL);
    if (status == PEN_OK && !is_root) status = make_room(g->ctx, size, &data);
    if (status != PEN_OK) return status;
    const coll_call body = {.kind  = COLL_BROADCAST,
                            .dtype = PEN_U8,
                            .root  = root,
                            .n     = size,
                            .in    = data,
                            .out   = data,
                            .scale = 1,
                            .label = label};
    if (size > 0) status = api_coll_run(g, "pen_broadcast_bytes", &body, o, NULL);
    if (is_root) return status;
    if (status == PEN_OK)
        *io = (pen_bytes){data, size};
    else
        pen_free(data);
    return status;
}

static pen_status refuse_batch(const pen_group *g, const char *function)
{
    if (!api_batch_is_open(g->ctx)) return PEN_OK;
    return last_error_say(
        PEN_WRONG_STATE,
        "%s: not between pen_batch_begin() and pen_batch_end(): its length has to "
        "travel first",
        function);
}

pen_status pen_broadcast_bytes(pen_group *g, pen_bytes *io, int root, const pen_opts *o)
{
    FP_ENV_OURS();
    pen_status status = api_coll_enter(g, "pen_broadcast_bytes", o, true);
    if (status != PEN_OK) return status;
    status = refuse_batch(g, "pen_broadcast_bytes");
    if (status == PEN_OK && io == NULL)
        status = last_error_say(PEN_INVALID_ARGUMENT, "pen_broadcast_bytes: io is NULL");
    if (status == PEN_OK) status = broadcast_bytes(g, io, root, o);
    return context_leave(g->ctx, status);
}

typedef struct {
    uint64_t *sizes; /* [size] */
    size_t *counts;
    unsigned char *all; /* what came, one after the other */
} gathering;

static pen_status gather_sizes(pen_group *g, uint64_t size, gathering *w, const pen_opts *o)
{
    const coll_call call = {.kind  = COLL_ALL_GATHER,
                            .dtype = PEN_U64,
                            .n     = 1,
                            .in    = &size,
                            .out   = w->sizes,
                            .scale = 1,
                            .label = label_of(o)};
    pen_status status    = api_coll_run(g, "pen_gather_bytes", &call, o, NULL);
    for (int i = 0; i < g->size && status == PEN_OK; i++) w->counts[i] = (size_t)w->sizes[i];
    return status;
}

/* Each object gets memory of its own, for pen_free(). */
static pen_status hand_out(pen_group *g, const gathering *w, pen_bytes *out)
{
    pen_status status = PEN_OK;
    size_t at         = 0;
    memset(out, 0, (size_t)g->size * sizeof *out);
    for (int i = 0; i < g->size && status == PEN_OK; i++) {
        status = make_room(g->ctx, w->counts[i], &out[i].data);
        if (status != PEN_OK) break;
        out[i].size = w->counts[i];
        if (out[i].size > 0) memcpy(out[i].data, w->all + at, out[i].size);
        at += out[i].size;
    }
    for (int i = 0; i < g->size && status != PEN_OK; i++) {
        pen_free(out[i].data);
        out[i] = (pen_bytes){0};
    }
    return status;
}

static pen_status gather_bytes(pen_group *g, const void *in, size_t size, pen_bytes *out, int root,
                               gathering *w, const pen_opts *o)
{
    pen_status status = gather_sizes(g, size, w, o);
    if (status != PEN_OK) return status;
    const bool gets = root == PEN_EVERY || g->rank == root;
    const size_t n  = coll_part_offset(w->counts, 0, g->size);
    if (gets && (w->all = malloc(n + 1)) == NULL)
        return last_error_say(PEN_NO_MEMORY, "no memory for %zu bytes", n);
    const coll_call call = {.kind   = root == PEN_EVERY ? COLL_ALL_GATHER : COLL_GATHER,
                            .dtype  = PEN_U8,
                            .root   = root == PEN_EVERY ? 0 : root,
                            .n      = size,
                            .in     = in,
                            .out    = w->all,
                            .counts = w->counts,
                            .scale  = 1,
                            .label  = label_of(o)};
    if (n > 0) status = api_coll_run(g, "pen_gather_bytes", &call, o, NULL);
    return status == PEN_OK && gets ? hand_out(g, w, out) : status;
}

static pen_status check_gather(const pen_group *g, const void *in, size_t size,
                               const pen_bytes *out, int root)
{
    if (root != PEN_EVERY && (root < 0 || root >= g->size))
        return last_error_say(PEN_INVALID_ARGUMENT,
                              "pen_gather_bytes: root %d is not in the group, which has 0 to %d",
                              root, g->size - 1);
    if (out == NULL && (root == PEN_EVERY || root == g->rank))
        return last_error_say(PEN_INVALID_ARGUMENT, "pen_gather_bytes: out is NULL");
    if (in == NULL && size > 0)
        return last_error_say(PEN_INVALID_ARGUMENT, "pen_gather_bytes: in is NULL");
    return refuse_batch(g, "pen_gather_bytes");
}

pen_status pen_gather_bytes(pen_group *g, const void *in, size_t size, pen_bytes *out, int root,
                            const pen_opts *o)
{
    FP_ENV_OURS();
    pen_status status = api_coll_enter(g, "pen_gather_bytes", o, true);
    if (status != PEN_OK) return status;
    status      = check_gather(g, in, size, out, root);
    gathering w = {0};
    if (status == PEN_OK) {
        w.sizes  = calloc((size_t)g->size, sizeof *w.sizes);
        w.counts = calloc((size_t)g->size, sizeof *w.counts);
        if (w.sizes == NULL || w.counts == NULL)
            status = last_error_say(PEN_NO_MEMORY, "no memory for %d lengths", g->size);
    }
    if (status == PEN_OK) status = gather_bytes(g, in, size, out, root, &w, o);
    free(w.sizes);
    free(w.counts);
    free(w.all);
    return context_leave(g->ctx, status);
}
