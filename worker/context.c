/* context.c - makes a pen_ctx from settings and environment; the checks that every call begins with. */
#include "worker/context.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "common/containers/arrays.h"
#include "common/system/own_pid.h"
#include "common/trace/trace.h"
#include "proto/scalars.h"
#include "worker/job_mode.h"
#include "common/base/why.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/tensor/param_memory.h"
#include "worker/train/schedule/precision.h"
#include "worker/worker_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- mode and consistency -------------------------------------------------------------------- */
static pen_status choose_mode(pen_ctx *ctx, pen_error *why)
{
    const job_place place = {.is_alone = ctx->env.alone, .world_size = ctx->env.world_size};
    job_mode chosen;
    if (job_settings_check(&ctx->settings, place, &chosen, why) != PEN_OK) return why->status;
    if (!chosen.has_servers && !ctx->env.alone) ctx->settings.servers = 0;
    ctx->mode        = chosen.mode;
    ctx->has_servers = chosen.has_servers;
    ctx->stage       = chosen.stage;
    ctx->rule        = ctx->settings.commit == COMMIT_EAGER ? STEP_EAGER : STEP_TWO_PHASE;
    memmove(ctx->sync, chosen.sync, strlen(chosen.sync) + 1);
    return PEN_OK;
}

const char *context_mode_name(const pen_ctx *ctx)
{
    const bool is_sharded_by_servers = ctx->mode == MODE_PS_BSP && ctx->stage > 0;
    return worker_mode_name(is_sharded_by_servers ? ctx->settings.mode : (int)ctx->mode);
}

/* ---- create and destroy ---------------------------------------------------------------------- */
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
    const int level = s->log_level[0] != '\0' ? log_level_find(s->log_level) : -2;
    if (level >= -1) log_level_set(level);
    log_format_set(s->log_format);
    status = worker_env_resolve(s, config_env, &ctx->env, why);
    if (status == PEN_OK) log_format_as("worker", ctx->env.rank);
    if (status == PEN_OK && s->log_ranks == WORKER_LOG_FIRST && ctx->env.rank > 0)
        log_level_set(LOG_ERROR);
    if (status == PEN_OK && ctx->env.rank <= 0) worker_files_tell(s);
    if (status == PEN_OK) s->servers = ctx->env.servers;
    if (status == PEN_OK && s->gather_16bit_on_save && s->store[0] == '\0' && ctx->env.rank <= 0)
        log_notice("gather_16bit_on_save has no effect without snapshots: there is no store "
                   "(--store DIR)");
    ctx->states.rank = ctx->env.rank;
    if (status == PEN_OK) status = step_log_check(s->log_to, why);
    if (status == PEN_OK) status = choose_mode(ctx, why);
    if (status == PEN_OK) status = precision_set_up(ctx, why);
    if (status == PEN_OK) status = own_state_init(ctx, why);
    if (status == PEN_OK) status = device_copies_open(ctx, why);
    if (status == PEN_OK) status = model_init(&ctx->model, ctx, why);
    return status;
}

static pen_status open_trace(const pen_ctx *ctx, pen_error *why)
{
    const worker_settings *s = &ctx->settings;
    if (s->trace[0] == '\0') return PEN_OK;
    if (trace_open(s->trace, s->trace_events, "worker", PEN_WORKER, ctx->env.rank, why) != PEN_OK)
        return why->status;
    trace_who(PEN_WORKER, ctx->env.rank, ctx->job);
    return PEN_OK;
}

