/* io_actions.c - callbacks of the membership client and the ps client. */
#include "worker/io/thread/io_thread.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/why.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- before the loop sleeps -------------------------------------------------------------------- */
static void notify_ready(io_thread *c)
{
    if (!io_is_reaching(c) || !io_has_links(c)) return;
    if (c->ctx->coll != NULL && !coll_engine_is_linked(c->ctx->coll)) return;
    c->is_ready = true;
    membership_client_ready(c->membership_client, loop_now_ms(c->loop));
}

void io_before_sleep(void *user)
{
    io_thread *c = user;
    notify_ready(c);
    if (c->ps_client != NULL) ps_client_flush(c->ps_client, loop_now_ms(c->loop));
    io_redial_disconnected(c);
    io_after(c);
}

/* ---- the ps client ------------------------------------------------------------------ */
static void step_decided(void *user, void *token, const ps_client_outcome *outcome)
{
    io_thread *c         = user;
    request *r           = token;
    c->ctx->step.outcome = *outcome;
    if (r->u.step.decided == NULL) return;
    request_end(r->u.step.decided, PEN_OK, NULL);
    r->u.step.decided = NULL;
}

/* Tensors that no worker holds whole follow, a few chunks at a time. */
static void first_values_came(io_thread *c, const pen_error *why)
{
    pen_error failure;
    const io_init_state state = why == NULL ? io_init_next(c, &failure) : IO_INIT_OVER;
    if (state == IO_INIT_UNDER_WAY) return;
    if (state == IO_INIT_FAILED) why = &failure;
    c->is_loading = false;
    io_init_fini(c);
    io_end(&c->commit, why);
}

static void ps_client_completed(void *user, void *token, pen_status status,
                                const ps_client_result *result, const pen_error *why)
{
    io_thread *c = user;
    request *r   = token;
    if (r == NULL || io_is_initializing(c, token)) {
        first_values_came(c, why);
        return;
    }
    r->result.version   = result->version;
    r->result.staleness = result->staleness;
    r->result.count     = result->bytes;
    if (why != NULL && (status == PEN_MISMATCH || status == PEN_INTERNAL) && !c->has_failed) {
        io_dispute(c, r, why);
        return;
    }
    if (r->kind == REQUEST_STEP) io_trace_step_over(c);
    request_end(r, status, why);
}

static void ps_client_logs(void *user, int level, const char *line)
{
    (void)user;
    log_line(level, "%s", line);
}

static void ps_client_counts(void *user, stat_id id, uint64_t n)
{
    io_thread *c = user;
    stat_add(&c->ctx->stats, id, n);
}

static void values_came(void *user, uint32_t tensor)
{
    io_thread *c  = user;
    strategy *s   = c->ctx->strategy;
    pen_tensor *t = c->ctx->model.tensor[tensor];
    if (s->ops->values_came != NULL) s->ops->values_came(s, t);
    request_values_come(&c->ctx->requests, t);
}

static pen_status make_ps_client(io_thread *c, int64_t step, int64_t applied, pen_error *why)
{
    static const ps_client_actions actions = {
        io_send,        io_disconnect,    io_store,    step_decided, ps_client_completed,
        ps_client_logs, ps_client_counts, io_returned, values_came,  io_store_rows};
    const worker_settings *s = &c->ctx->settings;
    const uint64_t seed      = s->seed + (uint64_t)c->ctx->env.rank;
    const bool is_elastic =
        c->ranks_max > (uint32_t)c->ctx->env.world_size || context_is_elastic(c->ctx);
    const ps_client_setup setup = {.plan     = c->plan,
                                   .model    = &c->ctx->model.wire,
                                   .shard    = c->shard,
                                   .rule     = c->ctx->rule,
                                   .rank     = c->ctx->env.rank,
                                   .n_shards = c->n_shards,
                                   .lanes    = (uint32_t)s->lanes,
                                   .term     = c->view.term,
                                   .epoch    = c->view.epoch,
                                   .from =
                                       membership_client_core(c->membership_client)->incarnation,
                                   .to               = c->route.to,
                                   .n_workers        = c->n_workers,
                                   .worker           = c->incarnation,
                                   .worker_host      = (const char *const *)c->worker_host,
                                   .server           = (const char *const *)c->route.server,
                                   .warn_ms          = s->warn_ms,
                                   .retry            = retry_policy_make(s->retry_ms, seed),
                                   .step             = step,
                                   .applied          = applied,
                                   .may_lose_members = is_elastic,
                                   .is_late          = c->is_late,
                                   .gives_back       = io_gives_back(c)};
    c->ps_client                = ps_client_create(&setup, &actions, c, why);
    if (c->ctx->env.local_world_size > 0) loop_spin(c->loop, c->ctx->env.local_world_size);
    return c->ps_client != NULL ? PEN_OK : why->status;
}

