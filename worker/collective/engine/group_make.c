/* group_make.c - groups made from other groups: those of every job, and those that members make in a call. */
#include "common/base/why.h"
#include "worker/collective/engine/engine_internal.h"

#include <stdlib.h>

/* ---- the groups of every job ----------------------------------------------------------------- */
static bool belongs(const coll_engine *e, int rank, pen_group_kind kind)
{
    return kind == PEN_GROUP_NODE ? e->node_of[rank] == e->node_of[e->rank]
                                  : e->local_rank[rank] == e->local_rank[e->rank];
}

/* All members compute the same id: from the kind and the lowest RANK. */
static pen_group *make_kind(coll_engine *e, pen_group_kind kind, pen_error *why)
{
    pen_group *g = NULL;
    int n        = 0;
    int *ranks   = malloc((size_t)e->n_members * sizeof *ranks);
    if (ranks == NULL) {
        why_set(why, PEN_NO_MEMORY, "no memory for a group of %d", e->n_members);
        return NULL;
    }
    for (int i = 0; i < e->n_members; i++)
        if (belongs(e, i, kind)) ranks[n++] = i;
    const uint64_t name[] = {(uint64_t)kind, (uint64_t)ranks[0]};
    (void)group_create(e, group_hash(0, name, sizeof name), ranks, n, &g, why);
    free(ranks);
    return g;
}

/* Two threads may call at the same time: the first one makes the group. */
pen_group *group_of_kind(coll_engine *e, pen_group_kind kind, pen_error *why)
{
    if (e == NULL || e->n_members == 0) {
        if (e == NULL || coll_failure(*e->setup.world, why) == PEN_OK)
            why_set(why, PEN_WRONG_STATE, "pen_group_get: the job has not begun");
        return NULL;
    }
    pen_group **place = kind == PEN_GROUP_NODE ? &e->node_group : &e->across_group;
    pthread_mutex_lock(&e->making);
    pthread_mutex_lock(&e->lock);
    pen_group *g = *place;
    pthread_mutex_unlock(&e->lock);
    if (g == NULL && (g = make_kind(e, kind, why)) != NULL) {
        pthread_mutex_lock(&e->lock);
        *place = g;
        pthread_mutex_unlock(&e->lock);
    }
    pthread_mutex_unlock(&e->making);
    return g;
}

/* ---- new groups ------------------------------------------------------------------------------ */
static pen_status create(pen_group *parent, const int *ranks, int n, pen_group **g, pen_error *why)
{
    const uint64_t id = group_child_id(parent, ranks, n);
    if (id == 0) return why_set(why, PEN_NO_MEMORY, "no memory for another group");
    if (parent->engine == NULL) return why_set(why, PEN_WRONG_STATE, "the job has not begun");
    return group_create(parent->engine, id, ranks, n, g, why);
}

pen_status group_new(pen_group *parent, const int *ranks, int n, uint64_t patience_ms,
                     pen_group **g, pen_error *why)
{
    const coll_call meet = {
        .kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = "pen_group_new"};
    if (create(parent, ranks, n, g, why) != PEN_OK) return why->status;
    const pen_status status = engine_run(*g, &meet, patience_ms, why);
    if (status == PEN_OK) return PEN_OK;
    group_destroy(*g);
    *g = NULL;
    return status;
}

/* ---- splitting ------------------------------------------------------------------------------- */
typedef struct {
    int32_t color, key;
} choice;

/* The members with this member's color, by key and then by position in the parent. */
static int select_members(const pen_group *parent, const choice *all, int *ranks)
{
    int n           = 0;
    const int color = all[parent->rank].color;
    for (int i = 0; i < parent->size; i++) {
        if (all[i].color != color) continue;
        int at = n++;
        for (; at > 0 && all[ranks[at - 1]].key > all[i].key; at--) ranks[at] = ranks[at - 1];
        ranks[at] = i;
    }
    for (int i = 0; i < n; i++) ranks[i] = parent->ranks[ranks[i]];
    return n;
}

static pen_status split(pen_group *parent, const choice *own, choice *all, int *ranks,
                        uint64_t patience_ms, pen_group **g, pen_error *why)
{
    const coll_call call = {.kind  = COLL_ALL_GATHER,
                            .dtype = PEN_I32,
                            .n     = 2,
                            .in    = own,
                            .out   = all,
                            .scale = 1,
                            .label = "pen_group_split"};
    pen_status status    = engine_run(parent, &call, patience_ms, why);
    if (status != PEN_OK || own->color < 0) return status;
    return create(parent, ranks, select_members(parent, all, ranks), g, why);
}

pen_status group_split(pen_group *parent, int color, int key, uint64_t patience_ms, pen_group **g,
                       pen_error *why)
{
    const choice own = {color, key};
    choice *all      = calloc((size_t)parent->size, sizeof *all);
    int *ranks       = calloc((size_t)parent->size, sizeof *ranks);
    pen_status status =
        all != NULL && ranks != NULL
            ? split(parent, &own, all, ranks, patience_ms, g, why)
            : why_set(why, PEN_NO_MEMORY, "no memory for a group of %d", parent->size);
    free(all);
    free(ranks);
    return status;
}
