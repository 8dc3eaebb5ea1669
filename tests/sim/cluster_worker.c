/* cluster_worker.c - a worker: its program, and what surrounds liaison and exchange here. */
#include "tests/sim/cluster_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_free_rule(const sim_plan *p)
{
    return p->task.mode == MODEL_SSP || p->task.mode == MODEL_ASYNC;
}

static void hang_up(sim_worker *w)
{
    net_hang_up(&w->control);
    for (int i = 0; i < SIM_SHARDS_MAX * SIM_LANES_MAX; i++)
        if (w->lane[i].data.t != NULL) net_hang_up(&w->lane[i].data);
}

static void end(sim_worker *w, life how)
{
    w->life = how;
    w->at   = AT_END;
    hang_up(w);
}

/* ---- calls: what a program waits for --------------------------------------------------------- */
static sim_call *begin_call(sim_worker *w, const char *name, int32_t tensor, bool acknowledges)
{
    sim_call *call = w->call;
    while (call->is_pending) call++;
    *call = (sim_call){.worker       = w,
                       .name         = name,
                       .is_pending   = true,
                       .deadline_ms  = w->c->now_ms + w->c->plan.deadline_ms,
                       .tensor       = tensor,
                       .acknowledges = acknowledges};
    w->pending++;
    return call;
}

static void remember(sim_worker *w, const pen_error *why)
{
    if (w->why.status == PEN_OK) w->why = *why;
}

static void end_call(sim_call *call, const pen_error *why)
{
    sim_worker *w = call->worker;
    if (w->life != LIFE_RUNS) return; /* a dead program learns nothing */
    if (!call->is_pending) sim_wrong(w->c, "rank %u: %s ended twice", w->rank, call->name);
    call->is_pending = false;
    w->pending--;
    if (why == NULL) {
        check_acknowledged(w, call);
        return;
    }
    sim_note(w->c, "rank %u: %s: %s", w->rank, call->name, why->text);
    if (why->status == PEN_TIMED_OUT && w->c->result.late[0] == '\0')
        snprintf(w->c->result.late, sizeof w->c->result.late, "%s", why->text);
    remember(w, why);
}

/* ---- what the exchange does ------------------------------------------------------------------ */
static sim_lane *lane_of(sim_worker *w, uint32_t number, uint32_t lane)
{
    return &w->lane[number * w->c->plan.lanes + lane];
}

/* A payload that is lent is read until its bytes have left: a little later, and before its lane is
 * dialled anew. */
static void lend(sim_worker *w, sim_lane *l, const exchange_piece *piece)
{
    sim_loan *loan = sim_need(calloc(1, sizeof *loan));
    *loan          = (sim_loan){.next = w->loans, .lane = l, .op = piece->op};
    loan->due_ms   = w->c->now_ms + draw_below(&w->chance, 1 + w->c->plan.data.delay_ms);
    w->loans       = loan;
    exchange_hold(w->exchange, piece->op);
}

static buf *pack(const exchange_piece *pieces, uint32_t n, size_t size)
{
    buf *b   = sim_need(buf_new(size));
    char *to = b->data;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(to, pieces[i].data, pieces[i].size);
        to += pieces[i].size;
    }
    return b;
}

static pen_status exchange_sends(void *user, uint32_t number, uint32_t lane, const wire_data *d,
                                 const exchange_piece *pieces, uint32_t n)
{
    sim_worker *w  = user;
    sim_lane *l    = lane_of(w, number, lane);
    wire_data full = *d;
    buf *body      = NULL;
    pen_error why;
    if (l->data.t == NULL || l->is_cut) return PEN_AGAIN;
    for (uint32_t i = 0; i < n; i++) {
        w->c->column[i] = crc32c(0, pieces[i].data, pieces[i].size);
        full.payload_bytes += pieces[i].size;
    }
    if (n > 0) full.crc = w->c->column;
    if (n > 0) body = pack(pieces, n, full.payload_bytes);
    if (wire_data_encode(&full, &w->c->out, &why) != PEN_OK)
        sim_wrong(w->c, "rank %u cannot write: %s", w->rank, why.text);
    const pen_status status = transport_send(l->data.t, 0, w->c->out.data, w->c->out.size, body);
    if (status != PEN_OK)
        buf_release(body);
    else if (n == 1 && w->c->plan.lends && pieces->op != NULL)
        lend(w, l, pieces);
    return status;
}

