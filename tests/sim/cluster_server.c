/* cluster_server.c - what surrounds the shards of one server here: joining, the plan, messages. */
#include "tests/sim/cluster_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AGAIN_MS = 1000, DOWN_MS = 1000, LEAVE_MS = 2000, BEATS_PER_LEASE = 10 };

static void say(sim_server *s, wire_control *message)
{
    message->from = s->incarnation;
    net_say(s->c, &s->control, 0, message);
}

static void say_hello(sim_server *s)
{
    const char *address[SIM_SHARDS_MAX];
    for (uint32_t i = 0; i < s->n_shards; i++)
        address[i] = transport_address(s->shard[i].listener.t);
    wire_control c        = {.kind = WIRE_HELLO};
    c.u.hello.role        = PEN_SERVER;
    c.u.hello.rank        = (int32_t)s->rank;
    c.u.hello.pid         = 200 + (int32_t)s->rank;
    c.u.hello.nonce       = s->nonce;
    c.u.hello.host        = s->control.name;
    c.u.hello.job         = "";
    c.u.hello.store       = "";
    c.u.hello.n_addresses = s->n_shards;
    c.u.hello.address     = address;
    net_say(s->c, &s->control, 0, &c);
    s->say_ms = s->c->now_ms + AGAIN_MS;
}

static void end(sim_server *s, life how)
{
    s->life = how;
    net_hang_up(&s->control);
    for (uint32_t i = 0; i < s->n_shards; i++) net_hang_up(&s->shard[i].listener);
}

static void fail(sim_server *s, const pen_error *why)
{
    s->why = *why;
    sim_note(s->c, "%s fails: %s", s->control.name, why->text);
    end(s, LIFE_FAILED);
}

/* ---- what a shard says ----------------------------------------------------------------------- */
static void shard_sends(void *user, uint32_t peer, const wire_data *d, buf *payload)
{
    sim_shard *self = user;
    cluster *c      = self->server->c;
    pen_error why;
    check_served(self, d, payload);
    if (wire_data_encode(d, &c->out, &why) != PEN_OK) {
        sim_wrong(c, "%s cannot write %s: %s", self->listener.name, wire_kind_name((int)d->kind),
                  why.text);
        return;
    }
    buf *body = buf_acquire(payload);
    if (transport_send(self->listener.t, peer, c->out.data, c->out.size, body) != PEN_OK)
        buf_release(body);
}

static void shard_reports(void *user, const pen_error *error)
{
    sim_shard *self = user;
    wire_control c  = {.kind = WIRE_FAILURE, .u.verdict = *error};
    sim_note(self->server->c, "%s reports: %s", self->listener.name, error->text);
    say(self->server, &c);
}

/* ---- snapshots ------------------------------------------------------------------------------- */
static void say_part(sim_server *s, int64_t step)
{
    wire_control c           = {.kind = WIRE_SNAPSHOT_PART};
    c.u.snapshot_part.step   = step;
    c.u.snapshot_part.status = PEN_OK;
    c.u.snapshot_part.text   = "";
    say(s, &c);
}

/* A shard without trained chunks has nothing to cut, unless its server has no other. */
static uint32_t parts_of(const sim_server *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_shards; i++) n += !shard_is_idle(s->shard[i].shard);
    return n > 0 ? n : s->n_shards;
}

static void count_part(sim_server *s, int64_t step)
{
    uint32_t i = 0;
    while (i < s->n_cuts && s->cuts[i].step != step) i++;
    if (i == SIM_CUTS_MAX) return;
    if (i == s->n_cuts) s->cuts[s->n_cuts++].step = step;
    if (++s->cuts[i].parts == parts_of(s)) say_part(s, step);
}

static void shard_cuts(void *user, shard_cut *cut)
{
    sim_shard *self = user;
    sim_server *s   = self->server;
    check_shard(self); /* the update that made the cut whole is not known yet */
    plant_cut(self, cut);
    check_cut(self, cut);
    if (!shard_is_idle(self->shard) || parts_of(s) == s->n_shards) count_part(s, cut->step);
    shard_cut_destroy(cut);
}

