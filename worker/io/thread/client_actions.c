/* client_actions.c - callbacks of the membership client and the ps client. */
#include "worker/io/thread/client.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/why.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- before the loop sleeps -------------------------------------------------------------------- */
static void tell_ready(client *c)
{
    if (!client_is_reaching(c) || !client_has_links(c)) return;
    if (c->ctx->coll != NULL && !coll_engine_is_linked(c->ctx->coll)) return;
    c->is_ready = true;
    liaison_ready(c->liaison, loop_now_ms(c->loop));
}

void client_before_sleep(void *user)
{
    client *c = user;
    tell_ready(c);
    if (c->exchange != NULL) exchange_flush(c->exchange, loop_now_ms(c->loop));
    client_redial_cut(c);
    client_after(c);
}

/* ---- the ps client ------------------------------------------------------------------ */
static void step_decided(void *user, void *token, const exchange_outcome *outcome)
{
    client *c            = user;
    request *r           = token;
    c->ctx->step.outcome = *outcome;
    if (r->u.step.decided == NULL) return;
    request_end(r->u.step.decided, PEN_OK, NULL);
    r->u.step.decided = NULL;
}

/* Values of tensors that no worker holds whole follow, a few chunks at a time. */
static void first_values_came(client *c, const pen_error *why)
{
    pen_error failure;
    const client_draw_state state = why == NULL ? client_draw_next(c, &failure) : CLIENT_DRAW_OVER;
    if (state == CLIENT_DRAW_UNDER_WAY) return;
    if (state == CLIENT_DRAW_FAILED) why = &failure;
    c->is_loading = false;
    client_draw_fini(c);
    client_end(&c->commit, why);
}

static void exchange_completed(void *user, void *token, pen_status status,
                               const exchange_result *result, const pen_error *why)
{
    client *c  = user;
    request *r = token;
    if (r == NULL || client_is_drawing(c, token)) {
        first_values_came(c, why);
        return;
    }
    r->result.version   = result->version;
    r->result.staleness = result->staleness;
    r->result.count     = result->bytes;
    if (why != NULL && (status == PEN_MISMATCH || status == PEN_INTERNAL) && !c->has_failed) {
        client_dispute(c, r, why);
        return;
    }
    if (r->kind == REQUEST_STEP) client_trace_step_over(c);
    request_end(r, status, why);
}

static void exchange_logs(void *user, int level, const char *line)
{
    (void)user;
    log_line(level, "%s", line);
}

static void exchange_counts(void *user, stat_id id, uint64_t n)
{
    client *c = user;
    stat_add(&c->ctx->stats, id, n);
}

static pen_status make_exchange(client *c, int64_t step, int64_t applied, pen_error *why)
{
    static const exchange_actions actions = {client_send,     client_cut,         client_store,
                                             step_decided,    exchange_completed, exchange_logs,
                                             exchange_counts, client_returned};
    const worker_settings *s              = &c->ctx->settings;
    const uint64_t seed                   = s->seed + (uint64_t)c->ctx->env.rank;
    const bool is_elastic =
        c->ranks_max > (uint32_t)c->ctx->env.world_size || context_is_elastic(c->ctx);
    const exchange_setup setup = {.plan             = c->plan,
                                  .model            = &c->ctx->model.wire,
                                  .shard            = c->shard,
                                  .rule             = c->ctx->rule,
                                  .rank             = c->ctx->env.rank,
                                  .n_shards         = c->n_shards,
                                  .lanes            = (uint32_t)s->lanes,
                                  .term             = c->record.term,
                                  .epoch            = c->record.epoch,
                                  .from             = liaison_membership(c->liaison)->incarnation,
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
                                  .gives_back       = client_gives_back(c)};
    c->exchange                = exchange_create(&setup, &actions, c, why);
    return c->exchange != NULL ? PEN_OK : why->status;
}

/* ---- the membership client ------------------------------------------------------------------- */
static void epoch_came(void *user, const wire_control *m)
{
    client *c = user;
    pen_error why;
    const bool is_first = c->record.term == 0;
    if (client_route_epoch(c, m, &why) != PEN_OK) {
        client_report(c, &why);
        return;
    }
    if (!is_first) return;
    if (m->u.epoch.job[0] != '\0')
        snprintf(c->ctx->job, sizeof c->ctx->job, "%.47s", m->u.epoch.job);
    c->is_late = m->u.epoch.epoch > 1 || !client_is_member(c);
    client_take_place(c, m);
    if (!c->is_late) client_coll_joined(c, m);
    client_end(&c->join, NULL);
}

static pen_status take_plan(client *c, const wire_control *m, pen_error *why)
{
    if (c->record.n_servers == 0) return PEN_OK; /* nothing is partitioned */
    pen_status status = plan_create(&c->ctx->model.wire, &c->plan, why);
    if (status == PEN_OK) status = client_route_plan(c, m, why);
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
    client *c = user;
    pen_error why;
    pen_status status = take_plan(c, m, &why);
    if (status == PEN_OK && c->n_shards > 0) status = client_dial_links(c, &why);
    if (status != PEN_OK) client_report(c, &why);
    c->has_plan = status == PEN_OK;
    if (c->has_plan) client_look(c);
}

