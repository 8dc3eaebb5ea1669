/* api_context.c - pen_init to pen_finalize, and what a context says about itself. */
#include "worker/api.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

uint32_t pen_version(void)
{
    return PEN_VERSION_MAJOR << 16 | PEN_VERSION_MINOR << 8 | PEN_VERSION_PATCH;
}

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
    if (o->stream != NULL)
        return last_error_say(PEN_UNSUPPORTED, "pen_opts: stream: this build has no CUDA device");
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

/* ---- birth and death ------------------------------------------------------------------------- */
static pen_status join(pen_ctx *ctx)
{
    const pen_opts patient = {.deadline_ms = -1}; /* init_timeout_ms holds */
    request *r;
    pen_status status = request_begin(ctx, REQUEST_JOIN, &patient, NULL, &r);
    return status == PEN_OK ? request_run(r, NULL, NULL) : status;
}

pen_status pen_init(const char *const settings[], pen_ctx **out)
{
    pen_ctx *ctx;
    pen_error why;
    if (out == NULL) return last_error_say(PEN_INVALID_ARGUMENT, "pen_init: ctx is NULL");
    if (request_is_sdk_thread())
        return last_error_say(
            PEN_WRONG_STATE,
            "pen_init: called from a callback, where waiting would wait for itself");
    pen_status status = context_create(settings, &ctx, &why);
    if (status != PEN_OK) return last_error_set(&why);
    status = ctx->engine->open(ctx, &why);
    if (status != PEN_OK)
        last_error_set(&why);
    else
        status = join(ctx);
    if (status != PEN_OK) {
        ctx->engine->close(ctx);
        context_destroy(ctx);
        return status;
    }
    if (ctx->mode != MODE_LOCAL)
        log_info("worker %d of %d (from %s) is in job '%s': mode %s, sync %s, %s", ctx->env.rank,
                 ctx->env.world_size, ctx->env.source, ctx->job, worker_mode_name(ctx->mode),
                 ctx->sync, ctx->settings.deterministic ? "deterministic" : "in order of arrival");
    *out = ctx;
    return PEN_OK;
}

pen_status pen_finalize(pen_ctx *ctx)
{
    if (ctx == NULL || ctx->pid != getpid()) return PEN_OK;
    if (request_is_sdk_thread())
        return last_error_say(PEN_WRONG_STATE,
                              "pen_finalize: called from a callback, which lives in the context");
    request *r;
    pen_status status = PEN_OK;
    request_drain(&ctx->requests);
    if (request_begin(ctx, REQUEST_LEAVE, NULL, NULL, &r) == PEN_OK)
        status = request_run(r, NULL, NULL);
    if (atomic_load(&ctx->has_failed)) status = last_error_set(&ctx->failure);
    ctx->engine->close(ctx);
    context_destroy(ctx);
    return status;
}

/* Only stores, copies of bytes and write(2): allowed in a signal handler. */
void pen_abort(pen_ctx *ctx, const char *why)
{
    if (ctx == NULL || atomic_exchange(&ctx->is_aborting, true)) return;
    size_t n = 0;
    for (; why != NULL && why[n] != '\0' && n < sizeof ctx->abort_why - 1; n++)
        ctx->abort_why[n] = why[n];
    ctx->abort_why[n] = '\0';
    ctx->engine->abort(ctx);
}

/* ---- looking and turning --------------------------------------------------------------------- */
pen_status pen_info_get(pen_ctx *ctx, pen_info *info)
{
    pen_status status = context_check(ctx, "pen_info_get");
    if (status != PEN_OK) return status;
    if (info == NULL) return last_error_say(PEN_INVALID_ARGUMENT, "pen_info_get: info is NULL");
    const worker_env *env = &ctx->env;
    const int32_t servers = ctx->mode != MODE_LOCAL ? (int32_t)ctx->settings.servers : 0;
    *info                 = (pen_info){.rank             = env->rank,
                                       .world_size       = env->world_size,
                                       .local_rank       = env->local_rank,
                                       .local_world_size = env->local_world_size,
                                       .node             = env->node,
                                       .nodes            = env->nodes,
                                       .servers          = servers,
                                       .device           = -1,
                                       .live             = env->world_size,
                                       .accum            = 1,
                                       .step             = ctx->step.next_index,
                                       .epoch            = ctx->mode != MODE_LOCAL ? 1 : 0,
                                       .seed             = ctx->settings.seed};
    snprintf(info->mode, sizeof info->mode, "%s", worker_mode_name(ctx->mode));
    snprintf(info->precision, sizeof info->precision, "fp32");
    snprintf(info->job, sizeof info->job, "%s", ctx->job);
    return PEN_OK;
}

