/* mesh_link.c - the connections that this worker dialled, and the messages that wait for them. */
#include "worker/collective/net/mesh_internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/why.h"
#include "common/containers/list.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum { HEAD_BYTES_MAX = 4 << 10 };

struct mesh_post {
    mesh_post *next, *prev;
    buf *body;
    size_t size;
    uint8_t head[];
};

pen_status mesh_watch(mesh *m, int fd, void *tag, pen_error *why)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = tag};
    if (epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0) return PEN_OK;
    return why_set(why, PEN_NO_MEMORY, "cannot watch a connection: %m");
}

transport_options mesh_transport_options(const mesh *m)
{
    return (transport_options){.head_bytes_max = HEAD_BYTES_MAX,
                               .heartbeat_ms   = (uint32_t)m->o.heartbeat_ms};
}

static void drop_posts(mesh_link *l)
{
    LIST_EACH(p, l->posts) {
        buf_release(p->body);
        free(p);
        l->m->n_posts--;
    }
    l->posts = NULL;
}

void mesh_close_link(mesh_link *l, uint32_t linger_ms)
{
    if (l->t == NULL) return;
    if (!l->is_up) l->m->n_dialling--;
    epoll_ctl(l->m->epoll_fd, EPOLL_CTL_DEL, transport_poll_fd(l->t), NULL);
    transport_close(l->t, linger_ms);
    reach_end(&l->reach);
    l->t     = NULL;
    l->is_up = false;
    drop_posts(l);
}

static pen_status dial(mesh *m, int rank, uint32_t lane, pen_error *why)
{
    mesh_link *l              = &m->peer[rank].link[lane];
    transport_options options = mesh_transport_options(m);
    auth_dial(m->o.auth, AUTH_WORKER, &options);
    pen_status status = transport_dial(m->peer[rank].address, &options, &l->t, why);
    if (status != PEN_OK) return status;
    if (l->dials == 0) {
        *l         = (mesh_link){.next = m->dialled, .m = m, .t = l->t, .rank = rank, .lane = lane};
        m->dialled = l;
    }
    status = mesh_watch(m, transport_poll_fd(l->t), l, why);
    reach_begin(&l->reach, m->o.name_ms, clock_ms(&clock_real));
    l->dials++;
    m->n_dialling++;
    if (status != PEN_OK) mesh_close_link(l, 0);
    return status;
}

pen_status mesh_dial(mesh *m, int rank, pen_error *why)
{
    const mesh_peer *p = &m->peer[rank];
    if (rank == m->self || p->is_lost || p->has_left || p->link[0].t != NULL) return PEN_OK;
    return dial(m, rank, 0, why);
}

bool mesh_is_linked(const mesh *m)
{
    return m->n_dialling == 0;
}

