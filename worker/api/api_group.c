/* api_group.c - groups: those that every job has, and those that programs make. */
#include "worker/api/api_coll.h"

#include "common/base/fp_env.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the groups of every job ----------------------------------------------------------------- */
static bool belongs(const coll_engine *e, int rank, pen_group_kind kind)
{
    return kind == PEN_GROUP_NODE ? e->node_of[rank] == e->node_of[e->rank]
                                  : e->local_rank[rank] == e->local_rank[e->rank];
}

/* Ids are the same for all members: the kind, and the lowest RANK. */
static pen_group *make_kind(coll_engine *e, pen_group_kind kind)
{
    pen_error why;
    pen_group *g = NULL;
    int n        = 0;
    int *ranks   = malloc((size_t)e->n_members * sizeof *ranks);
    if (ranks == NULL) {
        last_error_say(PEN_NO_MEMORY, "no memory for a group of %d", e->n_members);
        return NULL;
    }
    for (int i = 0; i < e->n_members; i++)
        if (belongs(e, i, kind)) ranks[n++] = i;
    const uint64_t name[] = {(uint64_t)kind, (uint64_t)ranks[0]};
    if (group_create(e, group_hash(0, name, sizeof name), ranks, n, &g, &why) != PEN_OK)
        last_error_set(&why);
    free(ranks);
    return g;
}

/* Two threads may ask for it at the same time: the first one's is kept. */
static pen_group *get_kind(coll_engine *e, pen_group_kind kind)
{
    pen_group **place = kind == PEN_GROUP_NODE ? &e->node_group : &e->across_group;
    pthread_mutex_lock(&e->making);
    pthread_mutex_lock(&e->lock);
    pen_group *g = *place;
    pthread_mutex_unlock(&e->lock);
    if (g == NULL && (g = make_kind(e, kind)) != NULL) {
        pthread_mutex_lock(&e->lock);
        *place = g;
        pthread_mutex_unlock(&e->lock);
    }
    pthread_mutex_unlock(&e->making);
    return g;
}

pen_group *pen_group_get(pen_ctx *ctx, pen_group_kind kind)
{
    FP_ENV_OURS();
    /* Also of a context that has failed: then every call on the group says how. */
    if (ctx == NULL || ctx->pid != getpid()) {
        context_check(ctx, "pen_group_get");
        return NULL;
    }
    if (kind == PEN_GROUP_WORLD) return ctx->world;
    if (kind != PEN_GROUP_NODE && kind != PEN_GROUP_ACROSS) {
        last_error_say(PEN_INVALID_ARGUMENT, "pen_group_get: %d is not a kind of group", (int)kind);
        return NULL;
    }
    if (ctx->env.world_size == 1) return ctx->world;
    if (ctx->coll == NULL || ctx->coll->n_members == 0) {
        last_error_say(PEN_WRONG_STATE, "pen_group_get: the job has not begun");
        return NULL;
    }
    return get_kind(ctx->coll, kind);
}

/* A program may hold what pen_world() gave it before members came or went. */
static const pen_group *of_now(const pen_group *g)
{
    const pen_group *world = g != NULL && g->is_world ? g->ctx->world : NULL;
    return world != NULL ? world : g;
}

int pen_rank(const pen_group *g)
{
    return g != NULL ? of_now(g)->rank : -1;
}

int pen_size(const pen_group *g)
{
    return g != NULL ? of_now(g)->size : 0;
}

int pen_group_ranks(const pen_group *g, int *ranks, int cap)
{
    if (g == NULL) {
        last_error_say(PEN_INVALID_ARGUMENT, "pen_group_ranks: the group is NULL");
        return -1;
    }
    g = of_now(g);
    for (int i = 0; i < g->size && i < cap && ranks != NULL; i++) ranks[i] = g->ranks[i];
    return g->size;
}

/* ---- new groups ------------------------------------------------------------------------------ */
static pen_status enter(pen_group *parent, const char *function, pen_group **g)
{
    pen_status status = api_coll_enter(parent, function, NULL, true);
    if (status != PEN_OK) return status;
    if (g == NULL)
        status = last_error_say(PEN_INVALID_ARGUMENT, "%s: the group to be made is NULL", function);
    else if (parent->engine == NULL)
        status = last_error_say(PEN_WRONG_STATE, "%s: the job has not begun", function);
    else if (api_batch_is_open(parent->ctx))
        status = last_error_say(PEN_WRONG_STATE,
                                "%s: not between pen_batch_begin() and pen_batch_end()", function);
    if (status != PEN_OK) return context_leave(parent->ctx, status);
    *g = NULL;
    return PEN_OK;
}

