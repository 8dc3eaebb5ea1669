/* context.c - a pen_ctx: how it is made from settings and environment, and what every call checks
 * first. */
#include "worker/context.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/simd/simd.h"
#include "common/trace.h"
#include "worker/api_store.h"
#include "worker/calls.h"
#include "worker/coll/engine.h"
#include "worker/last_error.h"
#include "worker/mirror.h"
#include "worker/precision.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- mode and consistency -------------------------------------------------------------------- */
static bool begins_with_word(const char *text, const char *word)
{
    size_t n = strlen(word);
    return strncmp(text, word, n) == 0 && (text[n] == '\0' || text[n] == ' ');
}

static worker_mode mode_of_sync(const char *sync)
{
    if (begins_with_word(sync, "ssp")) return MODE_PS_SSP;
    if (begins_with_word(sync, "async")) return MODE_PS_ASYNC;
    return MODE_PS_BSP;
}

static bool is_without_servers(worker_mode mode)
{
    return mode == MODE_ALLREDUCE || worker_mode_stage((int)mode) > 0;
}

/* What all ranks wait for, whoever holds the state. */
static worker_mode mode_of_rule(worker_mode mode)
{
    return mode == MODE_PS_HIER || is_without_servers(mode) ? MODE_PS_BSP : mode;
}

/* engine_two_level does as engine_servers where sums of nodes are neither wanted nor worth it. */
static const engine_ops *engine_of(worker_mode mode, const worker_settings *s)
{
    if (mode == MODE_LOCAL) return &engine_local;
    if (mode == MODE_ALLREDUCE) return &engine_allreduce;
    if (worker_mode_stage((int)mode) > 0) return &engine_sharded;
    if (mode == MODE_PS_HIER) return &engine_two_level;
    const bool may_sum =
        mode == MODE_PS_BSP && s->commit == COMMIT_DECIDE && worker_mode_stage(s->mode) < 2;
    return may_sum && s->two_level != TWO_LEVEL_NO ? &engine_two_level : &engine_servers;
}

/* What the settings and the environment come to for a member of a job. */
static pen_status choose_mode_of_job(pen_ctx *ctx, worker_mode *chosen, pen_error *why)
{
    const worker_settings *s = &ctx->settings;
    worker_mode mode         = *chosen;
    if (mode == MODE_AUTO) mode = mode_of_sync(s->sync);
    if (s->mode == MODE_AUTO && mode == MODE_PS_BSP && s->servers <= 0) mode = MODE_ALLREDUCE;
    if (mode == MODE_LOCAL)
        return why_set(why, PEN_BAD_SETTING,
                       "mode=local and a world of %d workers contradict each other",
                       ctx->env.world_size);
    if (s->servers <= 0 && !is_without_servers(mode))
        return why_set(why, PEN_BAD_SETTING,
                       "mode=%s needs servers, and none were given: start the job with "
                       "`penstock run --servers 1`, set PENSTOCK_SERVERS, or use "
                       "mode=allreduce",
                       worker_mode_name((int)mode));
    if (mode == MODE_ALLREDUCE && s->on_worker_loss == LOSS_WAIT)
        return why_set(why, PEN_UNSUPPORTED,
                       "on_worker_loss=wait needs servers, which hold what the worker comes "
                       "back to: start the job with `penstock run --servers 1`, or use "
                       "on_worker_loss=continue");
    if (s->servers > 0 && s->accum_reduce == ACCUM_REDUCE_EACH)
        return why_set(why, PEN_UNSUPPORTED,
                       "accum_reduce=each and servers=%lld: gradients are added up on the worker "
                       "and sent with the last micro-batch; use accum_reduce=last",
                       (long long)s->servers);
    ctx->stage = worker_mode_stage((int)mode);
    if (ctx->stage > 0 && s->servers > 0) mode = MODE_PS_BSP;
    if (is_without_servers(mode)) ctx->settings.servers = 0;
    *chosen = mode;
    return PEN_OK;
}

/* Which kind of state is whose changes nothing about who waits for whom. */
static const char *usual_sync(worker_mode mode)
{
    return mode == MODE_PS_SSP ? "ssp s=2" : mode == MODE_PS_ASYNC ? "async" : "bsp";
}

static pen_status check_sync(const pen_ctx *ctx, worker_mode mode, const char *sync, pen_error *why)
{
    if (mode != MODE_LOCAL && mode_of_sync(sync) != mode_of_rule(mode))
        return why_set(why, PEN_BAD_SETTING, "mode=%s and sync=%s contradict each other",
                       worker_mode_name((int)mode), sync);
    if (mode_of_sync(sync) != MODE_PS_BSP && ctx->settings.clip > 0)
        return why_set(why, PEN_BAD_SETTING,
                       "sync=%s and clip=%g contradict each other: there is no moment at which all "
                       "gradients are known",
                       sync, ctx->settings.clip);
    return PEN_OK;
}

