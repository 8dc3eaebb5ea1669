/* api_meet.c - what all ranks do together: barrier, a reduction of a few values, digest,
 * snapshot. */
#include "worker/api.h"

#include "common/crc.h"
#include "proto/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEET_BYTES_MAX = 32 << 10 };

/* ---- all_reduce ------------------------------------------------------------------------------ */
#define SCALE(type, in, out, n, scale)                                                             \
    for (size_t i = 0; i < (n); i++) ((type *)(out))[i] = (type)(((const type *)(in))[i] * (scale))

static void scale_into(void *out, const void *in, pen_dtype t, size_t n, double scale)
{
    switch (t) {
    case PEN_F32: SCALE(float, in, out, n, scale); break;
    case PEN_F64: SCALE(double, in, out, n, scale); break;
    case PEN_I32: SCALE(int32_t, in, out, n, scale); break;
    case PEN_I64: SCALE(int64_t, in, out, n, scale); break;
    case PEN_U64: SCALE(uint64_t, in, out, n, scale); break;
    default: break;
    }
}

static bool is_reducible(pen_dtype t)
{
    return t == PEN_F32 || t == PEN_F64 || t == PEN_I32 || t == PEN_I64 || t == PEN_U64;
}

static pen_status check_reduce(const void *in, const void *out, size_t n, pen_dtype t, pen_op op)
{
    if (n > 0 && (in == NULL || out == NULL))
        return last_error_say(PEN_INVALID_ARGUMENT, "pen_all_reduce: in or out is NULL");
    if (!is_reducible(t))
        return last_error_say(
            PEN_UNSUPPORTED,
            "pen_all_reduce: %s is not in this version; f32, f64, i32, i64 and u64 are",
            plan_dtype_name(t));
    if (op < PEN_SUM || op > PEN_MAX)
        return last_error_say(PEN_UNSUPPORTED, "pen_all_reduce: this operation is not in this "
                                               "version; SUM, AVG, PROD, MIN and MAX are");
    if (n > MEET_BYTES_MAX / plan_dtype_bytes(t))
        return last_error_say(PEN_UNSUPPORTED,
                              "pen_all_reduce: %zu bytes; in this version at most %d go through "
                              "the scheduler: it is for a few values",
                              n * plan_dtype_bytes(t), MEET_BYTES_MAX);
    return PEN_OK;
}

typedef struct {
    const char *label;
    int32_t op; /* -1: barrier */
    pen_dtype dtype;
    const void *in;
    void *out;
    size_t n;
    double scale;
} meeting;

static pen_status fill(request *r, const meeting *m)
{
    size_t size     = m->op >= 0 ? m->n * plan_dtype_bytes(m->dtype) : 0;
    r->u.meet.op    = m->op;
    r->u.meet.dtype = m->dtype;
    r->u.meet.count = m->n;
    r->u.meet.size  = size;
    r->u.meet.out   = m->out;
    r->u.meet.label = strndup(m->label != NULL ? m->label : "", 127);
    r->u.meet.in    = malloc(size + 1);
    if (r->u.meet.label == NULL || r->u.meet.in == NULL) {
        free(r->u.meet.label);
        free(r->u.meet.in);
        request_abandon(r);
        return last_error_say(PEN_NO_MEMORY, "no memory for %zu bytes", size);
    }
    if (size > 0 && m->scale == 1)
        memcpy(r->u.meet.in, m->in, size);
    else if (size > 0)
        scale_into(r->u.meet.in, m->in, m->dtype, m->n, m->scale);
    return PEN_OK;
}

static pen_status meet(pen_ctx *ctx, const meeting *m, const pen_opts *o, pen_req *req)
{
    request *r;
    pen_status status = request_begin(ctx, REQUEST_MEET, o, req, &r);
    if (status == PEN_OK) status = fill(r, m);
    return status == PEN_OK ? request_run(r, o, req) : status;
}

static pen_status enter(const pen_group *g, const char *call, const pen_opts *o, bool waits)
{
    if (g == NULL) return last_error_say(PEN_INVALID_ARGUMENT, "%s: the group is NULL", call);
    pen_status status = api_check_opts(o);
    return status == PEN_OK ? context_enter(g->ctx, call, waits) : status;
}

pen_status pen_all_reduce(pen_group *g, const void *in, void *out, size_t n, pen_dtype t, pen_op op,
                          const pen_opts *o, pen_req *req)
{
    pen_status status = enter(g, "pen_all_reduce", o, req == NULL);
    if (status != PEN_OK) return status;
    const bool is_scaled = o != NULL && (o->flags & PEN_SCALED) != 0;
    const meeting m      = {.label = o != NULL ? o->label : NULL,
                            .op    = (int32_t)op,
                            .dtype = t,
                            .in    = in,
                            .out   = out,
                            .n     = n,
                            .scale = is_scaled ? o->scale : 1};
    status               = check_reduce(in, out, n, t, op);
    if (status == PEN_OK) status = meet(g->ctx, &m, o, req);
    return req == NULL ? context_leave(g->ctx, status) : status;
}