static pen_status post(mesh_link *l, const wire_out *head, buf *body, pen_error *why)
{
    mesh_post *p = malloc(sizeof *p + head->size);
    if (p == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a message of a collective");
    *p = (mesh_post){.body = body, .size = head->size};
    memcpy(p->head, head->data, head->size);
    LIST_APPEND(l->posts, p);
    l->m->n_posts++;
    return PEN_OK;
}

static uint32_t choose_lane(const mesh *m, mesh_peer *p, const wire_peer *head, size_t bytes)
{
    const bool may_choose = head->kind == WIRE_PART || head->kind == WIRE_SECTION;
    if (!may_choose || bytes < MESH_LANE_FROM || m->n_lanes == 1) return head->lane;
    return p->next_lane++ % (uint32_t)m->n_lanes;
}

pen_status mesh_send_frame(mesh *m, int rank, wire_peer *head, const void *data, size_t bytes,
                           runner_debt *debt, pen_error *why)
{
    mesh_peer *p = &m->peer[rank];
    if (p->is_lost) return why_set(why, PEN_PEER_LOST, "rank %d is gone", rank);
    if (p->has_left) return PEN_OK; /* it needs nothing more */
    head->lane          = choose_lane(m, p, head, bytes);
    mesh_link *l        = &p->link[head->lane];
    head->job           = m->job;
    head->from          = m->peer[m->self].incarnation;
    head->to            = p->incarnation;
    head->rank          = m->self;
    head->payload_bytes = bytes;
    pen_status status   = l->t == NULL ? dial(m, rank, head->lane, why) : PEN_OK;
    head->dial          = l->dials;
    if (status == PEN_OK) status = wire_peer_encode(head, &m->out, why);
    if (status != PEN_OK) return status;
    buf *body = bytes > 0 ? mesh_lend(m, l, data, bytes, debt) : NULL;
    if (bytes > 0 && body == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for a message of a collective");
    status = PEN_AGAIN;
    if (l->is_up && l->posts == NULL)
        status = transport_send(l->t, 0, m->out.data, m->out.size, body);
    if (status == PEN_AGAIN)
        status = post(l, &m->out, body, why);
    else if (status != PEN_OK)
        why_set(why, status, "cannot send to rank %d: %s", rank, pen_status_info(status)->text);
    if (status != PEN_OK) buf_release(body);
    return status;
}

/* Closes the connection; the first message on its successor tells the peer that this was on purpose. */
static void reopen(mesh_link *l)
{
    mesh_peer *p   = &l->m->peer[l->rank];
    wire_peer head = {.kind = WIRE_CREDIT, .lane = l->lane, .credit = p->p2p_used};
    pen_error why;
    mesh_close_link(l, 0);
    if (p->is_lost || p->has_left) return;
    if (mesh_send_frame(l->m, l->rank, &head, NULL, 0, NULL, &why) == PEN_OK)
        p->p2p_told = p->p2p_used;
}

static void reopen_links_of(mesh *m, const void *owner)
{
    mesh_cancel_lent_of(m, owner);
    for (mesh_link *l = m->dialled; l != NULL; l = l->next) {
        if (l->is_stuck) reopen(l);
        l->is_stuck = false;
    }
}

void mesh_settle(mesh *m, const void *owner, uint32_t grace_ms)
{
    const uint64_t begun = clock_ms(&clock_real);
    bool is_cancelled    = false;
    mesh_decide_of(m, owner);
    for (mesh_collect(m); mesh_is_owing(m, owner); mesh_collect(m)) {
        const uint64_t waited = clock_ms(&clock_real) - begun;
        if (!is_cancelled && waited >= grace_ms) reopen_links_of(m, owner);
        is_cancelled |= waited >= grace_ms;
        if (waited > grace_ms + MESH_CANCEL_MS) {
            log_error("a closed connection to a worker still holds memory; this is a bug of the "
                      "transport");
            return;
        }
        poll(NULL, 0, 1);
    }
}

bool mesh_has_posts(const mesh *m, int rank)
{
    for (uint64_t lane = 0; m->n_posts > 0 && lane < m->o.lanes; lane++)
        if (m->peer[rank].link[lane].posts != NULL) return true;
    return false;
}

static void link_up(mesh_link *l)
{
    if (l->is_up) return;
    l->is_up = true;
    reach_up(&l->reach);
    l->m->n_dialling--;
    /* Oldest first; messages that cannot be sent now wait for the next UP. */
    while (l->posts != NULL) {
        mesh_post *p = l->posts;
        if (transport_send(l->t, 0, p->head, p->size, p->body) != PEN_OK) return;
        LIST_REMOVE(l->posts, p);
        l->m->n_posts--;
        free(p);
    }
}

static void link_down(mesh_link *l)
{
    if (!l->is_up) return;
    l->is_up = false;
    reach_down(&l->reach, l->m->o.lease_ms / 10, clock_ms(&clock_real));
    l->m->n_dialling++;
    mesh_doubt(l->m, l);
    l->m->peer[l->rank].is_cut_off = true;
    mesh_suspect(l->m, l->rank);
}

bool mesh_drain_link(mesh_link *l)
{
    transport_event event = {0};
    bool any              = false;
    while (l->t != NULL && transport_recv(l->t, &event) == PEN_OK) {
        any = true;
        switch (event.kind) {
        case TRANSPORT_UP: link_up(l); break;
        case TRANSPORT_DOWN: link_down(l); break;
        case TRANSPORT_MESSAGE:
            buf_release(event.body); /* peers never answer on it */
            stat_add(l->m->o.stats, STAT_REFUSED, 1);
            break;
        case TRANSPORT_REFUSED:
            stat_add(l->m->o.stats, STAT_REFUSED, 1);
            l->m->is_starved |= event.lacks_memory;
            reach_refused(&l->reach, event.note);
            break;
        }
    }
    if (event.has_moved) atomic_fetch_add(&l->m->moves, 1);
    return any;
}

void mesh_look(mesh *m)
{
    const uint64_t now_ms = clock_ms(&clock_real);
    if (m->o.unreached == NULL || now_ms - m->looked_ms < REACH_LOOK_MS) return;
    m->looked_ms = now_ms;
    for (mesh_link *l = m->dialled; l != NULL; l = l->next) {
        const mesh_peer *p = &m->peer[l->rank];
        if (l->t == NULL || p->is_lost || p->has_left) continue;
        if (l->is_up && l->lane == 0)
            reach_doubt(&l->reach, transport_unconfirmed_ms(l->t), m->o.lease_ms, now_ms);
        const char *words = reach_look(&l->reach, p->address, now_ms);
        if (words != NULL) m->o.unreached(m->o.user, l->rank, p->address, words);
    }
}