pen_status context_make_coll(pen_ctx *ctx, const coll_job *job, void *user, pen_error *why)
{
    const coll_setup setup = {.ctx          = ctx,
                              .settings     = &ctx->settings,
                              .env          = &ctx->env,
                              .auth         = ctx->auth,
                              .stats        = &ctx->stats,
                              .world        = &ctx->world,
                              .begin_thread = request_mark_sdk_thread};
    return coll_engine_create(&setup, job, user, &ctx->coll, why);
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
    ctx->memory.work = space_host();
    pthread_mutex_init(&ctx->memory.grad_lock, NULL);
    pthread_cond_init(&ctx->memory.grads_returned, NULL);
    pthread_mutex_init(&ctx->use_lock, NULL);
    pthread_mutex_init(&ctx->monitor_lock, NULL);
    members_init(&ctx->members);
    state_table_init(&ctx->states);
    ctx->pid = own_pid();
    atomic_store(&ctx->call, "pen_init");
    atomic_store(&ctx->step_index, -1);
    ctx->position = position_open(config_env(POSITION_VARIABLE));
    position_set_call(ctx->position, "pen_init", true);
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
    stat_store(&ctx->stats, STAT_STEPS_PLANNED, ctx->settings.steps);
    name_job(ctx);
    status     = open_trace(ctx, why);
    ctx->world = group_create_world(ctx, ctx->env.world_size, ctx->env.rank);
    if (status == PEN_OK && ctx->world == NULL)
        status = why_set(why, PEN_NO_MEMORY, "no memory for a group");
    if (status != PEN_OK) {
        context_destroy(ctx);
        return status;
    }
    *out = ctx;
    return PEN_OK;
}

void context_destroy(pen_ctx *ctx)
{
    group_destroy(ctx->world);
    for (uint32_t i = 0; i < ctx->n_old_worlds; i++) group_destroy(ctx->old_world[i]);
    free(ctx->old_world);
    request_table_fini(&ctx->requests);
    model_fini(&ctx->model);
    param_memory_drop_spare(ctx);
    device_copies_destroy(ctx);
    free(ctx->step.rate);
    free(ctx->step.states);
    pthread_mutex_destroy(&ctx->step.lock);
    pthread_mutex_destroy(&ctx->failure_lock);
    pthread_cond_destroy(&ctx->memory.grads_returned);
    pthread_mutex_destroy(&ctx->memory.grad_lock);
    pthread_mutex_destroy(&ctx->use_lock);
    pthread_mutex_destroy(&ctx->monitor_lock);
    members_fini(&ctx->members);
    state_table_fini(&ctx->states);
    step_log_close(ctx->step_log);
    position_close(ctx->position);
    free(ctx);
}