/* ---- the membership client ------------------------------------------------------------------- */
static void epoch_came(void *user, const wire_control *m)
{
    io_thread *c = user;
    pen_error why;
    const bool is_first = c->view.term == 0;
    if (io_route_epoch(c, m, &why) != PEN_OK) {
        io_report(c, &why);
        return;
    }
    if (!is_first) return;
    if (m->u.epoch.job[0] != '\0')
        snprintf(c->ctx->job, sizeof c->ctx->job, "%.47s", m->u.epoch.job);
    c->is_late = m->u.epoch.epoch > 1 || !io_is_member(c);
    io_on_place(c, m);
    if (!c->is_late && io_coll_joined(c, m, &why) != PEN_OK)
        io_report(c, &why);
    else
        io_end(&c->join, NULL);
}

static pen_status on_plan(io_thread *c, const wire_control *m, pen_error *why)
{
    if (c->view.n_servers == 0) return PEN_OK; /* nothing is partitioned */
    pen_status status = plan_create(&c->ctx->model.wire, &c->plan, why);
    if (status == PEN_OK) status = io_route_plan(c, m, why);
    if (status != PEN_OK) return status;
    if (m->u.plan.n_partitions != c->plan->n_partitions)
        return why_set(why, PEN_MISMATCH,
                       "the scheduler splits the model into %u partitions and this worker into %u; "
                       "use the same version of both",
                       m->u.plan.n_partitions, c->plan->n_partitions);
    c->shard = calloc(c->plan->n_partitions, sizeof *c->shard);
    c->crc   = calloc(WIRE_ITEMS_MAX, sizeof *c->crc);
    if (c->shard == NULL || c->crc == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the plan");
    for (uint32_t i = 0; i < c->plan->n_partitions; i++) {
        c->shard[i] = m->u.plan.shard[i];
        if (c->shard[i] >= c->n_shards)
            return why_set(why, PEN_CORRUPT, "invalid plan: partition %u is on shard %u of %u", i,
                           c->shard[i], c->n_shards);
    }
    c->restore = m->u.plan.restore;
    return PEN_OK;
}

static void plan_came(void *user, const wire_control *m)
{
    io_thread *c = user;
    pen_error why;
    pen_status status = on_plan(c, m, &why);
    if (status == PEN_OK && c->n_shards > 0) status = io_dial_links(c, &why);
    if (status != PEN_OK) io_report(c, &why);
    c->has_plan = status == PEN_OK;
    if (c->has_plan) io_look(c);
}

/* All workers fetch the initial values, rank 0 too, so that all have the same rounding. */
static void load(io_thread *c)
{
    const model *m       = &c->ctx->model;
    const uint64_t now   = loop_now_ms(c->loop);
    ps_client_request *r = ps_client_open(c->ps_client, now);
    if (r == NULL) {
        pen_error why;
        why_set(&why, PEN_NO_MEMORY, "no memory for the first values");
        io_report(c, &why);
        return;
    }
    /* A replacement of rank 0 sends them again; shards that have values ignore them. */
    bool sends = c->restore < 0 && c->ctx->env.rank == 0 && c->ctx->step.next_index == 0;
    c->initializing.is_sender = sends;
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        void *values = m->tensor[t]->param;
        if (sends && values != NULL) ps_client_add(c->ps_client, r, PS_INIT, t, values, NULL);
        if (m->tensor[t]->stays) ps_client_add(c->ps_client, r, PS_LOAD, t, NULL, values);
    }
    static const uint32_t zero;
    for (uint32_t t = 0; t < m->n_tables; t++)
        for (uint32_t k = c->plan->first_chunk[m->n_tensors + t];
             k < c->plan->first_chunk[m->n_tensors + t + 1]; k++) {
            if (sends) ps_client_add_chunk(c->ps_client, r, PS_INIT, k, &zero, NULL);
            ps_client_add_chunk(c->ps_client, r, PS_LOAD, k, NULL, &c->no_values);
        }
    c->is_loading = true;
    ps_client_close(c->ps_client, r, NULL, c->commit->deadline_ms, now);
}

