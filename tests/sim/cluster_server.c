/* cluster_server.c - a server process: joining, beating, and messages of the scheduler. */
#include "tests/sim/cluster_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RESEND_MS = 200,
    LEVEL_MS  = 200 /* maximum time for a copy to catch up with a sealed primary */
};

static uint64_t now(const sim_server *s)
{
    return sim_now(s->c, &s->clock);
}

/* ---- sending --------------------------------------------------------------------------------- */
static void say(sim_server *s, const wire_control *message)
{
    membership_send(&s->member, message);
}

void sim_server_report(sim_server *s, const pen_error *error)
{
    sim_note(s->c, "%s reports: %s", s->control.name, error->text);
    if (s->member.incarnation != 0 && s->member.is_up)
        membership_report(&s->member, error);
    else
        s->why = *error;
}

void sim_server_caught_up(sim_server *s, uint32_t number, int32_t server)
{
    wire_control c       = {.kind = WIRE_CAUGHT_UP};
    c.u.caught_up.shard  = number;
    c.u.caught_up.server = server;
    say(s, &c);
}

void sim_server_suspect(sim_server *s, uint32_t number, int32_t server, uint64_t waited_ms)
{
    wire_control c        = {.kind = WIRE_SUSPECT};
    c.u.suspect.shard     = number;
    c.u.suspect.server    = server;
    c.u.suspect.waited_ms = waited_ms;
    say(s, &c);
}

static void end(sim_server *s, life how)
{
    s->life = how;
    net_hang_up(&s->control);
    for (uint32_t i = 0; i < s->n_places; i++) {
        net_hang_up(&s->place[i].listener);
        net_hang_up(&s->place[i].replica);
    }
    sim_copies_free(s);
}

static void fail(sim_server *s, const pen_error *why)
{
    s->why = *why;
    sim_note(s->c, "%s fails: %s", s->control.name, why->text);
    end(s, LIFE_FAILED);
    fault_ended(s->c, SIM_SERVER, s->rank);
}

/* ---- snapshots ------------------------------------------------------------------------------- */
static void say_part(sim_server *s, int64_t step, sim_shards shards)
{
    uint32_t number[SIM_SHARDS_MAX], n = 0;
    for (uint32_t i = 0; i < s->n_shards; i++)
        if (shards >> i & 1) number[n++] = i;
    check_part(s->c, step, shards);
    wire_control c             = {.kind = WIRE_SNAPSHOT_PART};
    c.u.snapshot_part.step     = step;
    c.u.snapshot_part.status   = PEN_OK;
    c.u.snapshot_part.text     = "";
    c.u.snapshot_part.n_shards = n;
    c.u.snapshot_part.shard    = number;
    say(s, &c);
}

static sim_shards primaries(const sim_server *s, bool idle_too)
{
    sim_shards shards = 0;
    for (uint32_t i = 0; i < s->n_shards; i++)
        if (s->copy[i].shard != NULL && s->copy[i].role == WIRE_PRIMARY &&
            (idle_too || !shard_is_idle(s->copy[i].shard)))
            shards |= (sim_shards)1 << i;
    return shards;
}

/* A shard without trained chunks has nothing to capture, unless its server has no other. */
void sim_server_count_part(sim_server *s, uint32_t number, int64_t step)
{
    uint32_t i = 0;
    while (i < s->n_cuts && s->cuts[i].step != step) i++;
    if (i == SIM_CUTS_MAX) return;
    if (i == s->n_cuts) s->cuts[s->n_cuts++].step = step;
    s->cuts[i].shards |= (sim_shards)1 << number;
    const sim_shards busy = primaries(s, false), all = primaries(s, true);
    const sim_shards due = busy != 0 ? busy : all;
    if ((s->cuts[i].shards & due) == due) say_part(s, step, s->cuts[i].shards | all);
}

/* ---- the plan -------------------------------------------------------------------------------- */
static void say_ready(sim_server *s)
{
    wire_control c     = {.kind = WIRE_READY};
    c.u.ready.restored = -1;
    say(s, &c);
}