static void exchange_cuts(void *user, uint32_t number, uint32_t lane)
{
    lane_of(user, number, lane)->is_cut = true;
}

static bool exchange_stores(void *user, void *to, const void *from, size_t size, uint32_t crc)
{
    (void)user;
    if (crc32c(0, from, size) != crc) return false;
    memcpy(to, from, size);
    return true;
}

static void exchange_decided(void *user, void *token, const exchange_outcome *outcome)
{
    sim_worker *w  = user;
    w->outcome     = *outcome;
    w->has_outcome = true;
    (void)token;
}

static void exchange_completed(void *user, void *token, pen_status status,
                               const exchange_result *result, const pen_error *why)
{
    sim_worker *w = user;
    (void)result;
    if ((status == PEN_OK) != (why == NULL))
        sim_wrong(w->c, "rank %u: a request ended without its reason", w->rank);
    end_call(token, why);
    if (why != NULL && (status == PEN_MISMATCH || status == PEN_INTERNAL))
        liaison_report(w->liaison, why);
}

static void logs(void *user, int level, const char *line)
{
    sim_worker *w = user;
    sim_note(w->c, "rank %u says (%d): %s", w->rank, level, line);
}

static void counts(void *user, stat_id id, uint64_t n)
{
    sim_worker *w = user;
    if (id == STAT_RETRIES) w->c->result.retries += n;
}

static void dial_lane(sim_worker *w, uint32_t number, uint32_t lane)
{
    char name[SIM_NAME_BYTES];
    snprintf(name, sizeof name, "worker%u", w->rank);
    net_dial(w->c, &lane_of(w, number, lane)->data, w->address[number], name);
}

static exchange_rule rule_of(const sim_plan *p)
{
    if (is_free_rule(p)) return EXCHANGE_FREE;
    return p->task.mode == MODEL_EAGER ? EXCHANGE_EAGER : EXCHANGE_DECIDE;
}

static const char *const hosts[SIM_WORKERS_MAX]  = {"w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7"};
static const char *const servers[SIM_SHARDS_MAX] = {"s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"};

static void make_exchange(sim_worker *w)
{
    static const exchange_actions actions = {
        exchange_sends,     exchange_cuts, exchange_stores, exchange_decided,
        exchange_completed, logs,          counts};
    const sim_plan *p = &w->c->plan;
    exchange_setup setup;
    setup = (exchange_setup){.plan        = w->c->cut,
                             .model       = &w->c->model,
                             .shard       = w->shard_of,
                             .rule        = rule_of(p),
                             .rank        = (int32_t)w->rank,
                             .n_shards    = w->n_shards,
                             .lanes       = p->lanes,
                             .term        = w->term,
                             .epoch       = w->epoch,
                             .from        = liaison_incarnation(w->liaison),
                             .to          = w->to,
                             .n_workers   = p->task.workers,
                             .worker_host = hosts,
                             .server      = servers,
                             .warn_ms     = p->warn_ms};

    setup.retry = retry_policy_make(p->retry_ms, p->task.seed + w->rank);
    pen_error why;
    w->exchange = exchange_create(&setup, &actions, w, &why);
    if (w->exchange == NULL) sim_wrong(w->c, "%s", why.text);
    for (uint32_t s = 0; s < w->n_shards; s++)
        for (uint32_t l = 0; l < p->lanes; l++) dial_lane(w, s, l);
}

/* ---- what the liaison says ------------------------------------------------------------------- */
static void liaison_sends(void *user, const wire_control *message)
{
    sim_worker *w = user;
    net_say(w->c, &w->control, 0, message);
}

static void epoch_came(void *user, const wire_control *m)
{
    sim_worker *w = user;
    w->term       = m->u.epoch.term;
    w->epoch      = m->u.epoch.epoch;
    for (uint32_t i = 0; i < m->u.epoch.n_servers; i++) {
        const wire_member *s = &m->u.epoch.server[i];
        for (uint32_t a = 0; a < s->n_addresses && w->n_shards < SIM_SHARDS_MAX; a++) {
            snprintf(w->address[w->n_shards], sizeof w->address[0], "%s", s->address[a]);
            w->to[w->n_shards++] = s->incarnation;
        }
    }
    w->has_epoch = true;
}

