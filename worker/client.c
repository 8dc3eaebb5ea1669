/* client.c - the engine with servers: what the liaison and the exchange tell each other and the
 * program. */
#include "worker/client.h"

#include "common/clock.h"
#include "common/log.h"
#include "scheduler/scheduler.h"
#include "worker/last_error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum {
    ARENA_BYTES_MAX  = 64 << 20,
    LET_GO_MS        = 5000, /* the transport may take that long to return buffers */
    FAREWELL_MS      = 500,  /* for BYE or a FAILURE to leave                      */
    LINGER_FAILED_MS = 15000 /* a hosted scheduler tells everybody before it ends  */
};

/* ---- failing --------------------------------------------------------------------------------- */
static void end(request **place, const pen_error *why)
{
    request *r = *place;
    if (r == NULL) return;
    *place = NULL;
    request_end(r, why != NULL ? why->status : PEN_OK, why);
}

static void end_snapshots(client *c, const pen_error *why, int64_t step)
{
    while (c->snapshots != NULL) {
        request *r     = c->snapshots;
        c->snapshots   = r->next;
        r->result.step = step;
        request_end(r, why != NULL ? why->status : PEN_OK, why);
    }
}

void client_fail(client *c, const pen_error *why)
{
    context_fail(c->ctx, why);
    end(&c->join, why);
    end_snapshots(c, why, -1);
    calls_fail(c->calls, why);
    if (c->exchange != NULL) exchange_fail(c->exchange, why, loop_now_ms(c->loop));
    if (!c->is_loading)
        end(&c->commit, why); /* else when the transport has let go of the first values */
}

/* This member cannot go on: the scheduler makes it everybody's verdict. */
static void report(client *c, const pen_error *why)
{
    liaison_report(c->liaison, why);
    client_fail(c, why);
}

