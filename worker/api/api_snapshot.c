/* api_snapshot.c - pen_snapshot and pen_digest. */
#include "worker/api/api_coll.h"
#include "worker/tensor/unit_use.h"

#include "common/base/crc.h"
#include "common/base/why.h"
#include "common/system/fp_env.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- snapshot -------------------------------------------------------------------------------- */
pen_status pen_snapshot(pen_ctx *ctx, const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    pen_status status = context_check(ctx, "pen_snapshot");
    if (status == PEN_OK) status = api_check_stays(ctx, "pen_snapshot");
    if (status != PEN_OK) return status;
    if (req == NULL && ctx->mode != MODE_LOCAL)
        return last_error_report(
            PEN_WRONG_STATE, "pen_snapshot: req is NULL, but the snapshot is taken with the next "
                             "step; pass a pen_req and call pen_wait() after that step");
    request *r;
    status = context_enter(ctx, "pen_snapshot", req == NULL);
    if (status == PEN_OK) status = api_check_opts(o);
    if (status == PEN_OK) status = request_begin(ctx, REQUEST_SNAPSHOT, o, req, &r);
    if (status == PEN_OK) status = api_start(r, o, req);
    return context_leave(ctx, status);
}

/* ---- digest ---------------------------------------------------------------------------------- */
static pen_status add_crc(pen_tensor *t, void *user, pen_error *why)
{
    uint32_t *crc = user;
    (void)why;
    *crc = crc32c(*crc, t->param, t->bytes);
    return PEN_OK;
}

static pen_status crc_of(pen_ctx *ctx, uint32_t *crc)
{
    pen_error why;
    *crc                    = 0;
    const pen_status status = unit_each_tensor(ctx, add_crc, crc, &why);
    return status == PEN_OK ? status : last_error_set(&why);
}

/* When pushes are applied one by one, ranks hold values of different moments: all stop, then all fetch. */
static pen_status fetch_free(pen_ctx *ctx)
{
    request *r;
    const coll_call stop = {
        .kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = "pen_digest"};
    pen_status status = context_is_elastic(ctx) ? PEN_OK : api_coll_wait(ctx->world, &stop, NULL);
    if (status != PEN_OK) return status;
    status = request_begin(ctx, REQUEST_PULL_FREE, NULL, NULL, &r);
    return status == PEN_OK ? api_start(r, NULL, NULL) : status;
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

static pen_status compare(pen_ctx *ctx, uint32_t crc)
{
    const int ranks = ctx->world->size;
    uint64_t own = crc, *all = calloc((size_t)ranks, sizeof *all);
    if (all == NULL) return last_error_report(PEN_NO_MEMORY, "no memory for %d digests", ranks);
    const coll_call call = {.kind  = COLL_ALL_GATHER,
                            .dtype = PEN_U64,
                            .n     = 1,
                            .in    = &own,
                            .out   = all,
                            .scale = 1,
                            .label = "pen_digest"};
    pen_status status    = api_coll_wait(ctx->world, &call, NULL);
    for (int i = 1; i < ranks && status == PEN_OK; i++)
        if (all[i] != all[0]) status = differ(ctx, all);
    free(all);
    return status;
}

/* When members may come or go, no rank knows how many will compare.  A counter of the key-value
 * store adds up the digests of this step and their number.  If all are equal, the sum is the number
 * times the digest; a rank that comes after a different one sees the difference. */
static pen_status compare_by_count(pen_ctx *ctx, uint32_t crc)
{
    enum { COUNT_SHIFT = 46 };
    char key[64];
    int64_t sum;
    const int64_t step = ctx->step.next_index;
    ctx->n_digests     = ctx->digest_step == step ? ctx->n_digests + 1 : 0;
    ctx->digest_step   = step;
    snprintf(key, sizeof key, "penstock/digest %lld.%u", (long long)step, ctx->n_digests);
    pen_status status = pen_store_add(ctx, key, ((int64_t)1 << COUNT_SHIFT) + crc, &sum);
    if (status != PEN_OK) return status;
    const int64_t n = sum >> COUNT_SHIFT, all = sum & (((int64_t)1 << COUNT_SHIFT) - 1);
    if (all == n * (int64_t)crc) return PEN_OK;
    pen_error why;
    why_set(&why, PEN_MISMATCH,
            "parameters differ at step %lld: crc32c is %08x on rank %d and another value on one of "
            "the %lld ranks before it",
            (long long)step, crc, ctx->env.rank, (long long)n - 1);
    why_culprit(&why, PEN_WORKER, ctx->env.rank, step, NULL);
    return last_error_set(&why);
}

static pen_status compare_all(pen_ctx *ctx, uint32_t crc)
{
    if (!context_outlives_loss(ctx)) return compare(ctx, crc);
    return ctx->model.n_free == 0 ? compare_by_count(ctx, crc) : PEN_OK;
}

pen_status pen_digest(pen_ctx *ctx, uint32_t *crc32c_out)
{
    FP_ENV_OURS();
    pen_status status = context_enter(ctx, "pen_digest", true);
    if (status != PEN_OK) return status;
    if (crc32c_out == NULL)
        status = last_error_report(PEN_INVALID_ARGUMENT, "pen_digest: crc32c is NULL");
    else
        status = api_check_committed(ctx, "pen_digest");
    if (status == PEN_OK) status = api_wait_for_values(ctx, "pen_digest");
    if (status == PEN_OK && ctx->model.n_free > 0 && ctx->mode != MODE_LOCAL)
        status = fetch_free(ctx);
    uint32_t crc = 0;
    if (status == PEN_OK) status = crc_of(ctx, &crc);
    if (status == PEN_OK) status = compare_all(ctx, crc);
    if (status == PEN_OK) *crc32c_out = crc;
    return context_leave(ctx, status);
}
