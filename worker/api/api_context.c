/* api_context.c - pen_init to pen_finalize, pen_info_get, pen_setting_set. */
#include "worker/api/api.h"
#include "worker/io/hosted.h"
#include "worker/io/worker_monitor.h"
#include "worker/step_decided.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/train/buffers.h"
#include "worker/train/snapshot/snapshot_writer.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/compute/device/device.h"
#include "common/net/monitor.h"
#include "common/system/fp_env.h"
#include "common/system/own_pid.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint32_t pen_version(void)
{
    return PEN_VERSION_MAJOR << 16 | PEN_VERSION_MINOR << 8 | PEN_VERSION_PATCH;
}

/* ---- create and destroy ---------------------------------------------------------------------- */
static pen_status open_link(pen_ctx *ctx, pen_error *why)
{
    if (!ctx->has_servers && snapshot_writer_create(ctx, why) != PEN_OK) return why->status;
    return ctx->mode == MODE_LOCAL ? alone_open(ctx, why) : io_open(ctx, why);
}

static pen_status join(pen_ctx *ctx)
{
    const pen_opts patient = {.deadline_ms = -1}; /* init_timeout_ms limits it */
    request *r;
    pen_status status = request_begin(ctx, REQUEST_JOIN, &patient, NULL, &r);
    return status == PEN_OK ? api_start(r, NULL, NULL) : status;
}

static void destroy(pen_ctx *ctx)
{
    monitor_stop(ctx->monitor);
    device_copies_stop(ctx);
    if (ctx->link != NULL) ctx->link->ops->close(ctx->link);
    ctx->link = NULL;
    strategy_close(ctx);
    buffers_close(ctx);
    snapshot_writer_destroy(ctx);
    monitor_close(ctx->monitor);
    context_destroy(ctx);
}

/* In the order of sum_order. */
static const char *const order_words[] = {"in order of arrival", "deterministic",
                                          "deterministic by node"};

pen_status pen_init(const char *const settings[], pen_ctx **out)
{
    FP_ENV_OURS();
    pen_ctx *ctx;
    pen_error why;
    if (out == NULL) return last_error_report(PEN_INVALID_ARGUMENT, "pen_init: ctx is NULL");
    if (request_is_sdk_thread())
        return last_error_report(
            PEN_WRONG_STATE,
            "pen_init: called from a callback, where waiting would wait for itself");
    pen_status status = context_create(settings, &ctx, &why);
    if (status != PEN_OK) {
        hosted_decline(settings, &why);
        return last_error_set(&why);
    }
    const bool is_placed = ctx->env.local_rank >= 0; /* else the job assigns the place */
    status               = open_link(ctx, &why);
    const bool is_early  = status != PEN_OK && ctx->hosted == NULL;
    if (status == PEN_OK && is_placed) status = worker_monitor_open(ctx, &why);
    if (status == PEN_OK && (status = join(ctx)) != PEN_OK) pen_last_error(&why);
    if (status == PEN_OK && !is_placed) status = worker_monitor_open(ctx, &why);
    if (status == PEN_OK) status = device_copies_open(ctx, &why);
    if (status != PEN_OK) last_error_set(&why);
    if (status != PEN_OK) {
        destroy(ctx);
        if (is_early) hosted_decline(settings, &why);
        return status;
    }
    if (ctx->mode != MODE_LOCAL)
        log_info("worker %d of %d (from %s) is in job '%s': mode %s, sync %s, %s", ctx->env.rank,
                 ctx->env.world_size, ctx->env.source, ctx->job, context_mode_name(ctx), ctx->sync,
                 order_words[ctx->settings.deterministic]);
    *out = ctx;
    return PEN_OK;
}

pen_status pen_finalize(pen_ctx *ctx)
{
    FP_ENV_OURS();
    if (ctx == NULL || ctx->pid != own_pid()) return PEN_OK;
    if (request_is_sdk_thread())
        return last_error_report(
            PEN_WRONG_STATE, "pen_finalize: called from a callback of the context it would free");
    request *r;
    pen_error why;
    pen_status status = PEN_OK;
    request_drain(&ctx->requests);
    if (!atomic_load(&ctx->has_failed) && step_settle_all(ctx, &why) != PEN_OK)
        status = last_error_set(&why);
    context_log_step(ctx);
    if (request_begin(ctx, REQUEST_LEAVE, NULL, NULL, &r) == PEN_OK) {
        const pen_status left = api_start(r, NULL, NULL);
        if (status == PEN_OK) status = left;
    }
    if (atomic_load(&ctx->has_failed)) status = last_error_set(&ctx->failure);
    destroy(ctx);
    return status;
}

