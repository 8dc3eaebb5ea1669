/* mesh_receive.c - incoming messages, and the judgement of suspected peers. */
#include "worker/collective/net/mesh_internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

enum {
    EVENTS      = 64,
    LOG_REFUSED = 41,   /* of log_allowed(); mesh_refuse() has 40 */
    REDIAL_MS   = 3000, /* the peer may have closed the connection on purpose, and be dialling */
    GOODBYE_MS  = 1000  /* this worker's own connection ended: only a goodbye may still come */
};

/* A peer with the key of one rank may send as that rank only. */
static bool is_its_own(const mesh *m, uint32_t peer, const wire_peer *p)
{
    transport_identity is;
    return !transport_who(m->listener, peer, &is) || auth_is(&is, AUTH_WORKER, p->rank);
}

static const char *fault_of(const mesh *m, const wire_peer *p, uint64_t body_bytes)
{
    if (p->job != m->job) return "it belongs to another job";
    if (p->rank >= m->n_peers || p->rank == m->self || p->lane >= m->o.lanes)
        return "unknown worker or lane";
    if (p->to != m->peer[m->self].incarnation) return "it is for another process";
    if (p->from != m->peer[p->rank].incarnation) return "its sender is gone";
    if (p->payload_bytes != body_bytes) return "its payload has another size";
    return NULL;
}

/* It has all that it needs: data on the way to it does not matter. */
static void leave(mesh *m, int rank)
{
    m->n_left += !m->peer[rank].has_left;
    m->peer[rank].has_left = true;
    mesh_suspect(m, rank);
    mesh_decide(m, rank, false);
    for (uint64_t lane = 0; lane < m->o.lanes; lane++)
        mesh_close_link(&m->peer[rank].link[lane], 0);
}

/* Messages of a replaced connection may be read after the first message on its successor: they are accepted, but the
 * end of that connection is not a loss. */
static void speaks_on(mesh *m, mesh_peer *p, const wire_peer *head, uint32_t number)
{
    if (head->dial < p->dial[head->lane]) return;
    p->caller[head->lane] = (uint64_t)number + 1;
    if (head->dial == p->dial[head->lane]) return;
    p->dial[head->lane] = head->dial;
    /* The peer replaced its connection by another, and sends on that. */
    if (p->suspect_ms == 0) return;
    p->missed &= ~(UINT64_C(1) << head->lane);
    if (p->missed == 0 && !p->is_cut_off && !p->has_left) mesh_trust(m, p);
}

/* Waits until all that had arrived was read, and until a goodbye, or a connection that replaces the closed one, had
 * time to arrive.  Both connections of a killed peer end; the longer time is for a peer that lives. */
static void judge(mesh *m, int rank, uint64_t now)
{
    mesh_peer *p           = &m->peer[rank];
    const bool is_silent   = !mesh_has_callers(m, p);
    const uint64_t doubted = now - p->suspect_ms;
    if (p->has_left ? !is_silent : doubted < (p->is_cut_off ? GOODBYE_MS : REDIAL_MS)) return;
    const mesh_loss loss = p->has_left                   ? MESH_LEFT
                           : is_silent || p->missed != 0 ? MESH_BROKE
                                                         : MESH_BROKE_OUT;
    mesh_trust(m, p);
    mesh_decide(m, rank, !p->has_left);
    mesh_notify_teams(m, rank, loss,
                      loss == MESH_LEFT ? "it has left the job" : "the connection to it broke");
}

static void take(mesh *m, const transport_event *event)
{
    wire_peer head;
    pen_error why;
    wire_arena_reset(m->arena);
    const pen_status status =
        wire_peer_decode(event->head, event->head_size, m->arena, &head, &why);
    m->is_starved |= status == PEN_NO_MEMORY;
    if (status == PEN_NO_MEMORY) return;
    if (status != PEN_OK) {
        stat_add(m->o.stats, STAT_REFUSED, 1);
        transport_blame(m->listener, event->peer);
        if (log_allowed(LOG_REFUSED)) log_warning("refused a message from a worker: %s", why.text);
        return;
    }
    if (!is_its_own(m, event->peer, &head)) {
        mesh_refuse(m, "its key belongs to another rank", &head);
        transport_blame(m->listener, event->peer);
        return;
    }
    const char *fault = fault_of(m, &head, event->body != NULL ? event->body->size : 0);
    if (fault != NULL) {
        mesh_refuse(m, fault, &head);
        return;
    }
    mesh_peer *p = &m->peer[head.rank];
    if (p->is_lost) return;
    speaks_on(m, p, &head, event->peer);
    if (head.kind == WIRE_WITHDRAWN && head.group == 0)
        leave(m, head.rank);
    else
        mesh_deliver(m, &head, event->body);
}

