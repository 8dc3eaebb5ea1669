/* cluster_server.c - a server process here: joining, beating, and what the scheduler says. */
#include "tests/sim/cluster_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    AGAIN_MS        = 1000,
    DOWN_MS         = 1000,
    LEAVE_MS        = 2000,
    BEATS_PER_LEASE = 10,
    NUDGE_MS        = 200,
    LEVEL_MS        = 200 /* a copy may take so long to catch up with a sealed primary */
};

static uint64_t now(const sim_server *s)
{
    return sim_now(s->c, &s->clock);
}

/* ---- saying ---------------------------------------------------------------------------------- */
static void say(sim_server *s, wire_control *message)
{
    message->from = s->incarnation;
    net_say(s->c, &s->control, 0, message);
}

void sim_server_report(sim_server *s, const pen_error *error)
{
    wire_control c = {.kind = WIRE_FAILURE, .u.verdict = *error};
    sim_note(s->c, "%s reports: %s", s->control.name, error->text);
    say(s, &c);
}

static void say_hello(sim_server *s)
{
    const char *address[SIM_PLACES_MAX];
    for (uint32_t i = 0; i < s->n_places; i++)
        address[i] = transport_address(s->place[i].listener.t);
    wire_control c        = {.kind = WIRE_HELLO};
    c.u.hello.role        = PEN_SERVER;
    c.u.hello.rank        = (int32_t)s->rank;
    c.u.hello.pid         = 200 + (int32_t)s->rank;
    c.u.hello.nonce       = s->nonce;
    c.u.hello.host        = s->control.name;
    c.u.hello.machine     = s->control.name;
    c.u.hello.job         = "";
    c.u.hello.store       = "";
    c.u.hello.n_addresses = s->n_places;
    c.u.hello.address     = address;
    say(s, &c);
    s->say_ms = now(s) + AGAIN_MS;
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
static void say_part(sim_server *s, int64_t step, uint64_t shards)
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

static uint64_t primaries(const sim_server *s, bool idle_too)
{
    uint64_t shards = 0;
    for (uint32_t i = 0; i < s->n_shards; i++)
        if (s->copy[i].shard != NULL && s->copy[i].role == WIRE_PRIMARY &&
            (idle_too || !shard_is_idle(s->copy[i].shard)))
            shards |= (uint64_t)1 << i;
    return shards;
}

/* A shard without trained chunks has nothing to cut, unless its server has no other. */
void sim_server_count_part(sim_server *s, uint32_t number, int64_t step)
{
    uint32_t i = 0;
    while (i < s->n_cuts && s->cuts[i].step != step) i++;
    if (i == SIM_CUTS_MAX) return;
    if (i == s->n_cuts) s->cuts[s->n_cuts++].step = step;
    s->cuts[i].shards |= (uint64_t)1 << number;
    const uint64_t busy = primaries(s, false), all = primaries(s, true);
    const uint64_t due = busy != 0 ? busy : all;
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
           fault_needs(&s->record, (int32_t)s->rank, (int32_t)other);
}

static bool reaches_copies(const sim_server *s)
{
    for (uint32_t i = 0; i < s->c->n_servers; i++)
        if (misses_copy(s, i)) return false;
    return true;
}

/* A link that was there is not watched: who is silent there is suspected. */
static void look_for_copies(sim_server *s)
{
    for (uint32_t i = 0; i < s->c->n_servers; i++) {
        if (!fault_says(&s->apart_ms[i], s->owes_ready && misses_copy(s, i), false, now(s)))
            continue;
        const wire_member *member = sim_record_server(&s->record, (int32_t)i);
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

static void take_epoch(sim_server *s, const wire_control *m)
{
    if (!sim_record_is_newer(m->u.epoch.term, m->u.epoch.epoch, &s->record)) return;
    sim_record_take(s->c, &s->record, m);
    s->seal_epoch = 0;
    if (s->has_plan) sim_copies_install(s);
}

static void take_plan(sim_server *s, const wire_control *m)
{
    pen_error why;
    if (!s->has_plan) {
        if (!keep_model(&s->kept, &m->u.plan.model, &s->model)) abort();
        plant_plan(s, &s->model);
        if (plan_create(&s->model, &s->cut, &why) != PEN_OK) {
            sim_wrong(s->c, "%s", why.text);
            return;
        }
        s->n_shards  = m->u.plan.n_shards;
        s->ranks_max = m->u.plan.ranks_max;
        s->shard_of  = sim_need(calloc(s->cut->n_partitions, sizeof *s->shard_of));
        memcpy(s->shard_of, m->u.plan.shard, s->cut->n_partitions * sizeof *s->shard_of);
        sim_record_place(&s->record, m);
        s->has_plan = true;
        sim_copies_install(s);
    }
    s->owes_ready = !reaches_copies(s);
    if (!s->owes_ready) say_ready(s);
}

/* ---- being sealed ---------------------------------------------------------------------------- */
static void say_sealed(sim_server *s)
{
    wire_control c       = {.kind = WIRE_SEALED};
    c.u.sealed.term      = s->seal_term;
    c.u.sealed.epoch     = s->seal_epoch;
    c.u.sealed.n_reports = s->n_reports;
    c.u.sealed.report    = s->report;
    say(s, &c);
    s->seal_ms = now(s) + AGAIN_MS;
}

static void try_to_seal(sim_server *s)
{
    if (s->seal_epoch == 0 || s->is_sealed) return;
    if (!sim_copies_seal(s, now(s) >= s->seal_ms)) return;
    s->is_sealed = true;
    say_sealed(s);
}

static void take_seal(sim_server *s, const wire_control *m)
{
    const uint64_t term = m->u.seal.term, epoch = m->u.seal.epoch;
    if (!sim_record_is_newer(term, epoch, &s->record)) return;
    if (s->seal_epoch != 0 &&
        (term < s->seal_term || (term == s->seal_term && epoch < s->seal_epoch)))
        return;
    s->seal_term  = term;
    s->seal_epoch = epoch;
    s->seal_ms    = now(s) + LEVEL_MS;
    s->is_sealed  = false;
    sim_copies_seal_primaries(s);
    try_to_seal(s);
}

/* ---- what the scheduler says ----------------------------------------------------------------- */
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

static void leave(sim_server *s)
{
    s->is_leaving = true;
    s->leave_ms   = now(s) + LEAVE_MS;
    say(s, &(wire_control){.kind = WIRE_BYE});
}

static void welcome(sim_server *s, const wire_control *m)
{
    s->incarnation = m->u.welcome.incarnation;
    s->grace_ms    = m->u.welcome.grace_ms;
    s->is_welcome  = true;
    s->acked_ms    = now(s);
    if (s->seal_epoch != 0 && s->is_sealed) say_sealed(s);
}

/* It came later, and a worker cannot reach it: the job has others. */
static bool is_turned_away(const sim_server *s, const pen_error *why)
{
    return s->birth > 0 && s->c->plan.replicas > 0 && why->status == PEN_UNREACHABLE;
}

static void take(sim_server *s, const wire_control *m)
{
    switch (m->kind) {
    case WIRE_WELCOME: welcome(s, m); break;
    case WIRE_EPOCH: take_epoch(s, m); break;
    case WIRE_PLAN: take_plan(s, m); break;
    case WIRE_SEAL: take_seal(s, m); break;
    case WIRE_BEAT_ACK: s->acked_ms = now(s); break;
    case WIRE_ENQUIRE: take_enquiry(s, m->u.enquire.rank); break;
    case WIRE_STOP: leave(s); break;
    case WIRE_BYED: end(s, LIFE_LEFT); break;
    case WIRE_SNAPSHOT_DONE:
        if (s->rank == 0 && m->u.snapshot_done.status == PEN_OK) s->c->result.snapshots++;
        break;
    case WIRE_VERDICT:
        if (s->incarnation != 0 && !is_turned_away(s, &m->u.verdict))
            check_failure(s->c, &m->u.verdict); /* else it is for this one alone */
        fail(s, &m->u.verdict);
        break;
    default: break;
    }
}

static void take_event(sim_server *s, const transport_event *event)
{
    wire_control message;
    switch (event->kind) {
    case TRANSPORT_UP:
        s->is_up      = true;
        s->is_welcome = false;
        say_hello(s);
        break;
    case TRANSPORT_DOWN:
        s->is_up   = false;
        s->down_ms = now(s);
        break;
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
    *s         = (sim_server){.c = c, .rank = rank, .birth = birth, .life = LIFE_RUNS};
    s->clock   = sim_clock_draw(c);
    s->nonce   = draw(&c->chance);
    s->beat_ms = s->started_ms = now(s);
    s->n_places                = c->plan.shards;
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

static void beat(sim_server *s)
{
    wire_control c = {.kind = WIRE_BEAT};
    c.u.beat.seq   = ++s->beats;
    c.u.beat.step  = -1;
    c.u.beat.call  = "serve";
    say(s, &c);
    s->beat_ms = now(s) + s->c->plan.lease_ms / BEATS_PER_LEASE;
}

/* When silence is taken for the scheduler's death. */
static uint64_t lost_ms(const sim_server *s)
{
    if (s->incarnation == 0) return s->started_ms + s->c->plan.init_timeout_ms;
    const uint64_t lease = s->acked_ms + s->c->plan.lease_ms, down = s->down_ms + DOWN_MS;
    if (s->grace_ms > 0) return s->acked_ms + s->grace_ms;
    return !s->is_up && down < lease ? down : lease;
}

static void watch_scheduler(sim_server *s)
{
    pen_error why;
    if (s->is_leaving || now(s) < lost_ms(s)) return;
    why_set(&why, PEN_UNREACHABLE, "server %u lost the scheduler", s->rank);
    fail(s, &why);
}

static void do_what_is_due(sim_server *s)
{
    const uint64_t at = now(s);
    if (s->is_up && !s->is_welcome && at >= s->say_ms) say_hello(s);
    if (s->is_welcome && at >= s->beat_ms) beat(s);
    if (s->is_welcome) look_for_copies(s);
    try_to_seal(s);
    if (s->is_welcome && s->seal_epoch != 0 && s->is_sealed && at >= s->seal_ms) say_sealed(s);
    if (s->has_plan && at >= s->nudge_ms) {
        s->nudge_ms = at + NUDGE_MS;
        sim_copies_nudge(s);
    }
}

bool sim_server_turn(sim_server *s)
{
    bool any = false;
    transport_event event;
    if (s->life != LIFE_RUNS || s->stalled_until_ms > s->c->now_ms) return false;
    if (s->stalled_until_ms > 0) s->acked_ms = now(s); /* its own pause is nobody's fault */
    s->stalled_until_ms = 0;
    while (s->life == LIFE_RUNS && net_recv(s->c, &s->control, &event)) {
        take_event(s, &event);
        buf_release(event.body);
        any = true;
    }
    if (s->life == LIFE_RUNS) any |= sim_copies_turn(s);
    if (s->life == LIFE_RUNS) watch_scheduler(s);
    if (s->life == LIFE_RUNS && s->is_leaving && now(s) >= s->leave_ms) end(s, LIFE_LEFT);
    if (s->life == LIFE_RUNS) do_what_is_due(s);
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
    uint64_t due = s->is_leaving ? s->leave_ms : lost_ms(s);
    if (s->is_up && !s->is_welcome) due = least(due, s->say_ms);
    if (s->is_welcome) due = least(due, s->beat_ms);
    for (uint32_t i = 0; s->is_welcome && i < SIM_SERVERS_MAX; i++)
        if (s->apart_ms[i] > 0) due = least(due, s->apart_ms[i]);
    if (s->seal_epoch != 0 && (s->is_welcome || !s->is_sealed)) due = least(due, s->seal_ms);
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

/* What another process of this rank begins with: nothing. */
void sim_server_free(sim_server *s)
{
    if (s->life == LIFE_RUNS) end(s, LIFE_CRASHED);
    plan_destroy(s->cut);
    free(s->shard_of);
    keep_clear(&s->kept);
    sim_record_clear(&s->record);
    s->cut      = NULL;
    s->shard_of = NULL;
}
