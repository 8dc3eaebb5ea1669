/* cluster_worker.c - the shell of a worker's membership client and ps client. */
#include "tests/sim/cluster_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t now_of(const sim_worker *w)
{
    return sim_now(w->c, &w->clock);
}

static void hang_up(sim_worker *w)
{
    net_hang_up(&w->control);
    for (int i = 0; i < SIM_SHARDS_MAX * SIM_LANES_MAX; i++)
        if (w->lane[i].data.t != NULL) net_hang_up(&w->lane[i].data);
}

void sim_worker_end(sim_worker *w, life how)
{
    w->life = how;
    w->at   = AT_END;
    hang_up(w);
}

static void fail_calls(sim_worker *w, const pen_error *why)
{
    for (int i = 0; i < SIM_CALLS_MAX; i++)
        if (w->call[i].is_pending) sim_call_end(&w->call[i], why);
}

/* ---- actions of the ps client ----------------------------------------------------------------- */
static sim_lane *lane_of(sim_worker *w, uint32_t number, uint32_t lane)
{
    return &w->lane[number * w->c->plan.lanes + lane];
}

/* A lent payload is read until its bytes have left: a little later, and before its lane is
 * dialled again. */
static void lend(sim_worker *w, sim_lane *l, const ps_client_piece *piece)
{
    sim_loan *loan = sim_need(calloc(1, sizeof *loan));
    *loan          = (sim_loan){.next = w->loans, .lane = l, .op = piece->op};
    loan->due_ms   = now_of(w) + draw_below(&w->chance, 1 + w->c->plan.data.delay_ms);
    w->loans       = loan;
    ps_client_tx_ref(w->ps_client, piece->op);
}

static buf *pack(const ps_client_piece *pieces, uint32_t n, size_t size)
{
    buf *b   = sim_need(buf_new(size));
    char *to = b->data;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(to, pieces[i].data, pieces[i].size);
        to += pieces[i].size;
    }
    return b;
}

/* As reach.h: while a needed server is unreachable, it reports that. */
static bool misses(const sim_worker *w, int32_t server)
{
    if (!fault_no_way(w->c, w->rank, server)) return false;
    for (uint32_t n = 0; n < w->n_shards; n++) {
        const wire_replica *row = sim_view_primary(&w->view, n);
        if (row != NULL && row->server == server) return true;
    }
    return false;
}

/* As workers of a group whose calls use sockets do; nothing else of those calls is simulated. */
static bool misses_worker(const sim_worker *w, uint32_t rank)
{
    bool is_member = false;
    for (uint32_t i = 0; i < w->view.n_workers; i++)
        is_member |= w->view.worker[i].rank == (int32_t)rank;
    return is_member && fault_apart(w->c, SIM_WORKER, w->rank, SIM_WORKER, rank);
}

static void say_unreached(sim_worker *w, int32_t role, int32_t rank)
{
    const wire_member *member = role == PEN_SERVER ? sim_view_server(&w->view, rank) : NULL;
    const wire_control m      = {.kind        = WIRE_UNREACHED,
                                 .u.unreached = {.role    = role,
                                                 .rank    = rank,
                                                 .address = member != NULL ? member->address[0] : "",
                                                 .words   = "no answer, timed out"}};
    membership_client_send(w->membership_client, &m);
}

bool sim_worker_reaches(sim_worker *w)
{
    bool all           = true;
    const uint64_t now = now_of(w);
    if (!w->c->has_no_way) return true;
    for (uint32_t s = 0; s < w->c->n_servers; s++) {
        const bool is_missing = misses(w, (int32_t)s);
        all &= !is_missing;
        if (fault_says(&w->unreached_ms[s], is_missing, w->is_committed, now))
            say_unreached(w, PEN_SERVER, (int32_t)s);
    }
    for (uint32_t r = 0; r < w->c->n_workers; r++) {
        const bool is_missing = misses_worker(w, r);
        all &= !is_missing;
        if (fault_says(&w->apart_ms[r], is_missing, w->is_committed, now))
            say_unreached(w, PEN_WORKER, (int32_t)r);
    }
    return all;
}

static bool is_apart(const sim_worker *w, uint32_t number)
{
    const wire_replica *row = w->c->has_no_way ? sim_view_primary(&w->view, number) : NULL;
    return row != NULL && fault_no_way(w->c, w->rank, row->server);
}