/* Explicit pushes carry the unscheduled rates of the groups. */
static pen_status set_plain_inputs(io_thread *c, pen_error *why)
{
    const model *m = &c->ctx->model;
    double *rate   = calloc(m->n_groups, sizeof *rate);
    if (rate == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %u rates", m->n_groups);
    for (uint32_t g = 0; g < m->n_groups; g++) rate[g] = m->group[g]->hyper.lr;
    const wire_inputs plain = {.loss_scale = 1, .weight = 1, .n_rates = m->n_groups, .rate = rate};
    pen_status status       = ps_client_set_inputs(c->ps_client, &plain);
    free(rate);
    return status == PEN_OK ? status : why_set(why, status, "no memory for %u rates", m->n_groups);
}

/* Restores the states of the snapshot; an import has none. */
static pen_status on_states(io_thread *c, int64_t step, int64_t applied, pen_error *why)
{
    size_t size;
    pen_ctx *ctx       = c->ctx;
    const void *states = membership_client_states(c->membership_client, &size);
    if (c->restore < 0 || c->is_late || (step == 0 && size == 0)) return PEN_OK;
    ctx->restored           = (context_restored){true, step, applied};
    const pen_status status = state_table_restore(&ctx->states, step, states, size, why);
    return status == PEN_OK ? own_state_adopt(ctx, why) : status;
}

static void committed(void *user, int64_t step, int64_t applied)
{
    io_thread *c = user;
    pen_error why;
    if (c->commit == NULL) return;
    io_view_settle(c);
    if (c->n_shards == 0) {
        c->ctx->step.next_index = step;
        c->ctx->step.applied    = applied;
        atomic_store(&c->ctx->step_index, step);
        io_end(&c->commit, NULL);
        return;
    }
    pen_status status = on_states(c, step, applied, &why);
    if (status == PEN_OK) status = make_ps_client(c, step, applied, &why);
    if (status == PEN_OK) status = set_plain_inputs(c, &why);
    if (status != PEN_OK) {
        io_report(c, &why);
        return;
    }
    io_notify_ps_client(c, loop_now_ms(c->loop));
    c->ctx->step.next_index = step;
    c->ctx->step.applied    = applied;
    atomic_store(&c->ctx->step_index, step);
    if (c->is_late) io_notify_members(c, step - 1);
    load(c);
}

static void snapshot_done(void *user, int64_t step, pen_status status, const char *text)
{
    io_thread *c = user;
    pen_error why;
    if (status != PEN_OK)
        why_set(&why, status, "the snapshot of step %lld failed: %s", (long long)step, text);
    io_end_snapshots(c, status != PEN_OK ? &why : NULL, step);
}

static void snapshot_please(void *user)
{
    io_thread *c = user;
    atomic_store(&c->ctx->snapshot_wanted, true);
}

static void failed(void *user, const pen_error *why)
{
    io_fail(user, why);
}

static void stop_wanted(void *user)
{
    io_thread *c = user;
    if (atomic_exchange(&c->ctx->stop_wanted, true)) return;
    log_line(LOG_NOTICE, "worker %d was asked to leave the job after its step", c->ctx->env.rank);
    io_tell(c, PEN_EV_STOPPING, c->ctx->env.rank, "this worker was asked to leave after its step");
}

static void left(void *user)
{
    io_thread *c = user;
    io_end(&c->leave, NULL);
}

static void fill_beat(void *user, wire_control *beat)
{
    io_thread *c = user;
    pen_ctx *ctx = c->ctx;
    uint32_t n   = 0;
    for (; n < STAT_COUNT; n++)
        c->beat_stat[n] = (wire_stat){stat_rows[n].name, (double)stat_get(&ctx->stats, (stat_id)n)};
    pthread_mutex_lock(&ctx->monitor_lock); /* rows are only added, and names never change */
    for (uint32_t i = 0; i < ctx->n_metrics; i++)
        if (ctx->metric[i].has_value)
            c->beat_stat[n++] = (wire_stat){ctx->metric[i].name, ctx->metric[i].value};
    pthread_mutex_unlock(&ctx->monitor_lock);
    snprintf(c->beat_call, sizeof c->beat_call, "%s%s", atomic_load(&ctx->in_call) ? "" : "after ",
             atomic_load(&ctx->call));
    beat->u.beat.step    = atomic_load(&ctx->step_index);
    beat->u.beat.call    = c->beat_call;
    beat->u.beat.call_ms = clock_ms(&clock_real) - atomic_load(&ctx->call_since_ms);
    beat->u.beat.n_stats = n;
    beat->u.beat.stat    = c->beat_stat;
}

static void membership_client_logs(void *user, int level, const char *line)
{
    (void)user;
    log_line(level, "%s", line);
}

const membership_client_actions io_membership_client_actions = {io_send_control,
                                                                epoch_came,
                                                                plan_came,
                                                                committed,
                                                                snapshot_done,
                                                                snapshot_please,
                                                                left,
                                                                failed,
                                                                fill_beat,
                                                                io_probe,
                                                                membership_client_logs,
                                                                io_lost,
                                                                io_recorder_please,
                                                                io_renew,
                                                                stop_wanted,
                                                                io_prove};