static void plan_came(void *user, const wire_control *m)
{
    sim_worker *w = user;
    if (m->u.plan.n_partitions != w->c->cut->n_partitions) sim_wrong(w->c, "the plans differ");
    w->shard_of = sim_need(calloc(w->c->cut->n_partitions, sizeof *w->shard_of));
    memcpy(w->shard_of, m->u.plan.shard, w->c->cut->n_partitions * sizeof *w->shard_of);
}

static void committed(void *user, int64_t step, int64_t applied)
{
    sim_worker *w = user;
    if (step != 0 || applied != 0)
        sim_wrong(w->c, "rank %u goes on from step %lld", w->rank, (long long)step);
    w->is_committed = true;
}

static void met(void *user, void *token, const void *data, size_t size, const pen_error *why)
{
    sim_worker *w = user;
    if (why == NULL && size == sizeof w->met) memcpy(&w->met, data, size);
    end_call(token, why);
}

static void snapshot_done(void *user, int64_t step, pen_status status, const char *text)
{
    (void)user;
    (void)step;
    (void)status;
    (void)text;
}

static void snapshot_please(void *user)
{
    sim_worker *w      = user;
    w->snapshot_wanted = true;
}

static void left(void *user)
{
    sim_worker *w = user;
    w->has_left   = true;
}

static void failed(void *user, const pen_error *why)
{
    sim_worker *w = user;
    sim_note(w->c, "rank %u fails: %s", w->rank, why->text);
    if (why->role != PEN_SCHEDULER) check_failure(w->c, why);
    remember(w, why);
    if (w->exchange != NULL) exchange_fail(w->exchange, why, w->c->now_ms);
    for (int i = 0; i < SIM_CALLS_MAX;
         i++) /* pen_init and pen_commit: nobody but us waits for them */
        if (w->call[i].is_pending && w->exchange == NULL) end_call(&w->call[i], why);
}

static void fill_beat(void *user, wire_control *beat)
{
    sim_worker *w     = user;
    beat->u.beat.step = w->at >= AT_BEGIN ? (int64_t)w->step : -1;
    beat->u.beat.call = "pen_step_end";
}

static const char *describe_silence(void *user)
{
    (void)user;
    return "simulated";
}

static void make_liaison(sim_worker *w)
{
    static const liaison_actions actions = {
        liaison_sends, epoch_came, plan_came, committed,        met, snapshot_done, snapshot_please,
        left,          failed,     fill_beat, describe_silence, logs};
    const sim_plan *p         = &w->c->plan;
    const liaison_setup setup = {.rank            = (int32_t)w->rank,
                                 .world_size      = (int32_t)p->task.workers,
                                 .servers         = (int32_t)p->servers,
                                 .pid             = 100 + (int32_t)w->rank,
                                 .nonce           = draw(&w->chance),
                                 .lease_ms        = p->lease_ms,
                                 .init_timeout_ms = p->init_timeout_ms,
                                 .host            = w->control.name,
                                 .job             = "sim",
                                 .scheduler       = "sim"};
    pen_error why;
    w->liaison = liaison_create(&setup, &actions, w, w->c->now_ms, &why);
    if (w->liaison == NULL) sim_wrong(w->c, "%s", why.text);
}

/* ---- the program: first values --------------------------------------------------------------- */
static void load(sim_worker *w)
{
    exchange_request *r = sim_need(exchange_open(w->exchange, w->c->now_ms));
    for (uint32_t t = 0; t < w->c->model.n_tensors; t++) {
        const uint64_t n = plan_tensor_elements(&w->c->tensor[t]);
        for (uint64_t i = 0; i < n && w->rank == 0; i++)
            w->param[t][i] = model_first(&w->c->plan.task, t, i);
        if (w->rank == 0) exchange_add(w->exchange, r, EXCHANGE_INIT, t, w->param[t], NULL);
        exchange_add(w->exchange, r, EXCHANGE_LOAD, t, NULL, w->param[t]);
    }
    sim_call *call = NULL;
    for (int i = 0; call == NULL; i++)
        if (w->call[i].is_pending) call = &w->call[i];
    exchange_close(w->exchange, r, call, call->deadline_ms, w->c->now_ms);
}