/* All workers fetch the initial values, rank 0 too, so that all have the same rounding. */
static void load(client *c)
{
    const model *m      = &c->ctx->model;
    const uint64_t now  = loop_now_ms(c->loop);
    exchange_request *r = exchange_open(c->exchange, now);
    if (r == NULL) {
        pen_error why;
        why_set(&why, PEN_NO_MEMORY, "no memory for the first values");
        client_report(c, &why);
        return;
    }
    /* A rank 0 that replaces another one sends them again: shards that have values ignore them. */
    bool sends           = c->restore < 0 && c->ctx->env.rank == 0 && c->ctx->step.next_index == 0;
    c->drawing.is_sender = sends;
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        void *values = m->tensor[t]->param;
        if (sends && values != NULL) exchange_add(c->exchange, r, EXCHANGE_INIT, t, values, NULL);
        if (m->tensor[t]->stays) exchange_add(c->exchange, r, EXCHANGE_LOAD, t, NULL, values);
    }
    c->is_loading = true;
    exchange_close(c->exchange, r, NULL, c->commit->deadline_ms, now);
}

/* Explicit pushes carry the unscheduled rates of the groups. */
static pen_status set_plain_inputs(client *c, pen_error *why)
{
    const model *m = &c->ctx->model;
    double *rate   = calloc(m->n_groups, sizeof *rate);
    if (rate == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %u rates", m->n_groups);
    for (uint32_t g = 0; g < m->n_groups; g++) rate[g] = m->group[g]->hyper.lr;
    const wire_inputs plain = {.loss_scale = 1, .weight = 1, .n_rates = m->n_groups, .rate = rate};
    pen_status status       = exchange_set_inputs(c->exchange, &plain);
    free(rate);
    return status == PEN_OK ? status : why_set(why, status, "no memory for %u rates", m->n_groups);
}

/* States of the snapshot; an import has none. */
static pen_status take_states(client *c, int64_t step, int64_t applied, pen_error *why)
{
    size_t size;
    pen_ctx *ctx       = c->ctx;
    const void *states = liaison_states(c->liaison, &size);
    if (c->restore < 0 || c->is_late || (step == 0 && size == 0)) return PEN_OK;
    ctx->restored           = (context_restored){true, step, applied};
    const pen_status status = state_table_restore(&ctx->states, step, states, size, why);
    return status == PEN_OK ? own_state_adopt(ctx, why) : status;
}

static void committed(void *user, int64_t step, int64_t applied)
{
    client *c = user;
    pen_error why;
    if (c->commit == NULL) return;
    if (c->n_shards == 0) {
        c->ctx->step.next_index = step;
        c->ctx->step.applied    = applied;
        atomic_store(&c->ctx->step_index, step);
        client_end(&c->commit, NULL);
        return;
    }
    pen_status status = take_states(c, step, applied, &why);
    if (status == PEN_OK) status = make_exchange(c, step, applied, &why);
    if (status == PEN_OK) status = set_plain_inputs(c, &why);
    if (status != PEN_OK) {
        client_report(c, &why);
        return;
    }
    client_tell_exchange(c, loop_now_ms(c->loop));
    c->ctx->step.next_index = step;
    c->ctx->step.applied    = applied;
    atomic_store(&c->ctx->step_index, step);
    if (c->is_late) client_tell_members(c, step - 1);
    load(c);
}

static void snapshot_done(void *user, int64_t step, pen_status status, const char *text)
{
    client *c = user;
    pen_error why;
    if (status != PEN_OK)
        why_set(&why, status, "the snapshot of step %lld failed: %s", (long long)step, text);
    client_end_snapshots(c, status != PEN_OK ? &why : NULL, step);
}

static void snapshot_please(void *user)
{
    client *c = user;
    atomic_store(&c->ctx->snapshot_wanted, true);
}

static void failed(void *user, const pen_error *why)
{
    client_fail(user, why);
}

static void stop_wanted(void *user)
{
    client *c = user;
    if (atomic_exchange(&c->ctx->stop_wanted, true)) return;
    log_line(LOG_NOTICE, "worker %d was asked to leave the job after its step", c->ctx->env.rank);
    client_tell(c, PEN_EV_STOPPING, c->ctx->env.rank,
                "this worker was asked to leave after its step");
}

static void left(void *user)
{
    client *c = user;
    client_end(&c->leave, NULL);
}

static void fill_beat(void *user, wire_control *beat)
{
    client *c    = user;
    pen_ctx *ctx = c->ctx;
    uint32_t n   = 0;
    for (; n < STAT_COUNT; n++)
        c->beat_stat[n] = (wire_stat){stat_rows[n].name, (double)stat_get(&ctx->stats, (stat_id)n)};
    pthread_mutex_lock(&ctx->watch_lock); /* rows are only added, and names never change */
    for (uint32_t i = 0; i < ctx->n_metrics; i++, n++)
        c->beat_stat[n] = (wire_stat){ctx->metric[i].name, ctx->metric[i].value};
    pthread_mutex_unlock(&ctx->watch_lock);
    snprintf(c->beat_call, sizeof c->beat_call, "%s%s", atomic_load(&ctx->in_call) ? "" : "after ",
             atomic_load(&ctx->call));
    beat->u.beat.step    = atomic_load(&ctx->step_index);
    beat->u.beat.call    = c->beat_call;
    beat->u.beat.call_ms = clock_ms(&clock_real) - atomic_load(&ctx->call_since_ms);
    beat->u.beat.n_stats = n;
    beat->u.beat.stat    = c->beat_stat;
}

static void liaison_logs(void *user, int level, const char *line)
{
    (void)user;
    log_line(level, "%s", line);
}

const liaison_actions client_liaison_actions = {client_say,
                                                epoch_came,
                                                plan_came,
                                                committed,
                                                snapshot_done,
                                                snapshot_please,
                                                left,
                                                failed,
                                                fill_beat,
                                                client_probe,
                                                liaison_logs,
                                                client_lost,
                                                client_record_please,
                                                client_renew,
                                                stop_wanted,
                                                client_prove};
