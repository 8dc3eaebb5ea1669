/* machines.c - workers grouped by machine. */
#include "scheduler/core/membership/machines.h"

#include "common/base/why.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    member_slot *worker;
    bool by_node; /* all workers have a node set */
    int32_t part; /* one machine may be several nodes */
} row;

static bool is_whole(const member_slot *w)
{
    return w->said_local_rank >= 0 && w->said_local_size > 0;
}

/* ---- sentences ------------------------------------------------------------------------------- */
static pen_status contradict(const member_slot *w, pen_error *why)
{
    why_culprit(why, PEN_WORKER, w->rank, -1, NULL);
    return why->status;
}

static pen_status tell_twice(const member_slot *w, const member_slot *other, pen_error *why)
{
    why_set(why, PEN_MISMATCH,
            "worker %d (%s) and worker %d (%s) are on one node and both have LOCAL_RANK %d; set a "
            "different one for each, or none at all",
            (int)other->rank, other->host, (int)w->rank, w->host, (int)w->said_local_rank);
    return contradict(w, why);
}

static pen_status notify_outside(const member_slot *w, uint32_t n, pen_error *why)
{
    why_set(why, PEN_MISMATCH,
            "worker %d (%s) has LOCAL_RANK %d, but its node has %u workers; count from 0 on each "
            "node, or set none at all",
            (int)w->rank, w->host, (int)w->said_local_rank, n);
    return contradict(w, why);
}

static pen_status tell_size(const member_slot *w, uint32_t n, pen_error *why)
{
    why_set(why, PEN_MISMATCH,
            "worker %d (%s) has LOCAL_WORLD_SIZE %d, but its node has %u workers; correct it on "
            "all, or set none at all",
            (int)w->rank, w->host, (int)w->said_local_size, n);
    return contradict(w, why);
}