static pen_status choose_mode(pen_ctx *ctx, pen_error *why)
{
    const worker_settings *s = &ctx->settings;
    worker_mode mode         = (worker_mode)s->mode;
    if (ctx->env.alone) {
        if (s->servers > 0)
            return why_set(why, PEN_BAD_SETTING,
                           "servers=%lld, but no RANK says who this worker is; `penstock run "
                           "--servers %lld` starts all",
                           (long long)s->servers, (long long)s->servers);
        if (mode == MODE_AUTO || is_without_servers(mode) || s->servers < 0) mode = MODE_LOCAL;
    } else if (choose_mode_of_job(ctx, &mode, why) != PEN_OK) {
        return why->status;
    }
    /* A program written for ssp or async keeps its meaning when it runs alone. */
    const worker_mode given = s->mode == MODE_AUTO ? mode : (worker_mode)s->mode;
    const char *sync        = s->sync[0] != '\0' ? s->sync : usual_sync(given);
    if (check_sync(ctx, mode, sync, why) != PEN_OK) return why->status;
    ctx->mode = mode;
    ctx->rule = s->commit == COMMIT_EAGER ? EXCHANGE_EAGER : EXCHANGE_DECIDE;
    memcpy(ctx->sync, sync, strlen(sync) + 1);
    ctx->engine = engine_of(mode, s);
    return PEN_OK;
}

const char *context_mode_name(const pen_ctx *ctx)
{
    const bool is_sharded_by_servers = ctx->mode == MODE_PS_BSP && ctx->stage > 0;
    return worker_mode_name(is_sharded_by_servers ? ctx->settings.mode : (int)ctx->mode);
}

/* ---- birth and death ------------------------------------------------------------------------- */
static void name_job(pen_ctx *ctx)
{
    if (ctx->settings.job[0] != '\0')
        snprintf(ctx->job, sizeof ctx->job, "%.47s", ctx->settings.job);
    else
        snprintf(ctx->job, sizeof ctx->job, "%.47s", program_invocation_short_name);
}

static pen_status set_up(pen_ctx *ctx, const char *const *settings, pen_error *why)
{
    worker_settings *s = &ctx->settings;
    pen_status status  = worker_settings_load(s, settings, why);
    if (status != PEN_OK) return status;
    if (s->log_level[0] != '\0') {
        int level = log_level_find(s->log_level);
        if (level < -1)
            return why_set(why, PEN_BAD_SETTING,
                           "log_level '%s' is none of silent, error, warning, notice, info, debug",
                           s->log_level);
        log_level_set(level);
    }
    log_format_set(s->log_format);
    status = simd_choose(s->simd, why);
    if (status == PEN_OK) status = worker_env_resolve(s, config_env, &ctx->env, why);
    if (status == PEN_OK) log_format_as("worker", ctx->env.rank);
    if (status == PEN_OK && s->log_ranks == WORKER_LOG_FIRST && ctx->env.rank > 0)
        log_level_set(LOG_ERROR);
    if (status == PEN_OK) s->servers = ctx->env.servers;
    if (status == PEN_OK && s->gather_16bit_on_save && s->store[0] == '\0' && ctx->env.rank <= 0)
        log_notice("gather_16bit_on_save has no effect without snapshots: there is no store "
                   "(--store DIR)");
    ctx->states.rank = ctx->env.rank;
    if (status == PEN_OK) status = choose_mode(ctx, why);
    if (status == PEN_OK) status = precision_set_up(ctx, why);
    if (status == PEN_OK) status = own_state_init(ctx, why);
    if (status == PEN_OK) status = mirror_open(ctx, why);
    if (status == PEN_OK) status = model_init(&ctx->model, ctx, why);
    return status;
}

static pen_status open_trace(const pen_ctx *ctx, pen_error *why)
{
    const worker_settings *s = &ctx->settings;
    if (s->trace[0] == '\0') return PEN_OK;
    if (trace_open(s->trace, s->trace_events, PEN_WORKER, ctx->env.rank, why) != PEN_OK)
        return why->status;
    trace_who(PEN_WORKER, ctx->env.rank, ctx->job);
    return PEN_OK;
}

