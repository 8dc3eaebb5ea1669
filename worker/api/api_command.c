/* api_command.c - pen_command, pen_on_command, pen_reply: the program's own messages between processes. */
#include "worker/api/api.h"

#include "common/base/why.h"
#include "common/system/fp_env.h"
#include "proto/status_json.h"
#include "worker/io/job_link.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- asking ---------------------------------------------------------------------------------- */
/* Number of processes of that role; for workers, one more than the highest rank that may answer. */
static int32_t count_of(const pen_ctx *ctx, int32_t role)
{
    const pen_group *world = ctx->world;
    const int32_t last     = world->size > 0 ? world->ranks[world->size - 1] + 1 : 0;
    if (role == PEN_WORKER) return last > ctx->env.world_size ? last : ctx->env.world_size;
    if (role == PEN_SERVER) return ctx->mode != MODE_LOCAL ? (int32_t)ctx->settings.servers : 0;
    return ctx->mode != MODE_LOCAL ? 1 : 0;
}

static pen_status check_goal(const pen_ctx *ctx, pen_node to)
{
    if (to.role != PEN_WORKER && to.role != PEN_SERVER && to.role != PEN_SCHEDULER)
        return last_error_report(
            PEN_INVALID_ARGUMENT,
            "pen_command: invalid role %d; expected PEN_WORKER, PEN_SERVER or PEN_SCHEDULER",
            to.role);
    if (to.rank < -1)
        return last_error_report(PEN_INVALID_ARGUMENT,
                                 "pen_command: invalid rank %d; use -1 for all of that role",
                                 to.rank);
    const int32_t n = count_of(ctx, to.role);
    if (n == 0)
        return last_error_report(PEN_NOT_FOUND,
                                 "pen_command: no %s to send to: this worker is alone",
                                 status_role_name(to.role));
    if (to.rank >= n)
        return last_error_report(PEN_NOT_FOUND, "pen_command: no %s %d; the job has %d",
                                 status_role_name(to.role), to.rank, n);
    return PEN_OK;
}

static pen_status check_bytes(const char *call, const void *data, size_t size)
{
    if (data == NULL && size > 0)
        return last_error_report(PEN_INVALID_ARGUMENT, "%s: data is NULL, but size is %zu", call,
                                 size);
    if (size > WIRE_CALL_BYTES_MAX)
        return last_error_report(
            PEN_UNSUPPORTED,
            "%s: %zu bytes are too many; a command carries at most %d, because "
            "it goes through the scheduler",
            call, size, WIRE_CALL_BYTES_MAX);
    return PEN_OK;
}

static pen_status check_replies(const pen_bytes *replies, int cap, uint32_t n)
{
    if (cap < 0) return last_error_report(PEN_INVALID_ARGUMENT, "pen_command: invalid cap %d", cap);
    if (replies != NULL && (uint32_t)cap < n)
        return last_error_report(PEN_TOO_SMALL, "pen_command: cap is %d, but %u replies will come",
                                 cap, n);
    return PEN_OK;
}

static pen_status ask(pen_ctx *ctx, request *r, pen_node to, int head, const void *body,
                      size_t size, pen_bytes *replies, const pen_opts *o, pen_req *req)
{
    r->u.command.to      = to;
    r->u.command.n       = to.rank < 0 ? (uint32_t)count_of(ctx, to.role) : 1;
    r->u.command.head    = head;
    r->u.command.size    = size;
    r->u.command.replies = replies;
    r->u.command.body    = malloc(size + 1);
    if (r->u.command.body == NULL) {
        request_abandon(r);
        if (req != NULL) *req = (pen_req){0};
        return last_error_report(PEN_NO_MEMORY, "no memory for %zu bytes", size);
    }
    if (size > 0) memcpy(r->u.command.body, body, size);
    return api_start(r, o, req);
}

pen_status pen_command(pen_ctx *ctx, pen_node to, int head, const void *body, size_t size,
                       pen_bytes *replies, int cap, const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    request *r;
    pen_status status = context_enter(ctx, "pen_command", req == NULL);
    if (status != PEN_OK) return status;
    status = api_check_opts(o);
    if (status == PEN_OK) status = check_goal(ctx, to);
    if (status == PEN_OK) status = check_bytes("pen_command", body, size);
    if (status == PEN_OK)
        status = check_replies(replies, cap, to.rank < 0 ? (uint32_t)count_of(ctx, to.role) : 1);
    if (status == PEN_OK) status = request_begin(ctx, REQUEST_COMMAND, o, req, &r);
    if (status == PEN_OK) status = ask(ctx, r, to, head, body, size, replies, o, req);
    return req == NULL ? context_leave(ctx, status) : status;
}

/* ---- answering ------------------------------------------------------------------------------- */
pen_status pen_on_command(pen_ctx *ctx, pen_command_fn fn, void *user)
{
    FP_ENV_OURS();
    pen_status status = context_check(ctx, "pen_on_command");
    if (status != PEN_OK) return status;
    pthread_mutex_lock(&ctx->monitor_lock);
    ctx->command      = fn;
    ctx->command_user = user;
    pthread_mutex_unlock(&ctx->monitor_lock);
    return PEN_OK;
}

pen_status command_reply(pen_call *of, pen_status answer, const void *data, size_t n,
                         const uint32_t *lens, pen_error *why)
{
    command_call *call = (command_call *)of;
    pen_ctx *ctx       = call->owner;
    if (context_check(ctx, "pen_reply") != PEN_OK || check_bytes("pen_reply", data, n) != PEN_OK) {
        pen_last_error(why);
        return why->status;
    }
    if (call_check_status(answer, why) != PEN_OK) return why->status;
    if (lens != NULL)
        return why_set(why, PEN_INVALID_ARGUMENT, "pen_reply: lens must be NULL; it is for tables");
    void *copy = n > 0 ? malloc(n) : NULL;
    if (n > 0 && copy == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %zu bytes", n);
    if (atomic_exchange(&call->is_answered, true)) {
        free(copy);
        return why_set(why, PEN_WRONG_STATE, "pen_reply: command %d was already answered",
                       call->head);
    }
    if (n > 0) memcpy(copy, data, n);
    call->status = answer;
    call->data   = copy;
    call->size   = n;
    ctx->link->ops->answer(ctx->link, call);
    return PEN_OK;
}

pen_status pen_reply(pen_call *call, pen_status answer, const void *data, size_t n,
                     const uint32_t *lens)
{
    FP_ENV_OURS();
    pen_error why;
    if (call == NULL) return last_error_report(PEN_INVALID_ARGUMENT, "pen_reply: call is NULL");
    if (call->reply(call, answer, data, n, lens, &why) == PEN_OK) return PEN_OK;
    return last_error_set(&why);
}
