/* cluster_operator.c - the operator of `penstock scale` and `penstock drain`, and the launcher that starts missing
 * members. */
#include "tests/sim/cluster_state.h"

#include <stdio.h>

enum { AGAIN_MS = 1000 };

static void say_hello(cluster *c)
{
    wire_control m     = {.kind = WIRE_HELLO};
    m.u.hello.role     = WIRE_OBSERVER;
    m.u.hello.rank     = -1;
    m.u.hello.nonce    = c->operator.nonce;
    m.u.hello.pid      = 1;
    m.u.hello.host     = "operator";
    m.u.hello.job      = "";
    m.u.hello.store    = "";
    c->operator.say_ms = c->now_ms + AGAIN_MS;
    net_say(c, &c->operator.control, 0, &m);
}

static void ask(cluster *c)
{
    const sim_event *e = &c->operator.wish;
    wire_control m     = {.kind = WIRE_DRAIN, .from = c->operator.incarnation };
    m.u.drain.server   = (int32_t)e->rank;
    if (e->what == SIM_SCALE) {
        m.kind            = WIRE_SCALE;
        m.u.scale.workers = e->role == SIM_WORKER ? (int32_t)e->rank : -1;
        m.u.scale.servers = e->role == SIM_SERVER ? (int32_t)e->rank : -1;
    }
    c->operator.say_ms = c->now_ms + 2 * AGAIN_MS;
    net_say(c, &c->operator.control, 0, &m);
}

void sim_operator_wants(cluster *c, const sim_event *event)
{
    char address[SIM_PLACE_BYTES];
    c->operator.wish     = * event;
    c->operator.is_asked = true;
    if (c->operator.control.t != NULL) return;
    c->operator.nonce = draw(&c->chance);
    snprintf(address, sizeof address, "sim://%u/scheduler", net_control_id(c));
    net_dial(c, &c->operator.control, address, "operator");
}

/* Missing members are started; the scheduler tells surplus ones to leave. */
static void resized(cluster *c, const wire_control *m)
{
    const sim_event *e = &c->operator.wish;
    sim_note(c, "the operator hears: %s", m->u.resized.text);
    if (m->u.resized.status == PEN_AGAIN || m->u.resized.status == PEN_WRONG_STATE) return;
    c->operator.is_asked = false;
    if (e->what != SIM_SCALE || m->u.resized.status != PEN_OK) return;
    for (uint32_t rank = 0; rank < e->rank; rank++) fault_start(c, e->role, rank);
}

static void take(cluster *c, const transport_event *event)
{
    wire_control m;
    if (event->kind == TRANSPORT_UP) say_hello(c);
    if (event->kind == TRANSPORT_DOWN) c->operator.incarnation = 0;
    if (event->kind != TRANSPORT_MESSAGE || !net_hear(c, &c->operator.control, event, &m)) return;
    if (m.kind == WIRE_WELCOME) {
        c->operator.incarnation = m.u.welcome.incarnation;
        ask(c);
    }
    if (m.kind == WIRE_RESIZED && c->operator.is_asked) resized(c, &m);
}

bool sim_operator_turn(cluster *c)
{
    bool any = false;
    transport_event event;
    while (c->operator.control.t != NULL && net_recv(c, &c->operator.control, &event)) {
        take(c, &event);
        buf_release(event.body);
        any = true;
    }
    if (c->operator.is_asked && c->now_ms >= c->operator.say_ms) {
        if (c->operator.incarnation != 0)
            ask(c);
        else
            say_hello(c);
    }
    if (!c->operator.is_asked) net_hang_up(&c->operator.control);
    return any;
}

uint64_t sim_operator_due(const cluster *c)
{
    return c->operator.is_asked ? c->operator.say_ms : UINT64_MAX;
}