/* ---- related rows ---------------------------------------------------------------------------- */
static int compare(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int by_machine(const void *a, const void *b)
{
    const row *x = a, *y = b;
    const int order = x->by_node ? compare(x->worker->said_node, y->worker->said_node)
                                 : strcmp(x->worker->machine, y->worker->machine);
    return order != 0 ? order : compare(x->worker->rank, y->worker->rank);
}

static bool is_together(const row *a, const row *b)
{
    return a->by_node ? a->worker->said_node == b->worker->said_node
                      : strcmp(a->worker->machine, b->worker->machine) == 0;
}

static int by_local_rank(const void *a, const void *b)
{
    const row *x = a, *y = b;
    const int order = compare(x->worker->said_local_rank, y->worker->said_local_rank);
    return order != 0 ? order : compare(x->worker->rank, y->worker->rank);
}

static int by_part(const void *a, const void *b)
{
    const row *x = a, *y = b;
    const int order = compare(x->part, y->part);
    return order != 0 ? order : compare(x->worker->rank, y->worker->rank);
}

/* ---- one machine, or one node if all have it set ----------------------------------------------- */
/* All have local ranks and their number set: each repeat of a local rank is another node. */
static pen_status part_whole(row *at, uint32_t n, pen_error *why)
{
    qsort(at, n, sizeof *at, by_local_rank);
    for (uint32_t i = 0; i < n; i++) {
        member_slot *w   = at[i].worker;
        const bool again = i > 0 && at[i - 1].worker->said_local_rank == w->said_local_rank;
        if (again && at[i].by_node) return tell_twice(w, at[i - 1].worker, why);
        at[i].part    = again ? at[i - 1].part + 1 : 0;
        w->local_rank = w->said_local_rank;
    }
    qsort(at, n, sizeof *at, by_part);
    return PEN_OK;
}

/* Local ranks that are set stay; the other workers take the free ones in rank order. */
static pen_status part_by_rank(row *at, uint32_t n, pen_error *why)
{
    const member_slot **taken = calloc(n, sizeof *taken);
    if (taken == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %u workers", n);
    pen_status status = PEN_OK;
    uint32_t next     = 0;
    for (uint32_t i = 0; i < n && status == PEN_OK; i++) {
        member_slot *w = at[i].worker;
        if (w->said_local_size > 0 && (uint32_t)w->said_local_size != n)
            status = tell_size(w, n, why);
        else if (w->said_local_rank >= 0 && (uint32_t)w->said_local_rank >= n)
            status = notify_outside(w, n, why);
        else if (w->said_local_rank >= 0 && taken[w->said_local_rank] != NULL)
            status = tell_twice(w, taken[w->said_local_rank], why);
        else if (w->said_local_rank >= 0)
            taken[w->said_local_rank] = w;
    }
    for (uint32_t i = 0; i < n && status == PEN_OK; i++) {
        member_slot *w = at[i].worker;
        while (w->said_local_rank < 0 && taken[next] != NULL) next++;
        w->local_rank = w->said_local_rank >= 0 ? w->said_local_rank : (int32_t)next++;
    }
    free(taken);
    return status;
}

static pen_status part(row *at, uint32_t n, pen_error *why)
{
    for (uint32_t i = 0; i < n; i++)
        if (!is_whole(at[i].worker)) return part_by_rank(at, n, why);
    return part_whole(at, n, why);
}

/* ---- numbers of nodes ------------------------------------------------------------------------- */
/* The rows of a node are consecutive, its lowest rank first: the leader, until nodes have numbers. */
static uint32_t end_of_node(const row *at, uint32_t begin, uint32_t n)
{
    uint32_t end = begin + 1;
    while (end < n && is_together(&at[begin], &at[end]) && at[begin].part == at[end].part) end++;
    return end;
}

/* leader[rank]: lowest rank of its node. */
static pen_status number(const member_slots *workers, const uint32_t *leader, pen_error *why)
{
    int32_t nodes = 0;
    MEMBER_SLOT_EACH(w, workers) {
        const uint32_t first = leader[w->rank];
        w->node              = first == (uint32_t)w->rank ? nodes++ : workers->at[first]->node;
        if (w->said_node >= 0 && w->said_node != w->node) {
            why_set(why, PEN_MISMATCH,
                    "worker %d (%s) has GROUP_RANK %d, but its machine is node %d of the job; set "
                    "it for "
                    "all workers, or for none",
                    (int)w->rank, w->host, (int)w->said_node, (int)w->node);
            return contradict(w, why);
        }
    }
    return PEN_OK;
}

static pen_status name_nodes(const member_slots *workers, const row *at, pen_error *why)
{
    const uint32_t n = workers->n;
    uint32_t *leader = calloc(n, sizeof *leader);
    if (leader == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %u workers", n);
    pen_status status = PEN_OK;
    for (uint32_t begin = 0, end; begin < n && status == PEN_OK; begin = end) {
        end = end_of_node(at, begin, n);
        for (uint32_t i = begin; i < end && status == PEN_OK; i++) {
            const member_slot *w = at[i].worker;
            leader[w->rank]      = (uint32_t)at[begin].worker->rank;
            if (!at[i].by_node && is_whole(w) && (uint32_t)w->said_local_size != end - begin)
                status = tell_size(w, end - begin, why);
        }
    }
    if (status == PEN_OK && at[0].by_node)
        MEMBER_SLOT_EACH(w, workers) w->node = w->said_node;
    else if (status == PEN_OK)
        status = number(workers, leader, why);
    free(leader);
    return status;
}

pen_status machines_place(const member_slots *workers, pen_error *why)
{
    bool by_node     = true;
    const uint32_t n = workers->n;
    row *at          = calloc((size_t)n + 1, sizeof *at);
    if (at == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %u workers", n);
    MEMBER_SLOT_EACH(w, workers) by_node &= w->said_node >= 0;
    for (uint32_t i = 0; i < n; i++) at[i] = (row){.worker = workers->at[i], .by_node = by_node};
    qsort(at, n, sizeof *at, by_machine);
    pen_status status = PEN_OK;
    for (uint32_t begin = 0, end; begin < n && status == PEN_OK; begin = end) {
        end    = end_of_node(at, begin, n);
        status = part(at + begin, end - begin, why);
    }
    if (status == PEN_OK && n > 0) status = name_nodes(workers, at, why);
    free(at);
    return status;
}

/* ---- workers that join later ------------------------------------------------------------------- */
static bool has_its_place(const member_slot *w, const member_slot *late)
{
    return w != late && w->in_view;
}

static bool is_taken(const member_slot *late, const member_slots *workers, int32_t node,
                     int32_t local_rank)
{
    MEMBER_SLOT_EACH(w, workers)
        if (has_its_place(w, late) && w->node == node && w->local_rank == local_rank) return true;
    return false;
}

static int32_t find_node(const member_slot *late, const member_slots *workers)
{
    int32_t next = 0, found = -1;
    MEMBER_SLOT_EACH(w, workers) {
        if (!has_its_place(w, late)) continue;
        if (w->node >= next && w->node < INT32_MAX) next = w->node + 1;
        if (strcmp(w->machine, late->machine) != 0) continue;
        if (is_whole(late) && is_taken(late, workers, w->node, late->said_local_rank)) continue;
        if (found < 0 || w->node < found) found = w->node;
    }
    return found >= 0 ? found : next;
}

void machines_place_late(member_slot *late, const member_slots *workers)
{
    late->node       = late->said_node >= 0 ? late->said_node : find_node(late, workers);
    late->local_rank = late->said_local_rank >= 0 ? late->said_local_rank : 0;
    while (late->said_local_rank < 0 && is_taken(late, workers, late->node, late->local_rank))
        late->local_rank++;
}