static pen_status ps_client_sends(void *user, uint32_t number, uint32_t lane, const wire_data *d,
                                  const ps_client_piece *pieces, uint32_t n)
{
    sim_worker *w  = user;
    sim_lane *l    = lane_of(w, number, lane);
    wire_data full = *d;
    buf *body      = NULL;
    pen_error why;
    if (l->data.t == NULL || l->is_cut || is_apart(w, number)) return PEN_AGAIN;
    check_pushed(w, d);
    for (uint32_t i = 0; i < n; i++) {
        w->c->column[i] = crc32c(0, pieces[i].data, pieces[i].size);
        full.payload_bytes += pieces[i].size;
    }
    if (n > 0) full.crc = w->c->column;
    if (n > 0) body = pack(pieces, n, full.payload_bytes);
    if (wire_data_encode(&full, &w->c->out, &why) != PEN_OK)
        sim_wrong(w->c, "rank %u cannot write: %s", w->rank, why.text);
    const pen_status status = transport_send(l->data.t, 0, w->c->out.data, w->c->out.size, body);
    if (status == PEN_OK) net_count(w->c, (int)d->kind, w->c->out.size + full.payload_bytes);
    if (status != PEN_OK)
        buf_release(body);
    else if (n == 1 && w->c->plan.lends && pieces->op != NULL)
        lend(w, l, pieces);
    return status;
}

static void ps_client_cuts(void *user, uint32_t number, uint32_t lane)
{
    lane_of(user, number, lane)->is_cut = true;
}

static bool ps_client_stores(void *user, void *to, const void *from, size_t size, uint32_t crc)
{
    (void)user;
    if (crc32c(0, from, size) != crc) return false;
    memcpy(to, from, size);
    return true;
}

static void ps_client_decided(void *user, void *token, const ps_client_outcome *outcome)
{
    sim_worker *w  = user;
    w->outcome     = *outcome;
    w->has_outcome = true;
    (void)token;
}

static void ps_client_completed(void *user, void *token, pen_status status,
                                const ps_client_result *result, const pen_error *why)
{
    sim_worker *w = user;
    (void)result;
    if ((status == PEN_OK) != (why == NULL))
        sim_wrong(w->c, "rank %u: a request ended without its reason", w->rank);
    sim_call_end(token, why);
    if (why != NULL && (status == PEN_MISMATCH || status == PEN_INTERNAL))
        membership_client_report(w->membership_client, why);
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
    net_dial(w->c, &lane_of(w, number, lane)->data, w->routes[w->route].address[number], name);
}

static ps_client_rule rule_of(const cluster *c)
{
    if (sim_is_free_rule(c)) return STEP_ASYNC;
    return c->plan.task.mode == MODEL_EAGER ? STEP_EAGER : STEP_TWO_PHASE;
}

/* The server of each shard in the newest record. */
static void find_routes(sim_worker *w)
{
    sim_routes *routes = &w->routes[w->route];
    for (uint32_t n = 0; n < w->n_shards; n++) {
        const wire_replica *row   = sim_view_primary(&w->view, n);
        const wire_member *member = row != NULL ? sim_view_server(&w->view, row->server) : NULL;
        if (member == NULL || row->place >= member->n_addresses) {
            sim_wrong(w->c, "rank %u is not told where shard %u is", w->rank, n);
            return;
        }
        routes->to[n] = member->incarnation;
        snprintf(routes->address[n], sizeof routes->address[n], "%s", member->address[row->place]);
    }
}

static bool may_lose_members(const sim_plan *p)
{
    return p->on_worker_loss != LOSS_FAIL || p->workers_max > p->task.workers;
}