/* ---- what the scheduler says ----------------------------------------------------------------- */
static void take_epoch(sim_server *s, const wire_control *m)
{
    if (s->has_epoch) return;
    s->has_epoch = true;
    s->term      = m->u.epoch.term;
    s->epoch     = m->u.epoch.epoch;
    s->n_workers = m->u.epoch.n_workers;
    s->worker    = sim_need(calloc(s->n_workers, sizeof *s->worker));
    for (uint32_t i = 0; i < s->n_workers; i++)
        s->worker[i] = (wire_member){.rank        = m->u.epoch.worker[i].rank,
                                     .incarnation = m->u.epoch.worker[i].incarnation,
                                     .host        = ""};
}

static void say_ready(sim_server *s)
{
    wire_control c     = {.kind = WIRE_READY};
    c.u.ready.restored = -1;
    say(s, &c);
}

static void configure(sim_server *s, sim_shard *self)
{
    static const shard_outside outside = {
        .send = shard_sends, .snapshot = shard_cuts, .report = shard_reports};
    const shard_options options = {.park_bytes_max = s->c->plan.park_bytes_max, .stats = &s->stats};
    shard_outside mine          = outside;
    mine.user                   = self;
    const shard_setup setup     = {.model       = &s->model,
                                   .plan        = s->cut,
                                   .shard_of    = s->shard_of,
                                   .self        = self->number,
                                   .world_size  = s->c->plan.task.workers,
                                   .incarnation = s->incarnation};
    pen_error why;
    self->shard   = shard_create(&options, &mine, &why);
    self->version = sim_need(calloc(s->cut->n_chunks, sizeof *self->version));
    if (self->shard == NULL || shard_configure(self->shard, &setup, &why) != PEN_OK)
        sim_wrong(s->c, "%s", why.text);
    else
        shard_epoch(self->shard, s->term, s->epoch, s->worker, s->n_workers);
}

static void take_plan(sim_server *s, const wire_control *m)
{
    pen_error why;
    if (s->cut == NULL) {
        if (!keep_model(&s->kept, &m->u.plan.model, &s->model)) abort();
        plant_plan(s, &s->model);
        if (plan_create(&s->model, &s->cut, &why) != PEN_OK) {
            sim_wrong(s->c, "%s", why.text);
            return;
        }
        s->shard_of = sim_need(calloc(s->cut->n_partitions, sizeof *s->shard_of));
        memcpy(s->shard_of, m->u.plan.shard, s->cut->n_partitions * sizeof *s->shard_of);
        for (uint32_t i = 0; i < s->n_shards; i++) configure(s, &s->shard[i]);
    }
    say_ready(s);
}

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
        if (s->shard[i].shard == NULL ||
            !shard_missing(s->shard[i].shard, rank, &step, &chunk, &name))
            continue;
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
    s->leave_ms   = s->c->now_ms + LEAVE_MS;
    say(s, &(wire_control){.kind = WIRE_BYE});
}

static void take(sim_server *s, const wire_control *m)
{
    switch (m->kind) {
    case WIRE_WELCOME:
        s->incarnation = m->u.welcome.incarnation;
        s->is_welcome  = true;
        s->acked_ms    = s->c->now_ms;
        break;
    case WIRE_EPOCH: take_epoch(s, m); break;
    case WIRE_PLAN: take_plan(s, m); break;
    case WIRE_BEAT_ACK: s->acked_ms = s->c->now_ms; break;
    case WIRE_ENQUIRE: take_enquiry(s, m->u.enquire.rank); break;
    case WIRE_STOP: leave(s); break;
    case WIRE_BYED: end(s, LIFE_LEFT); break;
    case WIRE_SNAPSHOT_DONE:
        if (s->rank == 0 && m->u.snapshot_done.status == PEN_OK) s->c->result.snapshots++;
        break;
    case WIRE_VERDICT:
        check_failure(s->c, &m->u.verdict);
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
        s->down_ms = s->c->now_ms;
        break;
    case TRANSPORT_MESSAGE:
        if (net_hear(s->c, &s->control, event, &message)) take(s, &message);
        break;
    case TRANSPORT_REFUSED: break;
    }
}

/* ---- data ------------------------------------------------------------------------------------ */
static void take_data(sim_shard *self, transport_event *event)
{
    wire_data said, heard;
    cluster *c = self->server->c;
    if (event->kind == TRANSPORT_DOWN && self->shard != NULL)
        shard_peer_down(self->shard, event->peer);
    if (event->kind != TRANSPORT_MESSAGE || self->shard == NULL) return;
    if (!net_hear_data(c, &self->listener, event, &said)) return;
    heard         = said;
    self->message = &said;
    if (plant_receive(self, event->peer, &heard, &event->body))
        shard_receive(self->shard, event->peer, &heard, event->body);
    check_shard(self);
    self->message = NULL;
}