/* Only stores, copies of bytes, a posted task and write(2): allowed in a signal handler. */
void pen_abort(pen_ctx *ctx, const char *why)
{
    if (ctx == NULL || atomic_exchange(&ctx->is_aborting, true)) return;
    size_t n = 0;
    for (; why != NULL && why[n] != '\0' && n < sizeof ctx->abort_why - 1; n++)
        ctx->abort_why[n] = why[n];
    ctx->abort_why[n] = '\0';
    if (ctx->link != NULL) ctx->link->ops->abort(ctx->link);
}

/* ---- info and settings --- --------------------------------------------------------------------- */
/* The size of the world; a late worker that has not begun a step sees the members instead. */
static int32_t count_live(pen_ctx *ctx)
{
    const uint32_t n = members_count(&ctx->members);
    return ctx->settings.servers > 0 && n > 0 ? (int32_t)n : ctx->world->size;
}

static uint32_t caps_of(const pen_ctx *ctx)
{
    char note[256];
    const device_ops *device = device_beside_host(note, sizeof note);
    const bool has_nccl =
        device != NULL && ctx->coll != NULL && coll_engine_may_use_nccl(ctx->coll, device);
    return (device != NULL ? PEN_CAP_CUDA | PEN_CAP_STREAM : 0) | (has_nccl ? PEN_CAP_NCCL : 0) |
           (context_outlives_loss(ctx) ? PEN_CAP_ELASTIC : 0);
}

pen_status pen_info_get(pen_ctx *ctx, pen_info *info)
{
    FP_ENV_OURS();
    pen_status status = context_check(ctx, "pen_info_get");
    if (status != PEN_OK) return status;
    if (info == NULL) return last_error_report(PEN_INVALID_ARGUMENT, "pen_info_get: info is NULL");
    const worker_env *env = &ctx->env;
    const int32_t servers = ctx->mode != MODE_LOCAL ? (int32_t)ctx->settings.servers : 0;
    *info                 = (pen_info){.rank             = env->rank,
                                       .world_size       = env->world_size,
                                       .local_rank       = env->local_rank,
                                       .local_world_size = env->local_world_size,
                                       .node             = env->node,
                                       .nodes            = env->nodes,
                                       .servers          = servers,
                                       .device           = device_copies_device(ctx),
                                       .live             = count_live(ctx),
                                       .accum            = (int32_t)ctx->settings.accum,
                                       .micro_batch      = (int64_t)ctx->settings.micro_batch,
                                       .global_batch     = (int64_t)ctx->settings.train_batch,
                                       .step             = ctx->step.next_index,
                                       .epoch            = members_epoch(&ctx->members),
                                       .seed             = ctx->settings.seed,
                                       .caps             = caps_of(ctx)};
    snprintf(info->mode, sizeof info->mode, "%s", context_mode_name(ctx));
    snprintf(info->precision, sizeof info->precision, "%s",
             worker_precision_name(ctx->settings.precision));
    snprintf(info->job, sizeof info->job, "%s", ctx->job);
    return PEN_OK;
}

pen_status pen_setting_set(pen_ctx *ctx, const char *name, const char *value)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_check(ctx, "pen_setting_set");
    if (status != PEN_OK) return status;
    if (name == NULL || value == NULL)
        return last_error_report(PEN_INVALID_ARGUMENT, "pen_setting_set: name or value is NULL");
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
            return last_error_report(
                PEN_BAD_SETTING,
                "invalid log_level '%.64s'; expected silent, error, warning, notice, info or debug",
                value);
        log_level_set(level);
        return PEN_OK;
    }
    return last_error_report(
        PEN_UNSUPPORTED,
        "cannot change '%.64s' after pen_init; only deadline_ms and log_level can change", name);
}