void sim_worker_exchange(sim_worker *w)
{
    static const ps_client_actions actions = {
        ps_client_sends,     ps_client_cuts, ps_client_stores, ps_client_decided,
        ps_client_completed, logs,           counts,           .store_rows = sim_rows_store};
    const sim_plan *p = &w->c->plan;
    ps_client_setup setup;
    find_routes(w);
    setup = (ps_client_setup){.plan     = w->c->cut,
                              .model    = &w->c->model,
                              .shard    = w->shard_of,
                              .rule     = rule_of(w->c),
                              .rank     = (int32_t)w->rank,
                              .n_shards = w->n_shards,
                              .lanes    = p->lanes,
                              .term     = w->view.term,
                              .epoch    = w->view.epoch,
                              .from     = membership_client_core(w->membership_client)->incarnation,
                              .to       = w->routes[w->route].to,
                              .n_workers        = w->c->n_workers,
                              .worker_host      = w->c->worker_names,
                              .server           = w->c->server_names,
                              .warn_ms          = p->warn_ms,
                              .step             = w->first_step,
                              .applied          = w->first_applied,
                              .is_late          = w->is_late,
                              .may_lose_members = may_lose_members(p)};

    setup.retry = retry_policy_make(p->retry_ms, p->task.seed + w->rank);
    pen_error why;
    w->ps_client = ps_client_create(&setup, &actions, w, &why);
    if (w->ps_client == NULL) {
        if (!sim_memory_has_refused()) sim_wrong(w->c, "%s", why.text);
        fail_calls(w, &why);
        return;
    }
    for (uint32_t s = 0; s < w->n_shards; s++)
        for (uint32_t l = 0; l < p->lanes; l++) dial_lane(w, s, l);
}

/* ---- a new epoch ----------------------------------------------------------------------------- */
static void take_back(sim_worker *w, const sim_lane *lane);

static void redial(sim_worker *w, uint32_t number, uint32_t lane)
{
    sim_lane *l = lane_of(w, number, lane);
    l->is_cut   = false;
    net_hang_up(&l->data);
    take_back(w, l);
    ps_client_down(w->ps_client, number, lane);
    dial_lane(w, number, lane);
}

static void install(sim_worker *w)
{
    const sim_routes *before = &w->routes[w->route];
    w->route                 = 1 - w->route;
    find_routes(w);
    const sim_routes *after   = &w->routes[w->route];
    const wire_epoch *r       = &w->view;
    const ps_client_view view = {.term            = r->term,
                                 .epoch           = r->epoch,
                                 .to              = after->to,
                                 .members_changed = r->members_changed,
                                 .step            = r->step,
                                 .n_workers       = w->c->n_workers,
                                 .worker_host     = w->c->worker_names,
                                 .server          = w->c->server_names};
    ps_client_install(w->ps_client, &view, now_of(w));
    for (uint32_t n = 0; n < w->n_shards; n++)
        for (uint32_t l = 0; l < w->c->plan.lanes; l++)
            if (before->to[n] != after->to[n] || strcmp(before->address[n], after->address[n]) != 0)
                redial(w, n, l);
}

/* ---- actions of the membership client ------------------------------------------------------------------ */
static void membership_client_sends(void *user, const wire_control *message)
{
    sim_worker *w = user;
    net_say(w->c, &w->control, 0, message);
}

static bool is_member(const sim_worker *w)
{
    for (uint32_t i = 0; i < w->view.n_workers; i++)
        if (w->view.worker[i].incarnation ==
            membership_client_core(w->membership_client)->incarnation)
            return true;
    return false;
}

static void epoch_came(void *user, const wire_control *m)
{
    sim_worker *w = user;
    sim_view_take(&w->view, &w->view_kept, m);
    if (!w->has_epoch) w->is_late = m->u.epoch.epoch > 1 || !is_member(w);
    w->has_epoch = true;
    if (w->ps_client != NULL) install(w);
    if (!sim_has_servers(w->c)) sim_group_install(w);
}

static void plan_came(void *user, const wire_control *m)
{
    sim_worker *w = user;
    if (w->has_plan) return;
    w->has_plan = true;
    if (!sim_has_servers(w->c)) return;
    if (m->u.plan.n_partitions != w->c->cut->n_partitions) sim_wrong(w->c, "the plans differ");
    w->n_shards = m->u.plan.n_shards;
    w->shard_of = sim_need(calloc(w->c->cut->n_partitions, sizeof *w->shard_of));
    memcpy(w->shard_of, m->u.plan.shard, w->c->cut->n_partitions * sizeof *w->shard_of);
    sim_view_place(&w->view, &w->view_kept, m);
}

