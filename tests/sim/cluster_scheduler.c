/* cluster_scheduler.c - the shell of the scheduler's core: its peers and its disk. */
#include "tests/sim/cluster_state.h"

#include "common/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GRACE_MS = 60000,        /* others go on this long while it is away          */
    TERM     = 1700000000000 /* of its first life                     */
};

static uint64_t now(const sim_scheduler *s)
{
    return sim_now(s->c, &s->clock);
}

/* ---- the core's actions ---------------------------------------------------------------------- */
static void send_all(void *user, const uint32_t *peers, uint32_t n, const wire_control *message)
{
    sim_scheduler *s = user;
    if (s->is_dying) return; /* it has died at a write: nothing after it happens */
    if (message->kind == WIRE_EPOCH) check_record(s->c, message);
    if (message->kind == WIRE_PLAN) check_plan(s->c, message);
    if (message->kind == WIRE_PLAN) s->c->n_shards = message->u.plan.n_shards;
    if (message->kind == WIRE_SNAPSHOT_DONE && message->u.snapshot_done.status == PEN_OK)
        check_complete(s->c, message->u.snapshot_done.step, s->c->n_shards);
    if (message->kind == WIRE_COMMITTED && !s->c->is_training)
        s->c->result.training_ms = s->c->now_ms - SIM_START_MS;
    s->c->is_training |= message->kind == WIRE_COMMITTED;
    for (uint32_t i = 0; i < n; i++) net_say(s->c, &s->listener, peers[i], message);
}

static void say(void *user, int level, const char *line)
{
    sim_scheduler *s = user;
    sim_note(s->c, "scheduler says (%d): %s", level, line);
}

static void ended(void *user, pen_status status, const pen_error *why)
{
    sim_scheduler *s = user;
    if (s->is_dying) return;
    s->has_ended = true;
    s->status    = status;
    s->close_ms  = now(s) + SIM_LINGER_MS;
    if (why != NULL) check_failure(s->c, why);
}

/* ---- the disk -------------------------------------------------------------------------------- */
static bool refuses_to_write(const cluster *c)
{
    for (uint32_t i = 0; i < c->plan.n_events; i++) {
        const sim_event *e = &c->plan.event[i];
        if (e->what == SIM_KEEP_FAIL && c->now_ms >= SIM_START_MS + e->from_ms &&
            c->now_ms < SIM_START_MS + e->until_ms)
            return true;
    }
    return false;
}