pen_group *context_group(pen_ctx *ctx, pen_group_kind kind, pen_error *why)
{
    if (kind == PEN_GROUP_WORLD || ctx->env.world_size == 1) return ctx->world;
    return group_of_kind(ctx->coll, kind, why);
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

/* ---- checks of every call -------------------------------------------------------------------- */
pen_status context_check(const pen_ctx *ctx, const char *call)
{
    if (ctx == NULL) return last_error_report(PEN_INVALID_ARGUMENT, "%s: ctx is NULL", call);
    if (ctx->pid != own_pid())
        return last_error_report(PEN_WRONG_STATE,
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
        return last_error_report(PEN_WRONG_STATE,
                                 "%s: called from a callback, where waiting would wait for itself",
                                 call);
    atomic_store_explicit(&ctx->call, call, memory_order_relaxed);
    position_set_call(ctx->position, call, waits);
    if (waits) {
        atomic_store_explicit(&ctx->call_since_ms, clock_recent_ms(), memory_order_relaxed);
        atomic_store_explicit(&ctx->in_call, true, memory_order_relaxed);
    }
    return PEN_OK;
}

pen_status context_leave(pen_ctx *ctx, pen_status status)
{
    if (!atomic_exchange_explicit(&ctx->in_call, false, memory_order_relaxed)) return status;
    atomic_store_explicit(&ctx->call_since_ms, clock_recent_ms(), memory_order_relaxed);
    position_set_call(ctx->position, atomic_load_explicit(&ctx->call, memory_order_relaxed), false);
    return status;
}

context_metric *context_find_metric(pen_ctx *ctx, const char *name)
{
    uint32_t i = 0;
    while (i < ctx->n_metrics && strcmp(ctx->metric[i].name, name) != 0) i++;
    if (i == CONTEXT_METRICS_MAX || !utf8_is_clean(name)) return NULL;
    if (i == ctx->n_metrics) {
        ctx->metric[i] = (context_metric){.value = 0};
        snprintf(ctx->metric[i].name, sizeof ctx->metric[i].name, "%s", name);
        ctx->n_metrics++;
    }
    return &ctx->metric[i];
}

/* The lowest rank may be another one from now on.  A log that cannot be opened is a warning: the job trains already. */
static void open_step_log(pen_ctx *ctx)
{
    pen_error why;
    if (ctx->has_step_log) return;
    ctx->has_step_log = true;
    if (step_log_open(ctx->settings.log_to, &ctx->step_log, &why) != PEN_OK)
        log_warning("%s; the steps are not logged", why.text);
}

void context_note_scalars(pen_ctx *ctx)
{
    double sum;
    uint32_t ranks;
    if (atomic_load(&ctx->world)->rank != 0) return;
    pthread_mutex_lock(&ctx->monitor_lock);
    for (uint32_t i = 0; i < ctx->n_metrics; i++) {
        context_metric *m = &ctx->metric[i];
        if (!m->is_scalar || !scalars_find(&ctx->step.totals, scalars_name(m->name), &sum, &ranks))
            continue;
        m->value     = m->is_mean ? sum / ranks : sum;
        m->has_value = m->is_fresh = true;
    }
    pthread_mutex_unlock(&ctx->monitor_lock);
}

void context_log_step(pen_ctx *ctx)
{
    const int64_t step = ctx->step.next_index - 1;
    if (ctx->settings.log_to[0] == '\0' || step < 0 || atomic_load(&ctx->world)->rank != 0) return;
    context_metric fresh[CONTEXT_METRICS_MAX];
    uint32_t n = 0;
    open_step_log(ctx);
    pthread_mutex_lock(&ctx->monitor_lock); /* heartbeats need it: not while a disk is slow */
    for (uint32_t i = 0; i < ctx->n_metrics; i++) {
        if (ctx->metric[i].is_fresh) fresh[n++] = ctx->metric[i];
        ctx->metric[i].is_fresh = false;
    }
    pthread_mutex_unlock(&ctx->monitor_lock);
    for (uint32_t i = 0; i < n; i++)
        step_log_value(ctx->step_log, step, fresh[i].name, fresh[i].value);
    step_log_step_ended(ctx->step_log);
}

pen_command_fn context_command(pen_ctx *ctx, void **user)
{
    pthread_mutex_lock(&ctx->monitor_lock);
    pen_command_fn fn = ctx->command;
    *user             = ctx->command_user;
    pthread_mutex_unlock(&ctx->monitor_lock);
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
    pthread_mutex_lock(&ctx->memory.grad_lock); /* wakes threads that wait for room */
    pthread_cond_broadcast(&ctx->memory.grads_returned);
    pthread_mutex_unlock(&ctx->memory.grad_lock);
}

pen_status context_remember(pen_error *kept, const pen_error *why)
{
    if (kept->status == PEN_OK) *kept = *why;
    return last_error_set(why);
}

/* ---- the world of a job whose members change --------------------------------------------------- */
/* A program may still hold an old world, so it lives as long as the context. */
static bool keep_world(pen_ctx *ctx, pen_group *g)
{
    if (g->engine != NULL) return true; /* the engine frees it */
    if (!VEC_MORE(ctx->old_world, ctx->n_old_worlds)) return false;
    ctx->old_world[ctx->n_old_worlds++] = g;
    return true;
}

static pen_group *make_world(pen_ctx *ctx, uint32_t n, const int32_t *rank)
{
    pen_group *g = group_create_world(ctx, (int)n, -1);
    if (g == NULL) return NULL;
    for (uint32_t i = 0; i < n; i++) {
        g->ranks[i] = rank[i];
        if (rank[i] == ctx->env.rank) g->rank = (int)i;
    }
    why_set(&g->failure, PEN_UNSUPPORTED,
            "collectives need fixed members, and the members of this job changed in view %llu; "
            "use pen_step_scalar(), pen_command() or pen_store_add()",
            (unsigned long long)members_epoch(&ctx->members));
    g->has_failed = true;
    return g;
}

void context_follow_members(pen_ctx *ctx)
{
    if (!members_advance(&ctx->members, ctx->step.next_index)) return;
    ctx->step.flags |= PEN_STEP_MEMBERS;
    uint32_t n    = members_count(&ctx->members);
    int32_t *rank = calloc(n + 1, sizeof *rank);
    if (rank == NULL || n == 0) {
        free(rank);
        return;
    }
    const uint32_t all = members_ranks(&ctx->members, rank, n);
    pen_group *world   = make_world(ctx, all < n ? all : n, rank);
    if (world != NULL && keep_world(ctx, ctx->world))
        ctx->world = world;
    else
        group_destroy(world);
    free(rank);
}