pen_status context_create(const char *const *settings, pen_ctx **out, pen_error *why)
{
    pen_ctx *ctx = calloc(1, sizeof *ctx);
    if (ctx == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a context");
    if (request_table_init(&ctx->requests, UINT64_MAX, why) != PEN_OK) {
        free(ctx);
        return why->status;
    }
    pthread_mutex_init(&ctx->step.lock, NULL);
    pthread_mutex_init(&ctx->failure_lock, NULL);
    pthread_mutex_init(&ctx->held_lock, NULL);
    pthread_cond_init(&ctx->held_returned, NULL);
    pthread_mutex_init(&ctx->use_lock, NULL);
    pthread_mutex_init(&ctx->watch_lock, NULL);
    members_init(&ctx->members);
    state_table_init(&ctx->states);
    ctx->pid = getpid();
    atomic_store(&ctx->call, "pen_init");
    atomic_store(&ctx->step_index, -1);
    ctx->digest_step = -1;
    atomic_store(&ctx->call_since_ms, clock_ms(&clock_real));
    if (gethostname(ctx->host, sizeof ctx->host - 1) != 0)
        memcpy(ctx->host, "unknown", sizeof "unknown");
    pen_status status = set_up(ctx, settings, why);
    if (status != PEN_OK) {
        context_destroy(ctx);
        return status;
    }
    ctx->requests.in_flight_max = ctx->settings.requests_max;
    name_job(ctx);
    status     = open_trace(ctx, why);
    ctx->world = group_create_world(ctx, ctx->env.world_size, ctx->env.rank);
    if (status == PEN_OK && ctx->world == NULL)
        status = why_set(why, PEN_NO_MEMORY, "no memory for a group");
    if (status == PEN_OK && ctx->env.alone)
        status = coll_engine_create(ctx, NULL, NULL, &ctx->coll, why);
    if (status != PEN_OK) {
        context_destroy(ctx);
        return status;
    }
    *out = ctx;
    return PEN_OK;
}

void context_destroy(pen_ctx *ctx)
{
    while (ctx->unanswered != NULL) {
        pen_call *call  = ctx->unanswered;
        ctx->unanswered = call->next;
        free(call->data);
        free(call);
    }
    coll_engine_destroy(ctx->coll); /* alone; the client ends its own, groups and all */
    group_destroy(ctx->world);
    for (uint32_t i = 0; i < ctx->n_old_worlds; i++) group_destroy(ctx->old_world[i]);
    free(ctx->old_world);
    api_values_destroy(ctx->values);
    request_table_fini(&ctx->requests);
    model_fini(&ctx->model);
    mirror_destroy(ctx);
    free(ctx->step.rate);
    free(ctx->step.states);
    pthread_mutex_destroy(&ctx->step.lock);
    pthread_mutex_destroy(&ctx->failure_lock);
    pthread_cond_destroy(&ctx->held_returned);
    pthread_mutex_destroy(&ctx->held_lock);
    pthread_mutex_destroy(&ctx->use_lock);
    pthread_mutex_destroy(&ctx->watch_lock);
    members_fini(&ctx->members);
    state_table_fini(&ctx->states);
    free(ctx);
}

bool context_is_elastic(const pen_ctx *ctx)
{
    const worker_settings *s = &ctx->settings;
    return s->servers > 0 && !ctx->env.alone &&
           (s->on_worker_loss != LOSS_FAIL || s->workers_max > 0);
}

bool context_outlives_loss(const pen_ctx *ctx)
{
    return context_is_elastic(ctx) ||
           (ctx->mode == MODE_ALLREDUCE && ctx->settings.on_worker_loss == LOSS_CONTINUE);
}

/* ---- what every call checks ------------------------------------------------------------------ */
pen_status context_check(const pen_ctx *ctx, const char *call)
{
    if (ctx == NULL) return last_error_say(PEN_INVALID_ARGUMENT, "%s: ctx is NULL", call);
    if (ctx->pid != getpid())
        return last_error_say(PEN_WRONG_STATE,
                              "%s: called in a forked child, which owns nothing of the context",
                              call);
    if (atomic_load_explicit(&ctx->has_failed, memory_order_acquire))
        return last_error_set(&ctx->failure);
    return PEN_OK;
}

pen_status context_enter(pen_ctx *ctx, const char *call, bool waits)
{
    pen_status status = context_check(ctx, call);
    if (status != PEN_OK) return status;
    if (waits && request_is_sdk_thread())
        return last_error_say(PEN_WRONG_STATE,
                              "%s: called from a callback, where waiting would wait for itself",
                              call);
    atomic_store_explicit(&ctx->call, call, memory_order_relaxed);
    if (waits) {
        atomic_store_explicit(&ctx->call_since_ms, clock_ms(&clock_real), memory_order_relaxed);
        atomic_store_explicit(&ctx->in_call, true, memory_order_relaxed);
    }
    return PEN_OK;
}

pen_status context_leave(pen_ctx *ctx, pen_status status)
{
    if (!atomic_exchange_explicit(&ctx->in_call, false, memory_order_relaxed)) return status;
    atomic_store_explicit(&ctx->call_since_ms, clock_ms(&clock_real), memory_order_relaxed);
    return status;
}

pen_command_fn context_command(pen_ctx *ctx, void **user)
{
    pthread_mutex_lock(&ctx->watch_lock);
    pen_command_fn fn = ctx->command;
    *user             = ctx->command_user;
    pthread_mutex_unlock(&ctx->watch_lock);
    return fn;
}

void context_fail(pen_ctx *ctx, const pen_error *why)
{
    pthread_mutex_lock(&ctx->failure_lock);
    if (!atomic_load(&ctx->has_failed)) {
        ctx->failure = *why;
        atomic_store_explicit(&ctx->has_failed, true, memory_order_release);
    }
    pthread_mutex_unlock(&ctx->failure_lock);
    pthread_mutex_lock(&ctx->held_lock); /* whoever waits for room sees it */
    pthread_cond_broadcast(&ctx->held_returned);
    pthread_mutex_unlock(&ctx->held_lock);
}

pen_status context_remember(pen_error *kept, const pen_error *why)
{
    if (kept->status == PEN_OK) *kept = *why;
    return last_error_set(why);
}