/* ---- time ------------------------------------------------------------------------------------ */
static void tick(void *user)
{
    client *c          = user;
    const uint64_t now = loop_now_ms(c->loop);
    liaison_tick(c->liaison, now);
    calls_tick(c->calls, now);
    if (c->exchange != NULL) exchange_tick(c->exchange, now);
    if (c->commit != NULL && c->commit->deadline_ms != 0 && c->commit->deadline_ms <= now) {
        pen_error why;
        why_set(&why, PEN_TIMED_OUT,
                "waited %.3g s in pen_commit for all ranks to register and all servers to be ready",
                (double)(now - c->commit->begun_ms) / 1000);
        report(c, &why);
    }
    client_after(c);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void client_after(client *c)
{
    request_tell(&c->ctx->requests);
    uint64_t due = least(liaison_due(c->liaison), calls_due(c->calls));
    if (c->exchange != NULL) due = least(due, exchange_due(c->exchange));
    if (c->commit != NULL && c->commit->deadline_ms != 0) due = least(due, c->commit->deadline_ms);
    if (due == UINT64_MAX)
        loop_timer_stop(c->loop, &c->timer);
    else if (c->timer.due_ms != due || due == 0)
        loop_timer_start(c->loop, &c->timer, due > 0 ? due : 1, tick, c);
}

static void before_sleep(void *user)
{
    client *c = user;
    if (c->exchange != NULL) exchange_flush(c->exchange, loop_now_ms(c->loop));
    client_redial_cut(c);
    client_after(c);
}

/* ---- what the exchange says ------------------------------------------------------------------ */
static void step_decided(void *user, void *token, const exchange_outcome *outcome)
{
    client *c            = user;
    request *r           = token;
    c->ctx->step.outcome = *outcome;
    if (r->u.step.decided == NULL) return;
    request_end(r->u.step.decided, PEN_OK, NULL);
    r->u.step.decided = NULL;
}

static void exchange_completed(void *user, void *token, pen_status status,
                               const exchange_result *result, const pen_error *why)
{
    client *c  = user;
    request *r = token;
    if (r == NULL) { /* the first values */
        c->is_loading = false;
        end(&c->commit, why);
        return;
    }
    r->result.version   = result->version;
    r->result.staleness = result->staleness;
    r->result.count     = result->bytes;
    if (r->kind == REQUEST_STEP && r->u.step.decided != NULL)
        request_end(r->u.step.decided, status, why);
    request_end(r, status, why);
    /* Ranks that disagree cannot go on: all shall hear the same sentence. */
    if (why != NULL && (status == PEN_MISMATCH || status == PEN_INTERNAL))
        liaison_report(c->liaison, why);
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
    static const exchange_actions actions = {client_send,    client_cut,         client_store,
                                             step_decided,   exchange_completed, exchange_logs,
                                             exchange_counts};
    const worker_settings *s              = &c->ctx->settings;
    const uint64_t seed                   = s->seed + (uint64_t)c->ctx->env.rank;
    const exchange_setup setup            = {.plan        = c->plan,
                                             .model       = &c->ctx->model.wire,
                                             .shard       = c->shard,
                                             .rule        = c->ctx->rule,
                                             .rank        = c->ctx->env.rank,
                                             .n_shards    = c->n_shards,
                                             .lanes       = (uint32_t)s->lanes,
                                             .term        = c->term,
                                             .epoch       = c->epoch,
                                             .from        = liaison_incarnation(c->liaison),
                                             .to          = c->to,
                                             .n_workers   = c->n_workers,
                                             .worker_host = (const char *const *)c->worker_host,
                                             .server      = (const char *const *)c->server,
                                             .warn_ms     = s->warn_ms,
                                             .retry       = retry_policy_make(s->retry_ms, seed),
                                             .step        = step,
                                             .applied     = applied};
    c->exchange                           = exchange_create(&setup, &actions, c, why);
    return c->exchange != NULL ? PEN_OK : why->status;
}

/* ---- what the liaison says ------------------------------------------------------------------- */
static char *server_name(const wire_member *m)
{
    char text[320];
    snprintf(text, sizeof text, "server %d (%s)", m->rank, m->host);
    return strdup(text);
}

static bool copy_members(client *c, const wire_control *m)
{
    for (uint32_t i = 0; i < m->u.epoch.n_servers; i++)
        c->n_shards += m->u.epoch.server[i].n_addresses;
    c->n_workers   = m->u.epoch.n_workers;
    c->to          = calloc(c->n_shards + 1, sizeof *c->to);
    c->address     = calloc(c->n_shards + 1, sizeof *c->address);
    c->server      = calloc(c->n_shards + 1, sizeof *c->server);
    c->worker_host = calloc(c->n_workers + 1, sizeof *c->worker_host);
    if (!c->to || !c->address || !c->server || !c->worker_host) return false;
    uint32_t at = 0;
    for (uint32_t i = 0; i < m->u.epoch.n_servers; i++) {
        const wire_member *s = &m->u.epoch.server[i];
        for (uint32_t a = 0; a < s->n_addresses; a++, at++) {
            c->to[at]      = s->incarnation;
            c->address[at] = strdup(s->address[a]);
            c->server[at]  = server_name(s);
            if (c->address[at] == NULL || c->server[at] == NULL) return false;
        }
    }
    for (uint32_t i = 0; i < c->n_workers; i++) {
        uint32_t rank = m->u.epoch.worker[i].rank >= 0 ? (uint32_t)m->u.epoch.worker[i].rank : i;
        if (rank >= c->n_workers || c->worker_host[rank] != NULL) continue;
        c->worker_host[rank] = strdup(m->u.epoch.worker[i].host);
    }
    for (uint32_t i = 0; i < c->n_workers; i++)
        if (c->worker_host[i] == NULL && (c->worker_host[i] = strdup("unknown")) == NULL)
            return false;
    return true;
}

static void epoch_came(void *user, const wire_control *m)
{
    client *c = user;
    pen_error why;
    c->term  = m->u.epoch.term;
    c->epoch = m->u.epoch.epoch;
    if (!copy_members(c, m)) {
        why_set(&why, PEN_NO_MEMORY, "no memory for the record of %u members", c->n_workers);
        report(c, &why);
        return;
    }
    if (m->u.epoch.job[0] != '\0')
        snprintf(c->ctx->job, sizeof c->ctx->job, "%.47s", m->u.epoch.job);
    end(&c->join, NULL);
}

static pen_status take_plan(client *c, const wire_control *m, pen_error *why)
{
    pen_status status = plan_create(&c->ctx->model.wire, &c->plan, why);
    if (status != PEN_OK) return status;
    if (m->u.plan.n_partitions != c->plan->n_partitions)
        return why_set(why, PEN_MISMATCH,
                       "the scheduler cuts the model into %u partitions and this worker into %u; "
                       "are their versions equal?",
                       m->u.plan.n_partitions, c->plan->n_partitions);
    c->shard = calloc(c->plan->n_partitions, sizeof *c->shard);
    c->crc   = calloc(WIRE_ITEMS_MAX, sizeof *c->crc);
    if (c->shard == NULL || c->crc == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the plan");
    for (uint32_t i = 0; i < c->plan->n_partitions; i++) {
        c->shard[i] = m->u.plan.shard[i];
        if (c->shard[i] >= c->n_shards)
            return why_set(why, PEN_CORRUPT, "the plan puts partition %u on shard %u of %u", i,
                           c->shard[i], c->n_shards);
    }
    c->restore = m->u.plan.restore;
    return PEN_OK;
}

static void plan_came(void *user, const wire_control *m)
{
    client *c = user;
    pen_error why;
    if (take_plan(c, m, &why) != PEN_OK) report(c, &why);
}

/* All workers fetch the first values, rank 0 too: then its rounding is everybody's. */
static void load(client *c)
{
    const model *m      = &c->ctx->model;
    const uint64_t now  = loop_now_ms(c->loop);
    exchange_request *r = exchange_open(c->exchange, now);
    if (r == NULL) {
        pen_error why;
        why_set(&why, PEN_NO_MEMORY, "no memory for the first values");
        report(c, &why);
        return;
    }
    bool sends = c->restore < 0 && c->ctx->env.rank == 0;
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        if (sends) exchange_add(c->exchange, r, EXCHANGE_INIT, t, m->tensor[t]->param, NULL);
        exchange_add(c->exchange, r, EXCHANGE_LOAD, t, NULL, m->tensor[t]->param);
    }
    c->is_loading = true;
    exchange_close(c->exchange, r, NULL, c->commit->deadline_ms, now);
}

/* What explicit pushes carry: the rates of the groups as they are. */
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

static void committed(void *user, int64_t step, int64_t applied)
{
    client *c = user;
    pen_error why;
    if (c->commit == NULL) return;
    pen_status status = make_exchange(c, step, applied, &why);
    if (status == PEN_OK) status = set_plain_inputs(c, &why);
    if (status == PEN_OK) status = client_dial_links(c, &why);
    if (status != PEN_OK) {
        report(c, &why);
        return;
    }
    c->ctx->step.next_index = step;
    atomic_store(&c->ctx->step_index, step);
    load(c);
}

static void met(void *user, void *token, const void *data, size_t size, const pen_error *why)
{
    (void)user;
    request *r = token;
    if (why == NULL && size > 0) memcpy(r->u.meet.out, data, size);
    r->result.count = r->u.meet.count;
    free(r->u.meet.in);
    free(r->u.meet.label);
    request_end(r, why != NULL ? why->status : PEN_OK, why);
}

static void snapshot_done(void *user, int64_t step, pen_status status, const char *text)
{
    client *c = user;
    pen_error why;
    if (status != PEN_OK)
        why_set(&why, status, "the snapshot of step %lld failed: %s", (long long)step, text);
    end_snapshots(c, status != PEN_OK ? &why : NULL, step);
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

static void left(void *user)
{
    client *c = user;
    end(&c->leave, NULL);
}

static void fill_beat(void *user, wire_control *beat)
{
    client *c    = user;
    pen_ctx *ctx = c->ctx;
    uint32_t n   = 0;
    for (; n < STAT_COUNT; n++)
        c->beat_stat[n] = (wire_stat){stat_rows[n].name, (double)stat_get(&ctx->stats, (stat_id)n)};
    pthread_mutex_lock(&ctx->watch_lock); /* rows are only added, and a name never changes */
    for (uint32_t i = 0; i < ctx->n_metrics; i++, n++)
        c->beat_stat[n] = (wire_stat){ctx->metric[i].name, ctx->metric[i].value};
    pthread_mutex_unlock(&ctx->watch_lock);
    snprintf(c->beat_call, sizeof c->beat_call, "%s%s",
             atomic_load(&ctx->in_call) ? "" : "user code, last call ", atomic_load(&ctx->call));
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

/* ---- requests, in the loop's thread ---------------------------------------------------------- */
static bool refuse_failed(client *c, request *r)
{
    if (!atomic_load(&c->ctx->has_failed)) return false;
    request_end(r, c->ctx->failure.status, &c->ctx->failure);
    return true;
}

static void refuse_for_memory(request *r)
{
    pen_error why;
    why_set(&why, PEN_NO_MEMORY, "no memory for another request");
    request_end(r, PEN_NO_MEMORY, &why);
}

static void begin_verb(client *c, request *r, uint64_t now)
{
    exchange_request *e = exchange_open(c->exchange, now);
    if (e == NULL) {
        refuse_for_memory(r);
        return;
    }
    exchange_add(c->exchange, e, r->u.verb.verb, r->u.verb.tensor->index, r->u.verb.from,
                 r->u.verb.to);
    exchange_close(c->exchange, e, r, r->deadline_ms, now);
}

static void begin_pull_free(client *c, request *r, uint64_t now)
{
    const model *m      = &c->ctx->model;
    exchange_request *e = exchange_open(c->exchange, now);
    if (e == NULL) {
        refuse_for_memory(r);
        return;
    }
    for (uint32_t t = 0; t < m->n_tensors; t++)
        if (m->tensor[t]->trained && model_rule_of(m, m->tensor[t]) == EXCHANGE_FREE)
            exchange_add(c->exchange, e, EXCHANGE_PULL, t, NULL, m->tensor[t]->param);
    exchange_close(c->exchange, e, r, r->deadline_ms, now);
}

static void begin_step_end(client *c, request *r, uint64_t now)
{
    if (c->step == NULL) {
        if (r->u.step.decided != NULL) refuse_for_memory(r->u.step.decided);
        refuse_for_memory(r);
        return;
    }
    c->step = NULL;
    exchange_step_close(c->exchange, r, r->deadline_ms, now);
}

static void begin_meet(client *c, request *r, uint64_t now)
{
    if (liaison_meet(c->liaison, r->u.meet.label, r->u.meet.op, r->u.meet.dtype, r->u.meet.count,
                     r->u.meet.in, r->u.meet.size, r->deadline_ms, r, now) == PEN_OK)
        return;
    free(r->u.meet.in);
    free(r->u.meet.label);
    refuse_for_memory(r);
}

static void begin(void *user)
{
    request *r         = user;
    client *c          = r->ctx->state;
    const uint64_t now = loop_now_ms(c->loop);
    if (r->kind == REQUEST_LEAVE) {
        c->leave = r;
        liaison_leave(c->liaison, now);
        client_after(c);
        return;
    }
    /* A step that was opened ends in the exchange, which tells both of its requests. */
    if (r->kind != REQUEST_STEP && refuse_failed(c, r)) {
        if (r->kind == REQUEST_MEET) {
            free(r->u.meet.in);
            free(r->u.meet.label);
        }
        if (r->kind == REQUEST_COMMAND) free(r->u.command.body);
        return;
    }
    switch (r->kind) {
    case REQUEST_JOIN:
        c->join = r;
        if (c->n_workers > 0) end(&c->join, NULL);
        break;
    case REQUEST_COMMIT:
        c->commit = r;
        liaison_register(c->liaison, &c->ctx->model.wire, now);
        break;
    case REQUEST_VERB: begin_verb(c, r, now); break;
    case REQUEST_STEP: begin_step_end(c, r, now); break;
    case REQUEST_PULL_FREE: begin_pull_free(c, r, now); break;
    case REQUEST_MEET: begin_meet(c, r, now); break;
    case REQUEST_COMMAND: client_begin_command(c, r, now); break;
    case REQUEST_SNAPSHOT:
        r->next      = c->snapshots;
        c->snapshots = r;
        liaison_snapshot(c->liaison, now);
        break;
    case REQUEST_LEAVE: break;
    }
}

static void servers_start(pen_ctx *ctx, request *r)
{
    client *c = ctx->state;
    r->task   = (loop_task){.fn = begin, .user = r};
    loop_post(c->loop, &r->task);
}

/* ---- the step -------------------------------------------------------------------------------- */
static void open_step(void *user)
{
    client *c = user;
    c->step =
        exchange_step_open(c->exchange, c->step_index, &c->ctx->step.inputs, loop_now_ms(c->loop));
}

static void servers_step_open(pen_ctx *ctx, uint64_t index, const wire_inputs *inputs)
{
    client *c     = ctx->state;
    c->step_index = index;
    (void)inputs; /* ctx->step.inputs: unchanged until the step has ended */
    c->step_open = (loop_task){.fn = open_step, .user = c};
    loop_post(c->loop, &c->step_open);
}

/* As many zeros as the largest gradient serve all tensors: never freed while one may be pushed. */
static const void *zeros(client *c)
{
    const model *m = &c->ctx->model;
    size_t largest = 1;
    if (c->zeros != NULL) return c->zeros;
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i]->grad_bytes > largest) largest = m->tensor[i]->grad_bytes;
    c->zeros = calloc(1, largest);
    return c->zeros;
}

static void push_ready(void *user)
{
    pen_tensor *t    = user;
    client *c        = t->ctx->state;
    const void *from = t->pushed;
    if (c->step == NULL) return;
    if (from == NULL && (from = zeros(c)) == NULL) {
        pen_error why;
        why_set(&why, PEN_NO_MEMORY, "no memory for the zeros of '%s'", t->name);
        report(c, &why);
        return;
    }
    exchange_add(c->exchange, c->step, EXCHANGE_STEP, t->index, from, t->param);
}

static void servers_ready(pen_ctx *ctx, pen_tensor *t, const void *grad)
{
    client *c = ctx->state;
    t->pushed = grad;
    t->ready  = (loop_task){.fn = push_ready, .user = t};
    loop_post(c->loop, &t->ready);
}

/* ---- abort ----------------------------------------------------------------------------------- */
static bool drain_abort(void *user)
{
    client *c = *(void **)user;
    uint64_t n;
    if (read(c->abort_fd, &n, sizeof n) != sizeof n) return false;
    pen_error why;
    why_set(&why, PEN_ABORTED, "pen_abort on rank %d (%s): %s", c->ctx->env.rank, c->ctx->host,
            c->ctx->abort_why);
    why_culprit(&why, PEN_WORKER, c->ctx->env.rank, -1, NULL);
    report(c, &why);
    client_after(c);
    return true;
}

static void servers_abort(pen_ctx *ctx)
{
    client *c          = ctx->state;
    const uint64_t one = 1;
    ssize_t written    = write(c->abort_fd, &one, sizeof one);
    (void)written;
}

/* ---- birth ----------------------------------------------------------------------------------- */
/* Rank 0 is the scheduler's home unless somebody else is: then its port is taken, or its host
 * another. */
static pen_status host_scheduler(pen_ctx *ctx, pen_error *why)
{
    const worker_settings *s = &ctx->settings;
    if (ctx->env.rank != 0 || s->scheduler == SCHEDULER_EXTERNAL) return PEN_OK;
    scheduler_settings hosted;
    config_defaults(scheduler_settings_rows, &hosted);
    hosted.world_size      = (uint64_t)ctx->env.world_size;
    hosted.servers         = (uint64_t)s->servers;
    hosted.port            = ctx->env.port;
    hosted.lease_ms        = s->lease_ms;
    hosted.warn_ms         = s->warn_ms;
    hosted.init_timeout_ms = s->init_timeout_ms;
    memcpy(hosted.host, ctx->env.addr, sizeof hosted.host);
    pen_status status = scheduler_start(&hosted, &ctx->hosted, why);
    if (status == PEN_OK)
        log_info("rank 0 hosts the scheduler at %s:%u", ctx->env.addr, ctx->env.port);
    return s->scheduler == SCHEDULER_HOSTED ? status : PEN_OK;
}

static void *run(void *user)
{
    client *c = user;
    request_mark_sdk_thread();
    loop_run(c->loop);
    return NULL;
}

static uint64_t draw_nonce(void)
{
    uint64_t nonce;
    if (getrandom(&nonce, sizeof nonce, 0) == sizeof nonce) return nonce;
    return clock_ns(&clock_real) ^ (uint64_t)getpid() << 32;
}

static pen_status make_liaison(client *c, pen_error *why)
{
    static const liaison_actions actions = {
        client_say,      epoch_came, plan_came, committed, met,          snapshot_done,
        snapshot_please, left,       failed,    fill_beat, client_probe, liaison_logs};
    const pen_ctx *ctx        = c->ctx;
    const char *at            = strstr(c->control_address, "://");
    const liaison_setup setup = {.rank            = ctx->env.rank,
                                 .world_size      = ctx->env.world_size,
                                 .servers         = (int32_t)ctx->settings.servers,
                                 .pid             = (int32_t)ctx->pid,
                                 .local_rank      = ctx->env.local_rank,
                                 .node            = ctx->env.node,
                                 .nonce           = draw_nonce(),
                                 .lease_ms        = ctx->settings.lease_ms,
                                 .init_timeout_ms = ctx->settings.init_timeout_ms,
                                 .host            = ctx->host,
                                 .job             = ctx->settings.job,
                                 .scheduler       = at != NULL ? at + 3 : c->control_address};
    c->liaison                = liaison_create(&setup, &actions, c, clock_ms(&clock_real), why);
    return c->liaison != NULL ? PEN_OK : why->status;
}

static pen_status build(client *c, pen_error *why)
{
    c->loop = loop_create(why);
    if (c->loop == NULL) return why->status;
    c->abort_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (c->abort_fd < 0) return why_set(why, PEN_INTERNAL, "no eventfd: %s", strerror(errno));
    c->arena = wire_arena_create(ARENA_BYTES_MAX);
    if (c->arena == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for incoming messages");
    pen_status status = client_dial_control(c, why);
    if (status == PEN_OK) status = make_liaison(c, why);
    if (status == PEN_OK) status = client_make_calls(c, why);
    if (status == PEN_OK) status = loop_add(c->loop, c->abort_fd, drain_abort, &c->ctx->state, why);
    if (status == PEN_OK) status = loop_before_sleep(c->loop, before_sleep, c, why);
    return status;
}

static pen_status servers_open(pen_ctx *ctx, pen_error *why)
{
    client *c = calloc(1, sizeof *c);
    if (c == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the connection to the job");
    c->ctx            = ctx;
    c->abort_fd       = -1;
    ctx->state        = c;
    pen_status status = host_scheduler(ctx, why);
    if (status == PEN_OK) status = build(c, why);
    if (status != PEN_OK) return status;
    int error = pthread_create(&c->thread, NULL, run, c);
    if (error != 0)
        return why_set(why, PEN_NO_MEMORY, "no thread for the connection to the job: %s",
                       strerror(error));
    c->has_thread = true;
    pthread_setname_np(c->thread, "pen-io");
    return PEN_OK;
}

/* ---- death ----------------------------------------------------------------------------------- */
/* In the loop's thread, for sockets belong to it.  Buffers of the program come back as tasks. */
static void stop(void *user)
{
    client *c     = user;
    c->is_leaving = true;
    loop_remove(c->loop, c);
    loop_remove(c->loop, &c->ctx->state);
    client_close_links(c);
    transport_close(c->control, FAREWELL_MS);
    c->control = NULL;
    loop_stop(c->loop);
}

static void wait_for_buffers(client *c)
{
    const uint64_t until = clock_ms(&clock_real) + LET_GO_MS;
    while (c->holds > 0 && clock_ms(&clock_real) < until) loop_turn(c->loop, 10);
}

static void stop_thread(client *c)
{
    if (!c->has_thread) return;
    c->stop = (loop_task){.fn = stop, .user = c};
    loop_post(c->loop, &c->stop);
    pthread_join(c->thread, NULL);
}

static void free_all(char **text, uint32_t n)
{
    for (uint32_t i = 0; text != NULL && i < n; i++) free(text[i]);
    free(text);
}

static void free_client(client *c)
{
    exchange_destroy(c->exchange);
    liaison_destroy(c->liaison);
    calls_destroy(c->calls);
    wire_arena_destroy(c->arena);
    wire_out_free(&c->out);
    plan_destroy(c->plan);
    free_all(c->address, c->n_shards);
    free_all(c->server, c->n_shards);
    free_all(c->worker_host, c->n_workers);
    free(c->links);
    free(c->to);
    free(c->shard);
    free(c->crc);
    free(c->zeros);
    if (c->abort_fd >= 0) close(c->abort_fd);
    loop_destroy(c->loop);
    free(c);
}

static void *join_scheduler(void *user)
{
    pen_error why;
    (void)scheduler_join(user, &why); /* its verdict reached this rank as everybody else */
    return NULL;
}

/* A hosted scheduler serves until all have left: bounded, but generously while the job is well. */
static void leave_scheduler(pen_ctx *ctx)
{
    scheduler *s = ctx->hosted;
    pthread_t thread;
    if (s == NULL) return;
    ctx->hosted      = NULL;
    int64_t patience = atomic_load(&ctx->has_failed) ? LINGER_FAILED_MS : ctx->settings.deadline_ms;
    if (ctx->phase == CONTEXT_OPEN) patience = LINGER_FAILED_MS;
    if (pthread_create(&thread, NULL, join_scheduler, s) != 0) {
        scheduler_stop(s);
        join_scheduler(s);
        return;
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += patience / 1000 + 1;
    if (patience < 0 || pthread_timedjoin_np(thread, NULL, &until) != 0) {
        if (patience >= 0) scheduler_stop(s);
        pthread_join(thread, NULL);
    }
}

static void servers_close(pen_ctx *ctx)
{
    client *c = ctx->state;
    if (c != NULL) {
        stop_thread(c);
        if (c->control != NULL) transport_close(c->control, 0);
        if (c->loop != NULL) wait_for_buffers(c);
        if (c->holds == 0)
            free_client(c);
        else
            log_error("%llu buffers were not returned by the transport; their memory is lost",
                      (unsigned long long)c->holds);
        ctx->state = NULL;
    }
    leave_scheduler(ctx);
}

const engine_ops engine_servers = {.name      = "servers",
                                   .open      = servers_open,
                                   .start     = servers_start,
                                   .step_open = servers_step_open,
                                   .ready     = servers_ready,
                                   .answer    = client_answer,
                                   .abort     = servers_abort,
                                   .close     = servers_close};