static bool misses_copy(const sim_server *s, uint32_t other)
{
    return s->has_plan && other != s->rank &&
           fault_apart(s->c, SIM_SERVER, s->rank, SIM_SERVER, other) &&
           fault_needs(&s->view, (int32_t)s->rank, (int32_t)other);
}

static bool reaches_copies(const sim_server *s)
{
    for (uint32_t i = 0; i < s->c->n_servers; i++)
        if (misses_copy(s, i)) return false;
    return true;
}

/* A link that was up is not watched: its silent end is suspected. */
static void look_for_copies(sim_server *s)
{
    for (uint32_t i = 0; i < s->c->n_servers; i++) {
        if (!fault_says(&s->apart_ms[i], s->owes_ready && misses_copy(s, i), false, now(s)))
            continue;
        const wire_member *member = sim_view_server(&s->view, (int32_t)i);
        wire_control m            = {.kind        = WIRE_UNREACHED,
                                     .u.unreached = {.role    = PEN_SERVER,
                                                     .rank    = (int32_t)i,
                                                     .address = member != NULL ? member->address[0] : "",
                                                     .words   = "no answer, timed out"}};
        say(s, &m);
    }
    if (!s->owes_ready || !reaches_copies(s)) return;
    s->owes_ready = false;
    say_ready(s);
}

static void take_plan(sim_server *s, const wire_control *m)
{
    pen_error why;
    if (!s->has_plan) {
        wire_control copy;
        if (!wire_control_copy(m, &s->kept, &copy)) abort();
        s->model = copy.u.plan.model;
        mutation_plan(s, &s->model);
        if (plan_create(&s->model, &s->cut, &why) != PEN_OK) {
            sim_wrong(s->c, "%s", why.text);
            return;
        }
        s->n_shards  = m->u.plan.n_shards;
        s->ranks_max = m->u.plan.ranks_max;
        s->shard_of  = sim_need(calloc(s->cut->n_partitions, sizeof *s->shard_of));
        memcpy(s->shard_of, m->u.plan.shard, s->cut->n_partitions * sizeof *s->shard_of);
        sim_view_place(&s->view, &s->view_kept, m);
        s->has_plan = true;
        sim_copies_install(s);
    }
    s->owes_ready = !reaches_copies(s);
    if (!s->owes_ready) say_ready(s);
}

/* ---- being sealed ---------------------------------------------------------------------------- */
static bool is_sealing(const sim_server *s)
{
    return s->member.seal.n_due > 0;
}

static void try_to_seal(sim_server *s)
{
    const membership_seal *seal = &s->member.seal;
    if (!is_sealing(s) || !sim_copies_seal(s, now(s) >= s->level_ms)) return;
    if (membership_sealed(&s->member, seal->term, seal->epoch, s->report, s->n_reports) != PEN_OK)
        sim_server_report(s, &(pen_error){.status = PEN_NO_MEMORY,
                                          .text   = "no memory for the report of a sealed shard"});
}

/* ---- messages of the scheduler --------------------------------------------------------------- */
static void take_enquiry(sim_server *s, int32_t rank)
{
    wire_control c  = {.kind = WIRE_MISSING};
    uint64_t least  = UINT64_MAX, step;
    uint32_t lowest = UINT32_MAX, chunk;
    const char *name;
    c.u.missing.rank   = rank;
    c.u.missing.step   = -1;
    c.u.missing.tensor = "";
    for (uint32_t i = 0; i < s->n_shards; i++) {
        const sim_copy *k = &s->copy[i];
        c.u.missing.lacks_values |= k->shard != NULL && shard_lacks_values(k->shard);
        if (k->shard == NULL || !shard_missing(k->shard, rank, &step, &chunk, &name)) continue;
        if (step > least || (step == least && chunk > lowest)) continue;
        least              = step;
        lowest             = chunk;
        c.u.missing.known  = true;
        c.u.missing.step   = (int64_t)step;
        c.u.missing.tensor = name;
    }
    say(s, &c);
}

/* It joined late, and a worker cannot reach it: the job has others. */
static bool is_turned_away(const sim_server *s, const pen_error *why)
{
    return s->birth > 0 && s->c->plan.replicas > 0 && why->status == PEN_UNREACHABLE;
}

