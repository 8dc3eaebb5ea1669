/* api.c - shared by the public functions. */
#include "worker/api/api.h"

#include "common/compute/device/device.h"
#include "worker/train/snapshot/snapshot_writer.h"

pen_status api_check_opts(const pen_opts *o)
{
    pen_error why;
    if (o == NULL) return PEN_OK;
    if (model_check_reserved(o->reserved, 8, "pen_opts", &why) != PEN_OK)
        return last_error_set(&why);
    if (o->deadline_ms < -1)
        return last_error_report(PEN_INVALID_ARGUMENT,
                                 "pen_opts: invalid deadline_ms %lld; use -1 for no deadline",
                                 (long long)o->deadline_ms);
    if (o->flags & ~(PEN_NOWAIT | PEN_SCALED | PEN_OVERWRITE))
        return last_error_report(PEN_INVALID_ARGUMENT, "pen_opts: unknown flags 0x%x", o->flags);
    char note[256];
    if (o->stream != NULL && device_beside_host(note, sizeof note) == NULL)
        return last_error_report(PEN_UNSUPPORTED, "pen_opts: stream needs a CUDA device: %s", note);
    return PEN_OK;
}

pen_status api_check_stream(const char *function, void *stream, pen_error *why)
{
    pen_status status = PEN_OK;
    if (!device_is_loaded()) return PEN_OK;
    for (int i = 0; device_all[i] != NULL && status == PEN_OK; i++)
        if (device_all[i]->may_enqueue != NULL)
            status = device_all[i]->may_enqueue(function, stream, why);
    return status;
}

void api_notify(const pen_opts *o, const pen_result *result)
{
    if (o != NULL && o->done != NULL) o->done(result, o->user);
}

/* Without servers the snapshot writer writes snapshots. */
static void start(request *r)
{
    pen_ctx *ctx = r->ctx;
    if (r->kind == REQUEST_STEP || r->kind == REQUEST_VERB || r->kind == REQUEST_PULL_FREE)
        ctx->strategy->ops->start(ctx->strategy, r);
    else if (r->kind == REQUEST_SNAPSHOT && ctx->snapshot_writer != NULL)
        snapshot_writer_start(ctx->snapshot_writer, r);
    else
        ctx->link->ops->start(ctx->link, r);
}

pen_status api_start(request *r, const pen_opts *o, const pen_req *req)
{
    pen_result result = {0};
    start(r);
    if (req != NULL) return PEN_OK;
    const pen_status status = request_await(r, &result);
    api_notify(o, &result);
    return status;
}

pen_status api_check_stays(const pen_ctx *ctx, const char *call)
{
    if (!atomic_load(&ctx->has_stopped)) return PEN_OK;
    return last_error_report(
        PEN_NOT_A_MEMBER,
        "%s: this worker was asked to leave before step %lld, and the others go "
        "on; call it on one that stays (PEN_STEP_STOPPING tells them apart)",
        call, (long long)ctx->step.next_index);
}

pen_status api_check_committed(const pen_ctx *ctx, const char *call)
{
    if (ctx->phase == CONTEXT_COMMITTED) return PEN_OK;
    return last_error_report(
        PEN_WRONG_STATE,
        "%s: pen_commit has not been called; the order is: register, then commit, then step", call);
}

/* ---- the step ---------------------------------------------------------------------------------- */
/* A thread that ends a step holds the lock while it waits for the SDK's thread, so that thread must not wait for
 * the lock. */
pen_status api_lock_step(pen_ctx *ctx, const char *call)
{
    if (!request_is_sdk_thread()) {
        pthread_mutex_lock(&ctx->step.lock);
        return PEN_OK;
    }
    if (pthread_mutex_trylock(&ctx->step.lock) == 0) return PEN_OK;
    return last_error_report(PEN_WRONG_STATE,
                             "%s: called from a callback while another thread uses the step", call);
}

pen_status api_values_came(pen_ctx *ctx)
{
    if (ctx->step.values.ctx == NULL) return PEN_OK;
    pen_req req      = ctx->step.values;
    ctx->step.values = (pen_req){0};
    return request_wait(&ctx->requests, &req, NULL);
}

/* Without units, the program means all values.  Tensors of a device are copied there together. */
static bool comes_by_unit(const pen_ctx *ctx, const pen_unit *u)
{
    return ctx->strategy != NULL && ctx->strategy->tells_values && ctx->stage < 3 &&
           ctx->memory.device_copies == NULL && (u->index != 0 || ctx->names_units);
}

pen_status api_wait_for_unit(pen_ctx *ctx, const pen_unit *u, const char *call)
{
    pen_status status = api_lock_step(ctx, call);
    if (status != PEN_OK) return status;
    const pen_req *values = &ctx->step.values;
    if (values->ctx == NULL || !comes_by_unit(ctx, u) ||
        !request_wait_values(&ctx->requests, values, ctx->model.tensor, u->tensor, u->n_tensors))
        status = api_values_came(ctx);
    pthread_mutex_unlock(&ctx->step.lock);
    return status;
}

pen_status api_wait_for_values(pen_ctx *ctx, const char *call)
{
    pen_status status = api_lock_step(ctx, call);
    if (status != PEN_OK) return status;
    status = api_values_came(ctx);
    pthread_mutex_unlock(&ctx->step.lock);
    return status;
}