/* ---- the program: one step ------------------------------------------------------------------- */
static bool is_trained(const sim_worker *w, uint32_t tensor)
{
    return (w->c->tensor[tensor].flags & PEN_FROZEN) == 0;
}

static wire_inputs inputs_of(const sim_worker *w, const double *rate)
{
    const model_task *task = &w->c->plan.task;
    const uint64_t every   = w->c->plan.snapshot_every;
    return (wire_inputs){.loss_scale = task->loss_scale,
                         .clip       = task->mode == MODEL_DECIDE ? task->clip : 0,
                         .weight     = model_weight(task, w->rank, w->step),
                         .skip       = true,
                         .snapshot   = w->rank == 0 && every > 0 && (w->step + 1) % every == 0,
                         .n_rates    = 1,
                         .rate       = rate};
}

static void shuffle(sim_worker *w)
{
    for (uint32_t i = w->c->model.n_tensors; i > 1; i--) {
        const uint32_t j   = (uint32_t)draw_below(&w->chance, i);
        const uint32_t old = w->order[i - 1];
        w->order[i - 1]    = w->order[j];
        w->order[j]        = old;
    }
}

static void think(sim_worker *w, program_place next)
{
    const sim_plan *p   = &w->c->plan;
    const uint64_t most = w->rank == p->slow_rank && p->slow_ms > 0 ? p->slow_ms : p->think_ms;
    w->wake_ms          = w->c->now_ms + draw_below(&w->chance, most + 1) / 2;
    w->at               = next;
}

static void begin_step(sim_worker *w)
{
    const double rate    = w->c->plan.task.rate;
    const wire_inputs in = inputs_of(w, &rate);
    for (uint32_t t = 0; t < w->c->model.n_tensors; t++)
        if (is_trained(w, t))
            model_fill_gradient(&w->c->plan.task, &w->c->tensor[t], t, w->rank, w->step,
                                w->grad[t]);
    shuffle(w);
    w->has_outcome = false;
    if (w->c->plan.verbs)
        (void)exchange_set_inputs(w->exchange, &in);
    else
        w->step_request = sim_need(exchange_step_open(w->exchange, w->step, &in, w->c->now_ms));
    think(w, AT_FIRST_HALF);
}

static void request(sim_worker *w, exchange_verb verb, uint32_t t, const char *name)
{
    exchange_request *r = sim_need(exchange_open(w->exchange, w->c->now_ms));
    const bool pushes   = verb != EXCHANGE_PULL;
    sim_call *call      = begin_call(w, name, (int32_t)t, pushes);
    exchange_add(w->exchange, r, verb, t, pushes ? w->grad[t] : NULL,
                 verb != EXCHANGE_PUSH ? w->param[t] : NULL);
    exchange_close(w->exchange, r, call, call->deadline_ms, w->c->now_ms);
}

static void push_tensor(sim_worker *w, uint32_t t)
{
    if (!is_trained(w, t)) return;
    if (!w->c->plan.verbs) {
        exchange_add(w->exchange, w->step_request, EXCHANGE_STEP, t, w->grad[t], w->param[t]);
    } else if (is_free_rule(&w->c->plan) && draw_chance(&w->chance, 50)) {
        request(w, EXCHANGE_PUSH, t, "pen_push");
        request(w, EXCHANGE_PULL, t, "pen_pull");
    } else {
        request(w, EXCHANGE_PUSH_PULL, t, "pen_push_pull");
    }
}

static void push_half(sim_worker *w, bool second)
{
    const uint32_t n = w->c->model.n_tensors, from = second ? n / 2 : 0, to = second ? n : n / 2;
    for (uint32_t i = from; i < to; i++) push_tensor(w, w->order[i]);
}

static void close_step(sim_worker *w)
{
    w->at = AT_STEP;
    if (w->c->plan.verbs) return;
    sim_call *call  = begin_call(w, "pen_step_end", -1, true);
    w->step_request = NULL;
    exchange_step_close(w->exchange, call, call->deadline_ms, w->c->now_ms);
}

static void meet(sim_worker *w)
{
    const double mine = w->rank + 1.0;
    sim_call *call    = begin_call(w, "pen_all_reduce", -1, false);
    w->met            = 0;
    w->at             = AT_MEET;
    if (liaison_meet(w->liaison, "sum", PEN_SUM, PEN_F64, 1, &mine, sizeof mine, call->deadline_ms,
                     call, w->c->now_ms) != PEN_OK)
        abort();
}