/* ---- actions of its membership --------------------------------------------------------------- */
static void member_sends(void *user, const wire_control *message)
{
    sim_server *s = user;
    net_say(s->c, &s->control, 0, message);
}

static void member_logs(void *user, int level, const char *line)
{
    sim_server *s = user;
    sim_note(s->c, "%s says (%d): %s", s->control.name, level, line);
}

static void fill_hello(void *user, wire_control *c)
{
    sim_server *s = user;
    for (uint32_t i = 0; i < s->n_places; i++)
        s->address[i] = transport_address(s->place[i].listener.t);
    c->u.hello.role        = PEN_SERVER;
    c->u.hello.rank        = (int32_t)s->rank;
    c->u.hello.pid         = 200 + (int32_t)s->rank;
    c->u.hello.nonce       = s->nonce;
    c->u.hello.host        = s->control.name;
    c->u.hello.machine     = s->control.name;
    c->u.hello.job         = "";
    c->u.hello.store       = "";
    c->u.hello.n_addresses = s->n_places;
    c->u.hello.address     = s->address;
}

static void fill_beat(void *user, wire_control *c)
{
    (void)user;
    c->u.beat.step = -1;
    c->u.beat.call = "serve";
}

static void renew(void *user)
{
    sim_server *s = user;
    net_redial(s->c, &s->control);
}

static void not_answered(void *user, pen_error *why)
{
    const sim_server *s = user;
    why_set(why, PEN_UNREACHABLE, "server %u found no scheduler", s->rank);
}

static void on_epoch(void *user, const wire_control *m)
{
    sim_server *s = user;
    sim_view_take(&s->view, &s->view_kept, m);
    if (s->has_plan) sim_copies_install(s);
}

static void on_seal(void *user, uint64_t term, uint64_t epoch)
{
    sim_server *s = user;
    (void)term, (void)epoch;
    s->level_ms = now(s) + LEVEL_MS;
    sim_copies_seal_primaries(s);
    try_to_seal(s);
}

static void left(void *user)
{
    end(user, LIFE_LEFT);
}

static void failed(void *user, const pen_error *why)
{
    sim_server *s = user;
    check_lost_scheduler(s->c, s->control.name, &s->member, why);
    if (why->role != PEN_SCHEDULER && s->member.incarnation != 0 && !is_turned_away(s, why))
        check_failure(s->c, why); /* else it concerns this one alone */
    fail(s, why);
}

static void begin_membership(sim_server *s)
{
    static const membership_actions actions = {.send       = member_sends,
                                               .log        = member_logs,
                                               .fill_hello = fill_hello,
                                               .fill_beat  = fill_beat,
                                               .renew      = renew,
                                               .unanswered = not_answered,
                                               .epoch      = on_epoch,
                                               .seal       = on_seal,
                                               .left       = left,
                                               .failed     = failed};
    const membership_setup setup            = {.lease_ms  = s->c->plan.lease_ms,
                                               .answer_ms = s->c->plan.init_timeout_ms,
                                               .down_ms   = MEMBERSHIP_DOWN_MS,
                                               .n_parts   = 1,
                                               .scheduler = "sim",
                                               .self      = "this server"};
    membership_init(&s->member, &setup, &actions, s, now(s));
}

static void take(sim_server *s, const wire_control *m)
{
    if (membership_receive(&s->member, m, now(s))) return;
    switch (m->kind) {
    case WIRE_PLAN: take_plan(s, m); break;
    case WIRE_ENQUIRE: take_enquiry(s, m->u.enquire.rank); break;
    case WIRE_STOP: membership_leave(&s->member, now(s)); break;
    case WIRE_SNAPSHOT_DONE:
        if (s->rank == 0 && m->u.snapshot_done.status == PEN_OK) s->c->result.snapshots++;
        break;
    default: break;
    }
}

static void take_event(sim_server *s, const transport_event *event)
{
    wire_control message;
    switch (event->kind) {
    case TRANSPORT_UP: membership_up(&s->member, now(s)); break;
    case TRANSPORT_DOWN: membership_down(&s->member, now(s)); break;
    case TRANSPORT_MESSAGE:
        if (net_hear(s->c, &s->control, event, &message)) take(s, &message);
        break;
    case TRANSPORT_REFUSED: break;
    }
}

