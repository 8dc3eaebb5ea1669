/* mesh_team.c - groups: their members' connections, and the delivery of messages to them. */
#include "worker/collective/net/mesh_internal.h"

#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "common/containers/list.h"

#include <stdlib.h>
#include <string.h>

wire_team *mesh_find_team(const mesh *m, uint64_t id)
{
    wire_team *t = m->teams;
    while (t != NULL && t->id != id) t = t->next;
    return t;
}

static bool is_gone(const mesh *m, uint64_t id)
{
    for (size_t i = 0; i < m->n_gone; i++)
        if (m->gone[i] == id) return true;
    return false;
}

void mesh_deliver(mesh *m, const wire_peer *head, buf *body)
{
    wire_team *team = mesh_find_team(m, head->group);
    if (head->kind == WIRE_CREDIT && head->group == 0) {
        p2p_credit(m, head->rank, head->credit);
    } else if (team != NULL) {
        const int from = team->position[head->rank];
        if (from < 0)
            mesh_refuse(m, "it is not a member of that group", head);
        else if (head->kind >= WIRE_LETTER)
            p2p_take(team, from, head, body);
        else
            wire_take(team, from, head, body);
    } else if (is_gone(m, head->group)) {
        p2p_used_up(m, head->rank, head);
    } else {
        mesh_park(m, &m->early, head, body);
    }
}

static wire_team *make_team(mesh *m, uint64_t id, const int *ranks, int size, int rank)
{
    const size_t n = (size_t)size;
    wire_team *t   = calloc(1, sizeof *t);
    if (t == NULL) return NULL;
    *t = (wire_team){.m              = m,
                     .id             = id,
                     .size           = size,
                     .rank           = rank,
                     .is_on_one_host = true,
                     .is_large       = size > MESH_DIAL_ALL};
    t->arrays =
        ARRAYS_NEW(ARRAY(t->ranks, n), ARRAY(t->position, (size_t)m->n_peers), ARRAY(t->mate, n),
                   ARRAY(t->touched, n), ARRAY(t->p2p_to, n), ARRAY(t->p2p_from, n));
    if (t->arrays == NULL) {
        free(t);
        return NULL;
    }
    for (int i = 0; i < m->n_peers; i++) t->position[i] = -1;
    for (int i = 0; i < size; i++) {
        t->ranks[i]           = ranks[i];
        t->position[ranks[i]] = i;
        t->is_on_one_host &= strcmp(m->peer[ranks[i]].host, m->peer[ranks[0]].host) == 0;
    }
    return t;
}

pen_status wire_team_create(mesh *m, uint64_t id, const int *ranks, int size, int rank,
                            wire_team **out, pen_error *why)
{
    if (m->peer == NULL)
        return why_set(why, PEN_WRONG_STATE,
                       "cannot make a group before the workers' addresses are set");
    if (id == 0 || mesh_find_team(m, id) != NULL)
        return why_set(why, PEN_INTERNAL, "two groups have the number %llu",
                       (unsigned long long)id);
    wire_team *t = make_team(m, id, ranks, size, rank);
    if (t == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a group of %d", size);
    LIST_PREPEND(m->teams, t);
    t->run.next_is_torn = m->tears_next;
    m->tears_next       = false;
    /* Delivers messages that arrived before their group existed. */
    mesh_early_queue all = m->early;
    m->early             = NULL;
    for (mesh_parked *p; (p = mesh_unpark_first(m, &all)) != NULL;) {
        mesh_deliver(m, &p->head, p->body);
        mesh_drop(p);
    }
    *out = t;
    return PEN_OK;
}

void wire_team_set_order(wire_team *team, const reduce_order *order)
{
    team->order = order;
}

static pen_status dial_neighbours(const wire_team *t, pen_error *why)
{
    pen_status status = PEN_OK;
    for (int step = 1; step < t->size && status == PEN_OK; step *= 2)
        status = mesh_dial(t->m, t->ranks[(t->rank + step) % t->size], why);
    return status;
}

pen_status wire_team_dial(wire_team *t, pen_error *why)
{
    pen_status status = PEN_OK;
    if (t->size > MESH_DIAL_ALL) return dial_neighbours(t, why);
    for (int i = 0; i < t->size && status == PEN_OK; i++)
        status = mesh_dial(t->m, t->ranks[i], why);
    return status;
}

void wire_team_destroy(wire_team *team)
{
    mesh *m = team->m;
    if (VEC_MORE(m->gone, m->n_gone)) m->gone[m->n_gone++] = team->id;
    LIST_REMOVE(m->teams, team);
    wire_free(team);
    p2p_free(team);
    free(team->arrays);
    free(team);
}

void mesh_notify_teams(mesh *m, int rank, mesh_loss loss, const char *how)
{
    for (wire_team *t = m->teams; t != NULL; t = t->next) {
        if (t->position[rank] < 0) continue;
        wire_lost(t, t->position[rank], loss, how);
        p2p_lost(t, t->position[rank], loss, how);
    }
}

bool mesh_minds(const mesh *m, int rank)
{
    for (const wire_team *t = m->teams; t != NULL; t = t->next)
        if (t->position[rank] >= 0 && wire_minds(t, t->position[rank])) return true;
    return false;
}