static void end_step(sim_worker *w)
{
    const uint64_t every = w->c->plan.barrier_every;
    check_step(w);
    w->step++;
    w->at = AT_BEGIN;
    if (every > 0 && w->step % every == 0) meet(w);
}

static void end_meet(sim_worker *w)
{
    const double n = w->c->plan.task.workers;
    if (w->met != n * (n + 1) / 2)
        sim_wrong(w->c, "rank %u: the ranks' numbers add to %g", w->rank, w->met);
    w->at = AT_BEGIN;
}

/* One move of the program; false: it waits. */
static bool advance(sim_worker *w)
{
    const uint64_t now = w->c->now_ms;
    switch (w->at) {
    case AT_JOIN:
        if (!w->has_epoch) return false;
        end_call(&w->call[0], NULL);
        begin_call(w, "pen_commit", -1, false);
        liaison_register(w->liaison, &w->c->model, now);
        w->at = AT_REGISTER;
        return true;
    case AT_REGISTER:
        if (!w->is_committed) return false;
        make_exchange(w);
        load(w);
        w->at = AT_COMMIT;
        return true;
    case AT_COMMIT:
        if (w->pending > 0) return false;
        check_step(w);
        w->at = AT_BEGIN;
        return true;
    case AT_BEGIN:
        if (w->step == w->c->plan.task.steps)
            w->at = AT_LEAVE;
        else
            begin_step(w);
        return true;
    case AT_FIRST_HALF:
        if (now < w->wake_ms) return false;
        push_half(w, false);
        think(w, AT_SECOND_HALF);
        return true;
    case AT_SECOND_HALF:
        if (now < w->wake_ms) return false;
        push_half(w, true);
        close_step(w);
        return true;
    case AT_STEP:
        if (w->pending > 0) return false;
        end_step(w);
        return true;
    case AT_MEET:
        if (w->pending > 0) return false;
        end_meet(w);
        return true;
    case AT_LEAVE:
        liaison_leave(w->liaison, now);
        w->at = AT_LEAVING;
        return true;
    case AT_LEAVING:
        if (!w->has_left) return false;
        end(w, LIFE_LEFT);
        return true;
    case AT_END: break;
    }
    return false;
}

/* ---- a turn ---------------------------------------------------------------------------------- */
static bool drain_control(sim_worker *w)
{
    transport_event event;
    wire_control message;
    bool any = false;
    for (; net_recv(w->c, &w->control, &event); any = true) {
        if (event.kind == TRANSPORT_UP) liaison_up(w->liaison, w->c->now_ms);
        if (event.kind == TRANSPORT_DOWN) liaison_down(w->liaison, w->c->now_ms);
        if (event.kind == TRANSPORT_MESSAGE && net_hear(w->c, &w->control, &event, &message))
            liaison_receive(w->liaison, &message, w->c->now_ms);
        buf_release(event.body);
    }
    return any;
}

static bool drain_lane(sim_worker *w, uint32_t number, uint32_t lane)
{
    transport_event event;
    wire_data d;
    bool any    = false;
    endpoint *e = &lane_of(w, number, lane)->data;
    for (; net_recv(w->c, e, &event); any = true) {
        if (event.kind == TRANSPORT_UP) exchange_up(w->exchange, number, lane, w->c->now_ms);
        if (event.kind == TRANSPORT_DOWN) exchange_down(w->exchange, number, lane);
        if (event.kind == TRANSPORT_MESSAGE && net_hear_data(w->c, e, &event, &d))
            exchange_receive(w->exchange, number, &d, event.body, w->c->now_ms);
        buf_release(event.body);
    }
    return any;
}

/* lane NULL: what has left by now. */
static void take_back(sim_worker *w, const sim_lane *lane)
{
    for (sim_loan **at = &w->loans; *at != NULL;) {
        sim_loan *loan  = *at;
        const bool ends = lane != NULL ? loan->lane == lane : loan->due_ms <= w->c->now_ms;
        if (!ends) {
            at = &loan->next;
            continue;
        }
        *at = loan->next;
        exchange_release(w->exchange, loan->op);
        free(loan);
    }
}