static bool is_member(const pen_group *g, int rank)
{
    for (int i = 0; i < g->size; i++)
        if (g->ranks[i] == rank) return true;
    return false;
}

static pen_status check_ranks(const pen_group *parent, const int *ranks, int n)
{
    if (ranks == NULL || n < 1 || n > parent->size)
        return last_error_say(PEN_INVALID_ARGUMENT,
                              "pen_group_new: n is %d; a group has 1 to %d members of its parent",
                              n, parent->size);
    for (int i = 0; i < n; i++) {
        if (!is_member(parent, ranks[i]))
            return last_error_say(PEN_INVALID_ARGUMENT,
                                  "pen_group_new: rank %d is not a member of the parent", ranks[i]);
        for (int j = 0; j < i; j++)
            if (ranks[j] == ranks[i])
                return last_error_say(PEN_INVALID_ARGUMENT, "pen_group_new: rank %d is named twice",
                                      ranks[i]);
    }
    return PEN_OK;
}

static bool is_among(const pen_group *parent, const int *ranks, int n)
{
    for (int i = 0; i < n; i++)
        if (ranks[i] == parent->ranks[parent->rank]) return true;
    return false;
}

static pen_status create(pen_group *parent, const int *ranks, int n, pen_group **g)
{
    pen_error why;
    const uint64_t id = group_child_id(parent, ranks, n);
    if (id == 0) return last_error_say(PEN_NO_MEMORY, "no memory for another group");
    if (group_create(parent->engine, id, ranks, n, g, &why) != PEN_OK) return last_error_set(&why);
    return PEN_OK;
}

/* Members wait for members: afterwards the group works. */
static pen_status meet(pen_group **g)
{
    const coll_call call = {
        .kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = "pen_group_new"};
    pen_status status = api_coll_wait(*g, &call, NULL);
    if (status == PEN_OK) return PEN_OK;
    group_destroy(*g);
    *g = NULL;
    return status;
}

pen_status pen_group_new(pen_group *parent, const int *ranks, int n, pen_group **g)
{
    FP_ENV_OURS();
    pen_status status = enter(parent, "pen_group_new", g);
    if (status != PEN_OK) return status;
    status = check_ranks(parent, ranks, n);
    if (status == PEN_OK && is_among(parent, ranks, n)) {
        status = create(parent, ranks, n, g);
        if (status == PEN_OK) status = meet(g);
    }
    return context_leave(parent->ctx, status);
}

/* ---- splitting ------------------------------------------------------------------------------- */
typedef struct {
    int32_t color, key;
} choice;

/* Those of this member's color, by key and then by place in the parent. */
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
                        pen_group **g)
{
    const coll_call call = {.kind  = COLL_ALL_GATHER,
                            .dtype = PEN_I32,
                            .n     = 2,
                            .in    = own,
                            .out   = all,
                            .scale = 1,
                            .label = "pen_group_split"};
    pen_status status    = api_coll_wait(parent, &call, NULL);
    if (status != PEN_OK || own->color < 0) return status;
    return create(parent, ranks, select_members(parent, all, ranks), g);
}

pen_status pen_group_split(pen_group *parent, int color, int key, pen_group **g)
{
    FP_ENV_OURS();
    pen_status status = enter(parent, "pen_group_split", g);
    if (status != PEN_OK) return status;
    const choice own = {color, key};
    choice *all      = calloc((size_t)parent->size, sizeof *all);
    int *ranks       = calloc((size_t)parent->size, sizeof *ranks);
    if (color < -1)
        status = last_error_say(PEN_INVALID_ARGUMENT,
                                "pen_group_split: color is %d; -1 is no group, others count from 0",
                                color);
    else if (all == NULL || ranks == NULL)
        status = last_error_say(PEN_NO_MEMORY, "no memory for a group of %d", parent->size);
    if (status == PEN_OK) status = split(parent, &own, all, ranks, g);
    free(all);
    free(ranks);
    return context_leave(parent->ctx, status);
}

/* ---- after a failure ------------------------------------------------------------------------- */
pen_status pen_group_shrink(pen_group *g, pen_group **survivors)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = enter(g, "pen_group_shrink", survivors);
    if (status != PEN_OK) return status;
    status = engine_shrink(g, api_coll_deadline(g, NULL), survivors, &why);
    if (status != PEN_OK) last_error_set(&why);
    return context_leave(g->ctx, status);
}

/* The groups of every job belong to their context. */
void pen_group_free(pen_group *g)
{
    FP_ENV_OURS();
    if (g == NULL || g->ctx->pid != getpid() || g == g->ctx->world) return;
    if (g->engine != NULL && (g == g->engine->node_group || g == g->engine->across_group)) return;
    group_destroy(g);
}