static void committed(void *user, int64_t step, int64_t applied)
{
    sim_worker *w    = user;
    w->first_step    = step;
    w->first_applied = applied;
    if (!w->is_late && (step != 0 || applied != 0))
        sim_wrong(w->c, "rank %u goes on from step %lld", w->rank, (long long)step);
    w->is_committed = true;
    check_ways(w);
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
    check_lost_scheduler(w->c, w->control.name, membership_client_core(w->membership_client), why);
    const bool is_alone = why->status == PEN_UNREACHABLE && w->is_late && !w->is_committed;
    if (!is_alone && why->role != PEN_SCHEDULER &&
        membership_client_core(w->membership_client)->incarnation != 0)
        check_failure(w->c, why); /* else it concerns this one alone */
    sim_worker_remember(w, why);
    unanswered_fail(w->unanswered, why);
    if (w->ps_client != NULL)
        ps_client_fail(w->ps_client, why, now_of(w));
    else
        fail_calls(w, why); /* pen_init and pen_commit: no other worker waits for them */
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

static void renew(void *user)
{
    sim_worker *w = user;
    net_redial(w->c, &w->control);
}

static void make_membership_client(sim_worker *w)
{
    static const membership_client_actions actions = {membership_client_sends,
                                                      epoch_came,
                                                      plan_came,
                                                      committed,
                                                      snapshot_done,
                                                      snapshot_please,
                                                      left,
                                                      failed,
                                                      fill_beat,
                                                      describe_silence,
                                                      logs,
                                                      .seal  = sim_group_seal,
                                                      .renew = renew,
                                                      .prove = sim_share_prove};
    char machine[64]; /* containers of one machine, as far as memory is concerned */
    snprintf(machine, sizeof machine, "boot:sim:%.32s", w->control.name);
    const sim_plan *p                   = &w->c->plan;
    const membership_client_setup setup = {.rank        = (int32_t)w->rank,
                                           .world_size  = (int32_t)p->task.workers,
                                           .servers     = (int32_t)p->servers,
                                           .pid         = 100 + (int32_t)w->rank,
                                           .local_rank  = -1,
                                           .node        = p->by_node ? (int32_t)w->rank % 2 : -1,
                                           .machine     = machine,
                                           .nonce       = draw(&w->chance),
                                           .number      = sim_share_number(w),
                                           .holds_state = !sim_has_servers(w->c),
                                           .lease_ms    = p->lease_ms,
                                           .init_timeout_ms = p->init_timeout_ms,
                                           .host            = w->control.name,
                                           .job             = "sim",
                                           .scheduler       = "sim"};
    pen_error why;
    w->membership_client = membership_client_create(&setup, &actions, w, now_of(w), &why);
    if (w->membership_client == NULL) sim_wrong(w->c, "%s", why.text);
}

/* ---- actions of requests --------------------------------------------------------------------- */
static void unanswered_send(void *user, const wire_control *message)
{
    sim_worker *w = user;
    membership_client_send(w->membership_client, message);
}

static void faulted(void *user, uint64_t group, uint64_t call, const pen_error *why)
{
    (void)user, (void)group, (void)call, (void)why;
}

static void shrunk(void *user, uint64_t group, uint64_t new_group, const int32_t *ranks, uint32_t n,
                   const pen_error *why)
{
    (void)user, (void)group, (void)new_group, (void)ranks, (void)n, (void)why;
}

static void ended(void *user, void *token, const unanswered_answer *answer, const pen_error *why)
{
    sim_worker *w = user;
    if (answer != NULL) {
        const pen_bytes *b = answer->replies;
        if (b->size > 0 && (b->size != sizeof w->step || memcmp(b->data, &w->step, b->size) != 0))
            sim_wrong(w->c, "rank %u: the store has something else for step %llu", w->rank,
                      (unsigned long long)w->step);
        w->sum = answer->value;
        free(b->data);
    }
    sim_call_end(token, why);
}

static void make_requests(sim_worker *w)
{
    static const unanswered_actions actions = {unanswered_send, faulted, shrunk, ended};
    w->unanswered                           = sim_need(unanswered_create(&actions, w));
}

/* ---- a turn ---------------------------------------------------------------------------------- */
static bool drain_control(sim_worker *w)
{
    transport_event event;
    wire_control message;
    bool any = false;
    for (; net_recv(w->c, &w->control, &event); any = true) {
        if (event.kind == TRANSPORT_UP)
            membership_up(membership_client_core(w->membership_client), now_of(w));
        if (event.kind == TRANSPORT_DOWN)
            membership_down(membership_client_core(w->membership_client), now_of(w));
        if (event.kind == TRANSPORT_MESSAGE && net_hear(w->c, &w->control, &event, &message)) {
            membership_client_receive(w->membership_client, &message, now_of(w));
            unanswered_receive(w->unanswered, &message, now_of(w));
        }
        buf_release(event.body);
        check_incarnation(w->c, w->control.name, &w->incarnation,
                          membership_client_core(w->membership_client)->incarnation);
    }
    return any;
}

static void note_loaded(sim_worker *w, const wire_data *d)
{
    if (d->kind != WIRE_VALUES || !(d->flags & WIRE_INITIAL) || d->version == NULL) return;
    for (uint32_t i = 0; i < d->n; i++) w->loaded[d->chunk[i]] = d->version[i];
}

static bool drain_lane(sim_worker *w, uint32_t number, uint32_t lane)
{
    transport_event event;
    wire_data d;
    bool any    = false;
    endpoint *e = &lane_of(w, number, lane)->data;
    if (is_apart(w, number)) return false;
    for (; net_recv(w->c, e, &event); any = true) {
        if (event.kind == TRANSPORT_UP) ps_client_up(w->ps_client, number, lane, now_of(w));
        if (event.kind == TRANSPORT_DOWN) ps_client_down(w->ps_client, number, lane);
        if (event.kind == TRANSPORT_MESSAGE && net_hear_data(w->c, e, &event, &d)) {
            note_loaded(w, &d);
            ps_client_receive(w->ps_client, number, &d, event.body, now_of(w));
        }
        buf_release(event.body);
    }
    return any;
}

/* lane NULL: everything due by now. */
static void take_back(sim_worker *w, const sim_lane *lane)
{
    for (sim_loan **at = &w->loans; *at != NULL;) {
        sim_loan *loan  = *at;
        const bool ends = lane != NULL ? loan->lane == lane : loan->due_ms <= now_of(w);
        if (!ends) {
            at = &loan->next;
            continue;
        }
        *at = loan->next;
        ps_client_release(w->ps_client, loan->op);
        free(loan);
    }
}

static void redial_cut(sim_worker *w)
{
    for (uint32_t s = 0; s < w->n_shards; s++)
        for (uint32_t l = 0; l < w->c->plan.lanes; l++)
            if (lane_of(w, s, l)->is_cut) redial(w, s, l);
}

static void time_out_commit(sim_worker *w)
{
    if (w->at != AT_REGISTER || !w->call[0].is_pending || w->call[0].deadline_ms > now_of(w))
        return;
    pen_error why;
    why_set(&why, PEN_TIMED_OUT, "rank %u waited in pen_commit", w->rank);
    sim_call_end(&w->call[0], &why);
}

static bool turn_exchange(sim_worker *w)
{
    bool any = false;
    for (uint32_t s = 0; s < w->n_shards; s++)
        for (uint32_t l = 0; l < w->c->plan.lanes; l++) any |= drain_lane(w, s, l);
    if (ps_client_due(w->ps_client) <= now_of(w)) ps_client_tick(w->ps_client, now_of(w));
    take_back(w, NULL);
    return any;
}

bool sim_worker_turn(sim_worker *w)
{
    if (w->life != LIFE_RUNS || w->stalled_until_ms > w->c->now_ms) return false;
    w->stalled_until_ms = 0;
    bool any            = drain_control(w);
    if (membership_due(membership_client_core(w->membership_client)) <= now_of(w))
        membership_tick(membership_client_core(w->membership_client), now_of(w));
    if (unanswered_due(w->unanswered) <= now_of(w)) unanswered_tick(w->unanswered, now_of(w));
    if (w->ps_client != NULL) any |= turn_exchange(w);
    (void)sim_worker_reaches(w);
    time_out_commit(w);
    while (w->why.status == PEN_OK && w->life == LIFE_RUNS && sim_program_advance(w)) any = true;
    if (w->life != LIFE_RUNS) return true;
    if (w->ps_client != NULL) {
        ps_client_flush(w->ps_client, now_of(w));
        redial_cut(w);
    }
    if (w->why.status == PEN_OK || w->pending > 0) return any;
    sim_worker_end(w, LIFE_FAILED); /* a program whose call failed ends without a goodbye */
    fault_ended(w->c, SIM_WORKER, w->rank);
    return true;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t sim_worker_due(const sim_worker *w)
{
    if (w->life != LIFE_RUNS) return UINT64_MAX;
    if (w->stalled_until_ms > w->c->now_ms) return w->stalled_until_ms;
    uint64_t due = least(membership_due(membership_client_core(w->membership_client)),
                         unanswered_due(w->unanswered));
    if (w->ps_client != NULL) due = least(due, ps_client_due(w->ps_client));
    if (w->at == AT_FIRST_HALF || w->at == AT_SECOND_HALF) due = least(due, w->wake_ms);
    for (const sim_loan *loan = w->loans; loan != NULL; loan = loan->next)
        due = least(due, loan->due_ms);
    if (w->at == AT_REGISTER) due = least(due, w->call[0].deadline_ms);
    if (w->group_wake_ms > 0) due = least(due, w->group_wake_ms);
    for (uint32_t s = 0; s < w->c->n_servers; s++)
        if (w->unreached_ms[s] > 0) due = least(due, w->unreached_ms[s]);
    for (uint32_t r = 0; r < w->c->n_workers && w->c->has_no_way; r++)
        if (w->apart_ms[r] > 0) due = least(due, w->apart_ms[r]);
    return sim_when(w->c, &w->clock, due);
}

/* ---- life ------------------------------------------------------------------------------------ */
static void make_room(sim_worker *w)
{
    const cluster *c = w->c;
    for (uint32_t t = 0; t < c->model.n_tensors; t++) {
        const uint64_t n = plan_tensor_elements(&c->tensor[t]);
        w->param[t]      = sim_need(calloc(n, sizeof *w->param[t]));
        w->grad[t]       = sim_need(calloc(n, sizeof *w->param[t]));
        w->order[t]      = t;
    }
    w->pushed = sim_need(calloc(c->cut->n_chunks, sizeof *w->pushed));
    w->loaded = sim_need(calloc(c->cut->n_chunks, sizeof *w->loaded));
}

void sim_worker_begin(cluster *c, uint32_t rank)
{
    sim_worker *w = &c->worker[rank];
    char name[SIM_NAME_BYTES], scheduler[SIM_PLACE_BYTES];
    const uint32_t birth = w->life == LIFE_ABSENT ? 0 : w->birth + 1;
    sim_worker_free(w);
    *w        = (sim_worker){.c = c, .rank = rank, .birth = birth, .life = LIFE_RUNS};
    w->clock  = sim_clock_draw(c);
    w->chance = draw(&c->chance);
    make_room(w);
    sim_group_begin(w);
    sim_call_begin(w, "pen_init", -1, false)->deadline_ms =
        UINT64_MAX - 1; /* bounded by init_timeout_ms instead */
    snprintf(name, sizeof name, "worker%u", rank);
    snprintf(scheduler, sizeof scheduler, "sim://%u/scheduler", net_control_id(c));
    net_dial(c, &w->control, scheduler, name);
    sim_memory_hold(true);
    make_membership_client(w);
    make_requests(w);
    sim_memory_hold(false);
}

void sim_worker_crash(sim_worker *w)
{
    sim_worker_end(w, LIFE_CRASHED);
}

/* A new process of this rank begins empty. */
void sim_worker_free(sim_worker *w)
{
    if (w->life == LIFE_RUNS) sim_worker_end(w, LIFE_CRASHED);
    for (uint32_t i = 0; i < SIM_SHARDS_MAX * SIM_LANES_MAX && w->ps_client != NULL; i++)
        take_back(w, &w->lane[i]);
    ps_client_destroy(w->ps_client);
    membership_client_destroy(w->membership_client);
    unanswered_destroy(w->unanswered);
    for (int i = 0; i < SIM_CALLS_MAX; i++) free(w->call[i].rows);
    sim_view_clear(&w->view, &w->view_kept);
    free(w->shard_of);
    free(w->state);
    free(w->pushed);
    free(w->loaded);
    for (int t = 0; t < SIM_TENSORS; t++) {
        free(w->param[t]);
        free(w->grad[t]);
    }
}