pen_status pen_barrier(pen_group *g, const pen_opts *o, pen_req *req)
{
    pen_status status = enter(g, "pen_barrier", o, req == NULL);
    if (status != PEN_OK) return status;
    const meeting m = {.label = o != NULL ? o->label : NULL, .op = -1};
    status          = meet(g->ctx, &m, o, req);
    return req == NULL ? context_leave(g->ctx, status) : status;
}

/* ---- snapshot -------------------------------------------------------------------------------- */
pen_status pen_snapshot(pen_ctx *ctx, const pen_opts *o, pen_req *req)
{
    pen_status status = context_check(ctx, "pen_snapshot");
    if (status != PEN_OK) return status;
    if (req == NULL && ctx->mode != MODE_LOCAL)
        return last_error_say(PEN_WRONG_STATE, "pen_snapshot: it is taken with the next step, so "
                                               "waiting here would wait for ever; pass a pen_req, "
                                               "and pen_wait() after that step");
    return api_run(ctx, "pen_snapshot", REQUEST_SNAPSHOT, o, req);
}

/* ---- digest ---------------------------------------------------------------------------------- */
static uint32_t crc_of(const model *m)
{
    uint32_t crc = 0;
    for (uint32_t i = 0; i < m->n_tensors; i++)
        crc = crc32c(crc, m->tensor[i]->param, m->tensor[i]->bytes);
    return crc;
}

/* Where each push is applied on its own, ranks hold values of different moments: all stop, then all
 * fetch. */
static pen_status fetch_free(pen_ctx *ctx)
{
    request *r;
    const meeting stop = {.label = "digest", .op = -1};
    pen_status status  = meet(ctx, &stop, NULL, NULL);
    if (status != PEN_OK) return status;
    status = request_begin(ctx, REQUEST_PULL_FREE, NULL, NULL, &r);
    return status == PEN_OK ? request_run(r, NULL, NULL) : status;
}

static pen_status differ(const pen_ctx *ctx, const uint64_t *crc)
{
    pen_error why;
    int32_t other = 1;
    while (crc[other] == crc[0]) other++;
    why_set(&why, PEN_MISMATCH, "parameters differ: crc32c is %08x on rank 0 and %08x on rank %d",
            (uint32_t)crc[0], (uint32_t)crc[other], other);
    why_culprit(&why, PEN_WORKER, other, ctx->step.next_index, NULL);
    return last_error_set(&why);
}

/* Everyone sends its number in its own place and zeros elsewhere, so the sum is the list of all. */
static pen_status compare(pen_ctx *ctx, uint32_t crc)
{
    const uint32_t ranks = (uint32_t)ctx->env.world_size;
    if (ranks * sizeof(uint64_t) > MEET_BYTES_MAX)
        return last_error_say(PEN_UNSUPPORTED, "pen_digest: more than %zu workers",
                              MEET_BYTES_MAX / sizeof(uint64_t));
    uint64_t *all = calloc(2 * (size_t)ranks, sizeof *all);
    if (all == NULL) return last_error_say(PEN_NO_MEMORY, "no memory for %u digests", ranks);
    all[ctx->env.rank]  = crc;
    const meeting m     = {.label = "digest",
                           .op    = PEN_SUM,
                           .dtype = PEN_U64,
                           .in    = all,
                           .out   = all + ranks,
                           .n     = ranks,
                           .scale = 1};
    pen_status status   = meet(ctx, &m, NULL, NULL);
    const uint64_t *got = all + ranks;
    for (uint32_t i = 1; i < ranks && status == PEN_OK; i++)
        if (got[i] != got[0]) status = differ(ctx, got);
    free(all);
    return status;
}

pen_status pen_digest(pen_ctx *ctx, uint32_t *crc32c_out)
{
    pen_status status = context_enter(ctx, "pen_digest", true);
    if (status != PEN_OK) return status;
    if (crc32c_out == NULL)
        status = last_error_say(PEN_INVALID_ARGUMENT, "pen_digest: crc32c is NULL");
    else if (ctx->phase != CONTEXT_COMMITTED)
        status = last_error_say(
            PEN_WRONG_STATE,
            "pen_digest: pen_commit has not been called; register, then commit, then step");
    if (status == PEN_OK) status = api_wait_for_values(ctx, "pen_digest");
    if (status == PEN_OK && ctx->model.n_free > 0 && ctx->mode != MODE_LOCAL)
        status = fetch_free(ctx);
    const uint32_t crc = status == PEN_OK ? crc_of(&ctx->model) : 0;
    if (status == PEN_OK) status = compare(ctx, crc);
    if (status == PEN_OK) *crc32c_out = crc;
    return context_leave(ctx, status);
}