static void redial_cut(sim_worker *w)
{
    for (uint32_t s = 0; s < w->n_shards; s++)
        for (uint32_t l = 0; l < w->c->plan.lanes; l++) {
            sim_lane *lane = lane_of(w, s, l);
            if (!lane->is_cut) continue;
            lane->is_cut = false;
            net_hang_up(&lane->data);
            take_back(w, lane);
            exchange_down(w->exchange, s, l);
            dial_lane(w, s, l);
        }
}

static void time_out_commit(sim_worker *w)
{
    if (w->at != AT_REGISTER || !w->call[0].is_pending || w->call[0].deadline_ms > w->c->now_ms)
        return;
    pen_error why;
    why_set(&why, PEN_TIMED_OUT, "rank %u waited in pen_commit", w->rank);
    end_call(&w->call[0], &why);
}

static bool turn_exchange(sim_worker *w)
{
    bool any = false;
    for (uint32_t s = 0; s < w->n_shards; s++)
        for (uint32_t l = 0; l < w->c->plan.lanes; l++) any |= drain_lane(w, s, l);
    if (exchange_due(w->exchange) <= w->c->now_ms) exchange_tick(w->exchange, w->c->now_ms);
    take_back(w, NULL);
    return any;
}

bool sim_worker_turn(sim_worker *w)
{
    if (w->life != LIFE_RUNS) return false;
    bool any = drain_control(w);
    if (liaison_due(w->liaison) <= w->c->now_ms) liaison_tick(w->liaison, w->c->now_ms);
    if (w->exchange != NULL) any |= turn_exchange(w);
    time_out_commit(w);
    while (w->why.status == PEN_OK && w->life == LIFE_RUNS && advance(w)) any = true;
    if (w->life != LIFE_RUNS) return true;
    if (w->exchange != NULL) {
        exchange_flush(w->exchange, w->c->now_ms);
        redial_cut(w);
    }
    if (w->why.status == PEN_OK || w->pending > 0) return any;
    end(w, LIFE_FAILED); /* a program whose call failed ends, without goodbye */
    return true;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t sim_worker_due(const sim_worker *w)
{
    if (w->life != LIFE_RUNS) return UINT64_MAX;
    uint64_t due = liaison_due(w->liaison);
    if (w->exchange != NULL) due = least(due, exchange_due(w->exchange));
    if (w->at == AT_FIRST_HALF || w->at == AT_SECOND_HALF) due = least(due, w->wake_ms);
    for (const sim_loan *loan = w->loans; loan != NULL; loan = loan->next)
        due = least(due, loan->due_ms);
    if (w->at == AT_REGISTER) due = least(due, w->call[0].deadline_ms);
    return due;
}

/* ---- life ------------------------------------------------------------------------------------ */
void sim_worker_begin(cluster *c, uint32_t rank)
{
    sim_worker *w = &c->worker[rank];
    char name[SIM_NAME_BYTES];
    w->c      = c;
    w->rank   = rank;
    w->chance = draw(&c->chance);
    for (uint32_t t = 0; t < c->model.n_tensors; t++) {
        const uint64_t n = plan_tensor_elements(&c->tensor[t]);
        w->param[t]      = sim_need(calloc(n, sizeof *w->param[t]));
        w->grad[t]       = sim_need(calloc(n, sizeof *w->param[t]));
        w->order[t]      = t;
    }
    begin_call(w, "pen_init", -1, false)->deadline_ms =
        UINT64_MAX; /* init_timeout_ms is what bounds it */
    snprintf(name, sizeof name, "worker%u", rank);
    net_dial(c, &w->control, transport_address(c->scheduler.listener.t), name);
    make_liaison(w);
}

void sim_worker_crash(sim_worker *w)
{
    end(w, LIFE_CRASHED);
}

void sim_worker_free(sim_worker *w)
{
    if (w->life == LIFE_RUNS) end(w, LIFE_CRASHED);
    for (uint32_t i = 0; i < SIM_SHARDS_MAX * SIM_LANES_MAX && w->exchange != NULL; i++)
        take_back(w, &w->lane[i]);
    exchange_destroy(w->exchange);
    liaison_destroy(w->liaison);
    free(w->shard_of);
    for (int t = 0; t < SIM_TENSORS_MAX; t++) {
        free(w->param[t]);
        free(w->grad[t]);
    }
}