pen_status pen_setting_set(pen_ctx *ctx, const char *name, const char *value)
{
    pen_error why;
    pen_status status = context_check(ctx, "pen_setting_set");
    if (status != PEN_OK) return status;
    if (name == NULL || value == NULL)
        return last_error_say(PEN_INVALID_ARGUMENT, "pen_setting_set: name or value is NULL");
    worker_settings scratch = ctx->settings;
    status                  = config_set(worker_settings_rows, &scratch, name, value, &why);
    if (status != PEN_OK) return last_error_set(&why);
    if (strcmp(name, "deadline_ms") == 0) {
        ctx->settings.deadline_ms = scratch.deadline_ms;
        return PEN_OK;
    }
    if (strcmp(name, "log_level") == 0) {
        int level = log_level_find(value);
        if (level < -1)
            return last_error_say(
                PEN_BAD_SETTING,
                "log_level '%.64s' is none of silent, error, warning, notice, info, debug", value);
        log_level_set(level);
        return PEN_OK;
    }
    return last_error_say(
        PEN_UNSUPPORTED,
        "the setting '%.64s' is fixed at pen_init; deadline_ms and log_level can change later",
        name);
}

/* ---- memory ---------------------------------------------------------------------------------- */
enum { HUGE_PAGE_BYTES = 2 << 20, HUGE_FROM_BYTES = 8 << 20 };

void *pen_alloc(pen_ctx *ctx, size_t bytes, pen_space where)
{
    if (ctx != NULL && context_check(ctx, "pen_alloc") != PEN_OK) return NULL;
    if (where == PEN_CUDA) {
        last_error_say(PEN_UNSUPPORTED, "CUDA: this build has no CUDA device");
        return NULL;
    }
    if (where != PEN_HOST && where != PEN_HOST_PINNED) {
        last_error_say(PEN_INVALID_ARGUMENT, "pen_alloc: %d is no place for memory", (int)where);
        return NULL;
    }
    const bool huge = bytes >= HUGE_FROM_BYTES;
    void *data      = NULL;
    size_t whole    = bytes > 0 ? bytes : 1;
    if (bytes > PTRDIFF_MAX || posix_memalign(&data, huge ? HUGE_PAGE_BYTES : 64, whole) != 0) {
        last_error_say(PEN_NO_MEMORY, "no memory for %zu bytes", bytes);
        return NULL;
    }
    /* Large arrays are read from end to end every step: fewer, larger pages.  Only advice. */
    if (huge) madvise(data, whole, MADV_HUGEPAGE);
    memset(data, 0, whole);
    return data;
}

void pen_free(void *data)
{
    free(data);
}

/* ---- groups ---------------------------------------------------------------------------------- */
pen_group *pen_group_get(pen_ctx *ctx, pen_group_kind kind)
{
    /* Also of a context that has failed: then every call on the group says how. */
    if (ctx == NULL || ctx->pid != getpid()) {
        context_check(ctx, "pen_group_get");
        return NULL;
    }
    if (kind == PEN_GROUP_WORLD) return &ctx->world;
    last_error_say(PEN_UNSUPPORTED,
                   "pen_group_get: groups by host are not in this version; PEN_GROUP_WORLD is");
    return NULL;
}

int pen_rank(const pen_group *g)
{
    return g != NULL ? g->ctx->env.rank : -1;
}
int pen_size(const pen_group *g)
{
    return g != NULL ? g->ctx->env.world_size : -1;
}
