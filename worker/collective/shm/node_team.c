/* node_team.c - members of one group on one host, and what a team keeps between calls. */
#include "worker/collective/shm/node_internal.h"

#include "common/base/why.h"
#include "common/containers/arrays.h"

#include <stdlib.h>
#include <string.h>

void node_team_ring(const node_team *team)
{
    for (int i = 0; i < team->size; i++)
        if (i != team->rank) node_ring(team->peer[i].control);
}

/* Peers create their slots in their own time, or mark that they cannot. */
bool node_find_peers(node_team *t)
{
    bool all = true;
    for (int i = 0; i < t->size; i++) {
        if (t->slot[i] == NULL) t->slot[i] = node_find_slot(t->peer[i].control, t->id);
        if (t->slot[i] == NULL && node_has_refused(t->peer[i].control, t->id)) t->refuser = i;
        all &= t->slot[i] != NULL;
    }
    return all;
}

bool node_team_is_refused(const node_team *t)
{
    return t->refuser >= 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */
pen_status node_need_window(node_team *t, size_t bytes, pen_error *why)
{
    if (t->window != NULL) return PEN_OK;
    t->window = segment_alloc_apart(bytes, why);
    if (t->window == NULL) return PEN_NO_MEMORY;
    segment_find(t->window, bytes, &t->window_ref);
    return PEN_OK;
}

pen_status node_need_scratch(node_team *t, size_t bytes, pen_error *why)
{
    if (bytes <= t->scratch_bytes) return PEN_OK;
    segment_free(t->scratch);
    t->scratch_bytes = 0;
    t->scratch       = segment_alloc_apart(bytes, why);
    if (t->scratch == NULL) return PEN_NO_MEMORY;
    segment_populate(t->scratch, bytes);
    t->scratch_bytes = bytes;
    return PEN_OK;
}

void node_drop_scratch(node_team *t)
{
    segment_free(t->scratch);
    t->scratch       = NULL;
    t->scratch_bytes = 0;
}

/* ---- creation and destruction ---------------------------------------------------------------- */
static bool make_arrays(node_team *t, const int *ranks)
{
    const size_t n = (size_t)t->size;
    t->arrays      = ARRAYS_NEW(
             ARRAY(t->ranks, n), ARRAY(t->peer, n), ARRAY(t->slot, n), ARRAY(t->in, n), ARRAY(t->out, n),
             ARRAY(t->save, n), ARRAY(t->windows, n), ARRAY(t->said, n), ARRAY(t->scale, n),
             ARRAY(t->from, n), ARRAY(t->to, n), ARRAY(t->put, n), ARRAY(t->operands, n),
             ARRAY(t->results, n + 1), ARRAY(t->headers, n), ARRAY(t->mapped, 4 * n));
    if (t->arrays != NULL) memcpy(t->ranks, ranks, n * sizeof *t->ranks);
    return t->arrays != NULL;
}

static void team_free(node_team *t)
{
    free(t->arrays);
    free(t);
}

static pen_status open_peers(node_team *t, const char *const *address, pen_error *why)
{
    pen_status status = PEN_OK;
    int i             = 0;
    for (; status == PEN_OK && i < t->size; i++) {
        if (i == t->rank)
            t->peer[i] = (node_peer){t->place->ref, t->place->control};
        else
            status = node_open_peer(address[i], &t->peer[i], why);
    }
    if (status == PEN_OK) return PEN_OK;
    for (i--; i >= 0; i--)
        if (i != t->rank && t->peer[i].control != NULL) segment_unmap(&t->peer[i].ref);
    return status;
}

pen_status node_team_create(node_place *place, uint64_t id, const char *const *address,
                            const int *ranks, int size, int rank, node_team **team, pen_error *why)
{
    if (size < 1 || size > NODE_MEMBERS_MAX || rank < 0 || rank >= size || id == 0)
        return why_set(why, PEN_INVALID_ARGUMENT, "invalid team: %d members, number %d", size,
                       rank);
    node_team *t = calloc(1, sizeof *t);
    if (t == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a group of %d", size);
    *t = (node_team){.place = place, .id = id, .size = size, .rank = rank, .refuser = -1};
    if (!make_arrays(t, ranks)) {
        team_free(t);
        return why_set(why, PEN_NO_MEMORY, "no memory for a group of %d", size);
    }
    pen_status status = open_peers(t, address, why);
    if (status == PEN_OK) {
        status = node_take_slot(place, id, &t->own_slot, why);
        for (int i = 0; status != PEN_OK && i < size; i++)
            if (i != rank) segment_unmap(&t->peer[i].ref);
    }
    if (status != PEN_OK) {
        team_free(t);
        return status;
    }
    t->slot[rank] = &place->control->slot[t->own_slot];
    if (size > place->cores) node_set_spin(place, 0);
    *team = t;
    return PEN_OK;
}

void node_team_set_order(node_team *t, const reduce_order *order)
{
    t->order = order;
}

void node_team_destroy(node_team *t)
{
    if (t == NULL) return;
    node_leftover *l = malloc(sizeof *l);
    if (l != NULL) {
        *l        = (node_leftover){.slot   = t->own_slot,
                                    .size   = t->size,
                                    .rank   = t->rank,
                                    .id     = t->id,
                                    .last   = t->last,
                                    .arrays = t->arrays,
                                    .peer   = t->peer};
        t->arrays = NULL;
        node_leave_slot(t->place, l);
    } /* else this slot stays taken until the process ends */
    segment_free(t->window);
    segment_free(t->scratch);
    team_free(t);
}