static bool drain_shard(sim_shard *self)
{
    transport_event event;
    bool any = false;
    while (net_recv(self->server->c, &self->listener, &event)) {
        take_data(self, &event);
        buf_release(event.body);
        any = true;
    }
    if (any && self->shard != NULL) shard_flush(self->shard);
    return any;
}

/* ---- life ------------------------------------------------------------------------------------ */
void sim_server_begin(cluster *c, uint32_t rank)
{
    sim_server *s = &c->server[rank];
    char name[SIM_NAME_BYTES], scheduler[SIM_EPOCH_BYTES];
    s->c        = c;
    s->rank     = rank;
    s->nonce    = draw(&c->chance);
    s->n_shards = c->plan.shards;
    s->beat_ms = s->started_ms = c->now_ms;
    for (uint32_t i = 0; i < s->n_shards; i++) {
        s->shard[i].server = s;
        s->shard[i].number = rank * c->plan.shards + i;
        snprintf(name, sizeof name, "server%u.%u", rank, i);
        net_listen(c, &s->shard[i].listener, NET_DATA, name);
    }
    snprintf(name, sizeof name, "server%u", rank);
    snprintf(scheduler, sizeof scheduler, "%s", transport_address(c->scheduler.listener.t));
    net_dial(c, &s->control, scheduler, name);
}

static void beat(sim_server *s)
{
    wire_control c = {.kind = WIRE_BEAT};
    c.u.beat.seq   = ++s->beats;
    c.u.beat.step  = -1;
    c.u.beat.call  = "serve";
    say(s, &c);
    s->beat_ms = s->c->now_ms + s->c->plan.lease_ms / BEATS_PER_LEASE;
}

/* When silence is taken for the scheduler's death. */
static uint64_t lost_ms(const sim_server *s)
{
    if (s->incarnation == 0) return s->started_ms + s->c->plan.init_timeout_ms;
    const uint64_t lease = s->acked_ms + s->c->plan.lease_ms, down = s->down_ms + DOWN_MS;
    return !s->is_up && down < lease ? down : lease;
}

static void watch_scheduler(sim_server *s)
{
    pen_error why;
    if (s->is_leaving || s->c->now_ms < lost_ms(s)) return;
    why_set(&why, PEN_UNREACHABLE, "server %u lost the scheduler", s->rank);
    fail(s, &why);
}

bool sim_server_turn(sim_server *s)
{
    bool any = false;
    transport_event event;
    while (s->life == LIFE_RUNS && net_recv(s->c, &s->control, &event)) {
        take_event(s, &event);
        buf_release(event.body);
        any = true;
    }
    for (uint32_t i = 0; i < s->n_shards && s->life == LIFE_RUNS; i++)
        any |= drain_shard(&s->shard[i]);
    const uint64_t now = s->c->now_ms;
    if (s->life == LIFE_RUNS) watch_scheduler(s);
    if (s->life == LIFE_RUNS && s->is_leaving && now >= s->leave_ms) end(s, LIFE_LEFT);
    if (s->life != LIFE_RUNS) return any;
    if (s->is_up && !s->is_welcome && now >= s->say_ms) say_hello(s);
    if (s->is_welcome && now >= s->beat_ms) beat(s);
    return any;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t sim_server_due(const sim_server *s)
{
    if (s->life != LIFE_RUNS) return UINT64_MAX;
    uint64_t due = UINT64_MAX;
    if (s->is_up && !s->is_welcome) due = s->say_ms;
    if (s->is_welcome) due = least(due, s->beat_ms);
    return least(due, s->is_leaving ? s->leave_ms : lost_ms(s));
}

void sim_server_crash(sim_server *s)
{
    end(s, LIFE_CRASHED);
}

void sim_server_count(sim_server *s)
{
    s->c->result.repeats += stat_get(&s->stats, STAT_REPEATS);
    s->c->result.held += stat_get(&s->stats, STAT_HELD);
}

void sim_server_free(sim_server *s)
{
    if (s->life == LIFE_RUNS) end(s, LIFE_CRASHED);
    for (uint32_t i = 0; i < s->n_shards; i++) {
        shard_destroy(s->shard[i].shard);
        free(s->shard[i].version);
    }
    plan_destroy(s->cut);
    free(s->shard_of);
    free(s->worker);
    keep_clear(&s->kept);
}