/* The place of a part that a call in progress expects; it is checked again once the part is here. */
void *mesh_place(void *user, uint32_t peer, const void *head, size_t head_size, uint64_t bytes,
                 const void **owner)
{
    mesh *m = user;
    wire_peer p;
    pen_error why;
    wire_arena_reset(m->arena);
    if (wire_peer_decode(head, head_size, m->arena, &p, &why) != PEN_OK || p.kind != WIRE_PART ||
        fault_of(m, &p, bytes) != NULL || !is_its_own(m, peer, &p) || m->peer[p.rank].is_lost)
        return NULL;
    wire_team *team = mesh_find_team(m, p.group);
    if (team == NULL || team->position[p.rank] < 0) return NULL;
    *owner = &team->run;
    return wire_place(team, team->position[p.rank], &p);
}

/* Only the end of its present connection counts, not of one that it has replaced. */
static void caller_gone(mesh *m, uint32_t number)
{
    for (int i = 0; i < m->n_peers; i++)
        for (uint64_t lane = 0; lane < m->o.lanes; lane++) {
            if (m->peer[i].caller[lane] != (uint64_t)number + 1) continue;
            m->peer[i].caller[lane] = 0;
            if (mesh_minds(m, i)) m->peer[i].missed |= UINT64_C(1) << lane;
            mesh_suspect(m, i);
        }
}

static bool drain_listener(mesh *m)
{
    transport_event event = {0};
    int n                 = 0;
    for (; n < MESH_BATCH && transport_recv(m->listener, &event) == PEN_OK; n++) {
        switch (event.kind) {
        case TRANSPORT_MESSAGE:
            m->placed = event.is_placed ? event.body : NULL;
            take(m, &event);
            m->placed = NULL;
            break;
        case TRANSPORT_DOWN: caller_gone(m, event.peer); break;
        case TRANSPORT_REFUSED:
            stat_add(m->o.stats, STAT_REFUSED, 1);
            m->is_starved |= event.lacks_memory;
            break;
        case TRANSPORT_UP: break;
        }
        if (event.kind == TRANSPORT_MESSAGE) buf_release(event.body);
    }
    if (n == MESH_BATCH) mesh_wake(m); /* the descriptor may become readable only once */
    if (event.has_moved) atomic_fetch_add(&m->moves, 1);
    return n > 0;
}

static bool drain_links(mesh *m)
{
    struct epoll_event events[EVENTS];
    const int n = epoll_wait(m->epoll_fd, events, EVENTS, 0);
    bool any    = false;
    eventfd_t count;
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == &m->wake_fd)
            eventfd_read(m->wake_fd, &count);
        else if (events[i].data.ptr != m->listener)
            any |= mesh_drain_link(events[i].data.ptr);
    }
    return any;
}

/* A message was lost, and its sender does not send it again. */
static void end_without_memory(mesh *m)
{
    m->is_starved = false;
    m->tears_next = true;
    for (wire_team *t = m->teams; t != NULL; t = t->next) {
        wire_starve(t);
        for (int i = 0; i < t->size; i++)
            if (i != t->rank) p2p_lost(t, i, MESH_BROKE, "no memory for a message");
    }
}

bool mesh_advance(mesh *m)
{
    if (m->peer == NULL) return false;
    mesh_collect(m);
    bool any = drain_listener(m);
    if (!any || m->n_dialling > 0) any |= drain_links(m);
    if (m->is_starved) end_without_memory(m);
    if (!any && m->n_suspects > 0) {
        const uint64_t now = clock_ms(&clock_real);
        for (int i = 0; i < m->n_peers && m->n_suspects > 0; i++)
            if (m->peer[i].suspect_ms != 0) judge(m, i, now);
    }
    if (!any && m->n_dialling > 0) mesh_look(m);
    if (any) atomic_fetch_add(&m->news, 1);
    return any;
}

uint32_t mesh_news(const mesh *m)
{
    return atomic_load(&m->news);
}

uint32_t mesh_moves(const mesh *m)
{
    return atomic_load(&m->moves);
}

int mesh_poll_fd(mesh *m)
{
    return m->epoll_fd;
}

void mesh_wake(mesh *m)
{
    eventfd_write(m->wake_fd, 1);
}

void mesh_lost(mesh *m, int rank)
{
    if (m->peer == NULL || rank < 0 || rank >= m->n_peers || m->peer[rank].is_lost) return;
    m->peer[rank].is_lost = true;
    mesh_notify_teams(m, rank, MESH_BROKE, "it is gone");
    mesh_decide(m, rank, true);
    for (uint64_t lane = 0; lane < m->o.lanes; lane++) {
        mesh_link *l = &m->peer[rank].link[lane];
        mesh_cancel_lent(m, l);
        mesh_close_link(l, 0);
    }
}
