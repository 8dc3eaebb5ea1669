/* api_wait.c - pen_wait, pen_wait_any, pen_wait_stream. */
#include "worker/api/api.h"

#include "common/compute/device/device.h"
#include "common/system/fp_env.h"

#include <unistd.h>

pen_status pen_wait(pen_req *req, pen_result *result)
{
    FP_ENV_OURS();
    if (req == NULL) return last_error_report(PEN_INVALID_ARGUMENT, "pen_wait: req is NULL");
    if (result != NULL) *result = (pen_result){0};
    if (req->ctx == NULL) return PEN_OK;
    const pen_status status = context_check(req->ctx, "pen_wait");
    if (status != PEN_OK && req->ctx->pid != getpid()) return status;
    return request_wait(&req->ctx->requests, req, result);
}

pen_status pen_wait_any(pen_req *reqs, size_t n, int64_t timeout_ms, size_t *index,
                        pen_result *result)
{
    FP_ENV_OURS();
    pen_ctx *ctx = NULL;
    if (reqs == NULL && n > 0)
        return last_error_report(PEN_INVALID_ARGUMENT, "pen_wait_any: reqs is NULL");
    for (size_t i = 0; i < n; i++) {
        if (reqs[i].ctx == NULL) continue;
        if (ctx != NULL && reqs[i].ctx != ctx)
            return last_error_report(
                PEN_INVALID_ARGUMENT,
                "pen_wait_any: requests belong to two contexts; wait for each context by itself");
        ctx = reqs[i].ctx;
    }
    if (ctx == NULL) return PEN_END;
    if (ctx->pid != getpid()) return context_check(ctx, "pen_wait_any");
    return request_wait_any(&ctx->requests, reqs, n, timeout_ms, index, result);
}

pen_status pen_wait_stream(pen_req *req, void *stream)
{
    FP_ENV_OURS();
    if (req == NULL) return last_error_report(PEN_INVALID_ARGUMENT, "pen_wait_stream: req is NULL");
    char note[256];
    if (device_beside_host(note, sizeof note) == NULL)
        return last_error_report(
            PEN_UNSUPPORTED,
            "pen_wait_stream: no CUDA device (%s); use pen_wait() to wait on the host", note);
    if (req->ctx == NULL) return PEN_OK;
    pen_error why;
    pen_status status = context_check(req->ctx, "pen_wait_stream");
    if (status != PEN_OK && req->ctx->pid != getpid()) return status;
    status = api_check_stream("pen_wait_stream", stream, &why);
    return status == PEN_OK ? request_wait_stream(&req->ctx->requests, req, stream)
                            : last_error_set(&why);
}