/* A write is atomic; at the one that the plan names the process dies. */
static pen_status keeps(void *user, const void *bytes, size_t size)
{
    sim_scheduler *s = user;
    cluster *c       = s->c;
    if (s->is_dying) return PEN_INTERNAL;
    if (refuses_to_write(c)) return PEN_UNREACHABLE;
    const bool dies = ++s->disk.writes == c->plan.crash_at_keep;
    c->result.keeps++;
    s->is_dying = dies;
    if (dies) sim_note(c, "the scheduler dies at write %u", c->plan.crash_at_keep);
    if (dies && c->plan.keep_is_lost) return PEN_INTERNAL;
    free(s->disk.bytes);
    s->disk.bytes = sim_need(malloc(size + 1));
    s->disk.size  = size;
    if (size > 0) memcpy(s->disk.bytes, bytes, size); /* nothing: the job is over */
    return dies ? PEN_INTERNAL : PEN_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */
static scheduler_settings settings_of(const sim_plan *p)
{
    scheduler_settings settings = {.world_size      = p->task.workers,
                                   .servers         = p->servers,
                                   .lease_ms        = p->lease_ms,
                                   .down_grace_ms   = 1000,
                                   .init_timeout_ms = p->init_timeout_ms,
                                   .replicas        = p->replicas,
                                   .wait_ms         = p->wait_ms,
                                   .workers_min     = p->workers_min,
                                   .workers_max     = p->workers_max,
                                   .servers_max     = p->servers_max,
                                   .grace_ms        = GRACE_MS,
                                   .on_worker_loss  = p->on_worker_loss};
    snprintf(settings.host, sizeof settings.host, "sim");
    if (p->has_state) snprintf(settings.state, sizeof settings.state, "disk");
    return settings;
}

void sim_scheduler_begin(cluster *c)
{
    sim_scheduler *s                = &c->scheduler;
    const scheduler_settings set    = settings_of(&c->plan);
    const bool is_first             = s->life == LIFE_ABSENT;
    const scheduler_actions actions = {.send  = send_all,
                                       .log   = say,
                                       .ended = ended,
                                       .keep  = c->plan.has_state ? keeps : NULL,
                                       .user  = s};
    pen_error why;
    scheduler_core_destroy(s->core);
    s->core      = NULL;
    s->c         = c;
    s->life      = LIFE_RUNS;
    s->has_ended = false;
    s->birth += !is_first;
    s->clock            = sim_clock_draw(c);
    const uint64_t kept = scheduler_core_kept_term(s->disk.bytes, s->disk.size);
    s->disk.term = is_first ? (uint64_t)TERM : 1 + (kept > s->disk.term ? kept : s->disk.term);
    net_listen(c, &s->listener, NET_CONTROL, "scheduler");
    sim_memory_hold(true);
    if (scheduler_core_create(&set, s->disk.term, "sim", &actions, now(s), &s->core, &why) !=
            PEN_OK ||
        (s->disk.bytes != NULL &&
         scheduler_core_load(s->core, s->disk.bytes, s->disk.size, now(s), &why) != PEN_OK))
        sim_wrong(c, "%s", why.text);
    sim_memory_hold(false);
}

/* ---- a turn ---------------------------------------------------------------------------------- */
static void take(sim_scheduler *s, const transport_event *event)
{
    wire_control message;
    if (event->kind == TRANSPORT_DOWN) scheduler_core_peer_down(s->core, event->peer, now(s));
    if (event->kind == TRANSPORT_MESSAGE && net_hear(s->c, &s->listener, event, &message))
        scheduler_core_receive(s->core, event->peer, &message, now(s));
}

bool sim_scheduler_turn(sim_scheduler *s)
{
    bool any = false;
    transport_event event;
    if (s->life != LIFE_RUNS || s->is_dying || s->stalled_until_ms > s->c->now_ms) return false;
    s->stalled_until_ms = 0;
    while (!s->is_dying && net_recv(s->c, &s->listener, &event)) {
        take(s, &event);
        buf_release(event.body);
        any = true;
    }
    if (s->is_dying) return any;
    if (s->has_ended && s->close_ms <= now(s)) {
        net_hang_up(&s->listener);
        s->life = s->status == PEN_OK ? LIFE_LEFT : LIFE_FAILED;
        return true;
    }
    if (scheduler_core_next_ms(s->core) <= now(s)) scheduler_core_tick(s->core, now(s));
    return any;
}

uint64_t sim_scheduler_due(sim_scheduler *s)
{
    if (s->life != LIFE_RUNS) return UINT64_MAX;
    if (s->is_dying) return s->c->now_ms;
    if (s->stalled_until_ms > s->c->now_ms) return s->stalled_until_ms;
    return sim_when(s->c, &s->clock, s->has_ended ? s->close_ms : scheduler_core_next_ms(s->core));
}

void sim_scheduler_crash(sim_scheduler *s)
{
    s->life = LIFE_CRASHED;
    net_hang_up(&s->listener);
}

void sim_scheduler_forget(sim_scheduler *s)
{
    free(s->disk.bytes);
    s->disk.bytes  = NULL;
    s->disk.size   = 0;
    s->disk.writes = 0;
}

void sim_scheduler_free(sim_scheduler *s)
{
    net_hang_up(&s->listener);
    scheduler_core_destroy(s->core);
    free(s->disk.bytes);
}