/* ---- life ------------------------------------------------------------------------------------ */
void sim_server_begin(cluster *c, uint32_t rank)
{
    sim_server *s = &c->server[rank];
    char name[SIM_NAME_BYTES], scheduler[SIM_PLACE_BYTES];
    const uint32_t birth = s->life == LIFE_ABSENT ? 0 : s->birth + 1;
    sim_server_free(s);
    *s          = (sim_server){.c = c, .rank = rank, .birth = birth, .life = LIFE_RUNS};
    s->clock    = sim_clock_draw(c);
    s->nonce    = draw(&c->chance);
    s->n_places = c->plan.shards;
    begin_membership(s);
    for (uint32_t i = 0; i < s->n_places; i++) {
        s->place[i] = (sim_place){.server = s, .index = i};
        net_place_name(c, rank, birth, (int32_t)i, name);
        net_listen(c, &s->place[i].listener, NET_DATA, name);
        net_listen(c, &s->place[i].replica, NET_REPLICA, name);
    }
    net_place_name(c, rank, birth, -1, name);
    snprintf(scheduler, sizeof scheduler, "sim://%u/scheduler", net_control_id(c));
    net_dial(c, &s->control, scheduler, name);
}

static void do_what_is_due(sim_server *s)
{
    const uint64_t at = now(s);
    if (s->member.is_known) look_for_copies(s);
    try_to_seal(s);
    if (s->has_plan && at >= s->nudge_ms) {
        s->nudge_ms = at + RESEND_MS;
        sim_copies_nudge(s);
    }
}

bool sim_server_turn(sim_server *s)
{
    bool any = false;
    transport_event event;
    if (s->life != LIFE_RUNS || s->stalled_until_ms > s->c->now_ms) return false;
    s->stalled_until_ms = 0;
    while (s->life == LIFE_RUNS && net_recv(s->c, &s->control, &event)) {
        take_event(s, &event);
        buf_release(event.body);
        check_incarnation(s->c, s->control.name, &s->incarnation, s->member.incarnation);
        any = true;
    }
    if (s->life == LIFE_RUNS && s->why.status == PEN_OK) any |= sim_copies_turn(s);
    if (s->life == LIFE_RUNS && membership_due(&s->member) <= now(s))
        membership_tick(&s->member, now(s));
    if (s->life == LIFE_RUNS) do_what_is_due(s);
    if (s->life == LIFE_RUNS && s->why.status != PEN_OK) fail(s, &s->why);
    return any;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t sim_server_due(const sim_server *s)
{
    if (s->life != LIFE_RUNS) return UINT64_MAX;
    if (s->stalled_until_ms > s->c->now_ms) return s->stalled_until_ms;
    uint64_t due = membership_due(&s->member);
    for (uint32_t i = 0; s->member.is_known && i < s->c->n_servers; i++)
        if (s->apart_ms[i] > 0) due = least(due, s->apart_ms[i]);
    if (is_sealing(s)) due = least(due, s->level_ms);
    if (s->has_plan && s->c->plan.replicas > 0) due = least(due, s->nudge_ms);
    return sim_when(s->c, &s->clock, due);
}

void sim_server_crash(sim_server *s)
{
    end(s, LIFE_CRASHED);
}

void sim_server_count(sim_server *s)
{
    if (s->c == NULL) return; /* it never came */
    s->c->result.repeats += stat_get(&s->stats, STAT_REPEATS);
    s->c->result.held += stat_get(&s->stats, STAT_HELD);
}

/* A new process of this rank begins empty. */
void sim_server_free(sim_server *s)
{
    if (s->life == LIFE_RUNS) end(s, LIFE_CRASHED);
    plan_destroy(s->cut);
    free(s->shard_of);
    wire_arena_destroy(s->kept);
    s->kept = NULL;
    membership_fini(&s->member);
    sim_view_clear(&s->view, &s->view_kept);
    s->cut      = NULL;
    s->shard_of = NULL;
}
