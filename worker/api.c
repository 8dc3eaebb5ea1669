/* api.c - what the public functions share. */
#include "worker/api.h"

#include "common/device/device.h"

pen_status api_check_opts(const pen_opts *o)
{
    pen_error why;
    if (o == NULL) return PEN_OK;
    if (model_check_reserved(o->reserved, 8, "pen_opts", &why) != PEN_OK)
        return last_error_set(&why);
    if (o->deadline_ms < -1)
        return last_error_say(PEN_INVALID_ARGUMENT, "pen_opts: deadline_ms is %lld; -1 is none",
                              (long long)o->deadline_ms);
    if (o->flags & ~(PEN_NOWAIT | PEN_SCALED))
        return last_error_say(PEN_INVALID_ARGUMENT, "pen_opts: unknown flags 0x%x", o->flags);
    char note[256];
    if (o->stream != NULL && device_beside_host(note, sizeof note) == NULL)
        return last_error_say(PEN_UNSUPPORTED, "pen_opts: stream: there is no CUDA device: %s",
                              note);
    return PEN_OK;
}

pen_status api_run(pen_ctx *ctx, const char *call, request_kind kind, const pen_opts *o,
                   pen_req *req)
{
    request *r;
    pen_status status = context_enter(ctx, call, req == NULL);
    if (status != PEN_OK) return status;
    if (api_check_opts(o) != PEN_OK) return context_leave(ctx, PEN_INVALID_ARGUMENT);
    status = request_begin(ctx, kind, o, req, &r);
    if (status == PEN_OK) status = request_run(r, o, req);
    return context_leave(ctx, status);
}

void api_tell(const pen_opts *o, const pen_result *result)
{
    if (o != NULL && o->done != NULL) o->done(result, o->user);
}

bool api_has_device(void)
{
    char note[256];
    return device_beside_host(note, sizeof note) != NULL;
}
