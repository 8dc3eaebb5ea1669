/* mesh.c - the mesh itself: created, given its peers, destroyed. */
#include "worker/collective/net/mesh_internal.h"

#include "common/base/clock.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { ARENA_BYTES = 64 << 10, SHOW_MS = 10 };

_Static_assert((int)COLL_KINDS == (int)WIRE_SHOW_KINDS, "the wire knows every collective");
_Static_assert((int)COLL_LABEL_BYTES == (int)WIRE_LABEL_MAX, "labels fit");

/* ---- creation and destruction ---------------------------------------------------------------- */
pen_status mesh_create(const mesh_options *o, mesh **out, pen_error *why)
{
    mesh *m = calloc(1, sizeof *m);
    if (m == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for connections to workers");
    m->o = *o;
    if (m->o.show_ms == 0) m->o.show_ms = SHOW_MS;
    if (m->o.lanes < 1) m->o.lanes = 1;
    if (m->o.lanes > WIRE_LANES_MAX) m->o.lanes = WIRE_LANES_MAX;
    m->n_lanes                = m->o.lanes;
    m->self                   = -1;
    m->epoll_fd               = epoll_create1(EPOLL_CLOEXEC);
    m->wake_fd                = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    m->arena                  = wire_arena_create(ARENA_BYTES);
    transport_options options = mesh_transport_options(m);
    pen_status status         = PEN_OK;
    options.place             = mesh_place;
    options.place_user        = m;
    auth_listen(o->auth, &options);
    if (m->epoll_fd < 0 || m->wake_fd < 0 || m->arena == NULL)
        status = why_set(why, PEN_NO_MEMORY,
                         "cannot open the mesh: %m; raise the limit of open files (ulimit -n)");
    if (status == PEN_OK) status = mesh_watch(m, m->wake_fd, &m->wake_fd, why);
    if (status == PEN_OK) status = transport_listen(o->listen, &options, &m->listener, why);
    if (status != PEN_OK) {
        mesh_destroy(m, 0);
        return status;
    }
    m->copies = transport_find(o->listen)->stays_inside;
    *out      = m;
    return PEN_OK;
}

void mesh_use_lanes(mesh *m, uint64_t n)
{
    m->n_lanes = n < 1 ? 1 : n < m->o.lanes ? n : m->o.lanes;
}

const char *mesh_address(const mesh *m)
{
    return transport_address(m->listener);
}

static void free_mesh(mesh *m)
{
    free(m->arrays);
    free(m->texts);
    mesh_free_tx_refs(m);
    if (m->epoll_fd >= 0) close(m->epoll_fd);
    if (m->wake_fd >= 0) close(m->wake_fd);
    wire_arena_destroy(m->arena);
    wire_out_free(&m->out);
    free(m->gone);
    free(m);
}

/* ---- leaving --------------------------------------------------------------------------------- */
/* It sends to this worker, which has no connection yet for its goodbye. */
static bool is_owed_goodbye(const mesh_peer *p)
{
    return !p->is_lost && !p->has_left && p->caller[0] != 0 && !p->link[0].is_up;
}

static void dial_callers(mesh *m)
{
    pen_error why;
    for (int i = 0; i < m->n_peers; i++)
        if (is_owed_goodbye(&m->peer[i])) (void)mesh_dial(m, i, &why);
}

static bool is_anyone_owed(const mesh *m)
{
    int i = 0;
    while (i < m->n_peers && !is_owed_goodbye(&m->peer[i])) i++;
    return i < m->n_peers;
}

/* A peer that has sent something may still wait for an answer; a peer that never did waits for nothing. */
static void send_goodbye(mesh *m, uint32_t patience_ms)
{
    const uint64_t until = clock_ms(&clock_real) + patience_ms;
    if (m->peer == NULL) return;
    dial_callers(m);
    while (is_anyone_owed(m) && clock_ms(&clock_real) < until)
        if (!mesh_advance(m)) poll(NULL, 0, 1);
    for (const mesh_link *l = m->dialled; l != NULL; l = l->next) {
        wire_peer head = {.kind = WIRE_WITHDRAWN};
        pen_error why;
        if (l->is_up && l->lane == 0) (void)mesh_send_frame(m, l->rank, &head, NULL, 0, NULL, &why);
    }
}

void mesh_destroy(mesh *m, uint32_t linger_ms)
{
    if (m == NULL) return;
    while (m->teams != NULL) wire_team_destroy(m->teams);
    if (linger_ms > 0) send_goodbye(m, linger_ms);
    mesh_clear(m, &m->early);
    for (mesh_link *l = m->dialled; l != NULL; l = l->next) mesh_close_link(l, linger_ms);
    transport_close(m->listener, 0);
    if (mesh_has_all_back(m)) free_mesh(m); /* otherwise the transport still writes into it */
}

pen_status mesh_set_peers(mesh *m, int self, int n, const uint64_t *incarnation,
                          const char *const *address, const char *const *host, uint64_t job,
                          pen_error *why)
{
    if (m->peer != NULL)
        return why_set(why, PEN_WRONG_STATE, "the workers' addresses were already set");
    const size_t many = (size_t)n, all_lanes = many * m->o.lanes;
    mesh_peer *peer;
    mesh_link *link;
    uint64_t *caller;
    uint32_t *dial;
    const char **text;
    void *arrays = ARRAYS_NEW(ARRAY(peer, many), ARRAY(link, all_lanes), ARRAY(caller, all_lanes),
                              ARRAY(dial, all_lanes), ARRAY(text, 2 * many));
    for (size_t i = 0; i < many && arrays != NULL; i++) {
        text[i]        = host != NULL && host[i] != NULL ? host[i] : "unknown";
        text[many + i] = address[i];
    }
    m->texts = arrays != NULL ? arrays_keep_texts(text, 2 * many) : NULL;
    if (m->texts == NULL) {
        free(arrays);
        return why_set(why, PEN_NO_MEMORY, "no memory for %d workers", n);
    }
    for (size_t i = 0, at = 0; i < many; i++, at += m->o.lanes)
        peer[i] = (mesh_peer){.incarnation = incarnation[i],
                              .host        = text[i],
                              .address     = text[many + i],
                              .link        = link + at,
                              .caller      = caller + at,
                              .dial        = dial + at};
    m->arrays  = arrays;
    m->peer    = peer;
    m->n_peers = n;
    m->self    = self;
    m->job     = job;
    return mesh_watch(m, transport_poll_fd(m->listener), m->listener, why);
}
