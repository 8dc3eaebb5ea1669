/* cluster_scheduler.c - what surrounds the scheduler's core here. */
#include "tests/sim/cluster_state.h"

#include "common/log.h"

#include <stdio.h>
#include <stdlib.h>

enum { LINGER_MS = 1000 }; /* the last verdict leaves after the end */

static void send_all(void *user, const uint32_t *peers, uint32_t n, const wire_control *message)
{
    sim_scheduler *s = user;
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
    s->has_ended     = true;
    s->status        = status;
    s->close_ms      = s->c->now_ms + LINGER_MS;
    if (why != NULL) check_failure(s->c, why);
}

void sim_scheduler_begin(cluster *c)
{
    sim_scheduler *s            = &c->scheduler;
    scheduler_settings settings = {.world_size      = c->plan.task.workers,
                                   .servers         = c->plan.servers,
                                   .lease_ms        = c->plan.lease_ms,
                                   .down_grace_ms   = 1000,
                                   .init_timeout_ms = c->plan.init_timeout_ms,
                                   .warn_ms         = c->plan.warn_ms,
                                   .on_worker_loss  = SCHEDULER_LOSS_FAIL};
    snprintf(settings.host, sizeof settings.host, "sim");
    const scheduler_actions actions = {send_all, say, ended, s};
    pen_error why;
    s->c = c;
    net_listen(c, &s->listener, NET_CONTROL, "scheduler");
    if (scheduler_core_create(&settings, 1700000000000u, "sim", &actions, c->now_ms, &s->core,
                              &why) != PEN_OK)
        sim_wrong(c, "%s", why.text);
}

static void take(sim_scheduler *s, const transport_event *event)
{
    wire_control message;
    if (event->kind == TRANSPORT_DOWN) scheduler_core_peer_down(s->core, event->peer, s->c->now_ms);
    if (event->kind == TRANSPORT_MESSAGE && net_hear(s->c, &s->listener, event, &message))
        scheduler_core_receive(s->core, event->peer, &message, s->c->now_ms);
}

bool sim_scheduler_turn(sim_scheduler *s)
{
    bool any = false;
    transport_event event;
    while (s->life == LIFE_RUNS && net_recv(s->c, &s->listener, &event)) {
        take(s, &event);
        buf_release(event.body);
        any = true;
    }
    if (s->life != LIFE_RUNS) return any;
    if (s->has_ended && s->close_ms <= s->c->now_ms) {
        net_hang_up(&s->listener);
        s->life = s->status == PEN_OK ? LIFE_LEFT : LIFE_FAILED;
        return true;
    }
    if (scheduler_core_next_ms(s->core) <= s->c->now_ms) scheduler_core_tick(s->core, s->c->now_ms);
    return any;
}

uint64_t sim_scheduler_due(sim_scheduler *s)
{
    if (s->life != LIFE_RUNS) return UINT64_MAX;
    return s->has_ended ? s->close_ms : scheduler_core_next_ms(s->core);
}

void sim_scheduler_crash(sim_scheduler *s)
{
    s->life = LIFE_CRASHED;
    net_hang_up(&s->listener);
}

void sim_scheduler_free(sim_scheduler *s)
{
    if (s->listener.t != NULL) net_hang_up(&s->listener);
    scheduler_core_destroy(s->core);
}
