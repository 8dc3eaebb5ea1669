/* api_group.c - pen_group_get, _new, _split, _shrink, _free, and the members of a group. */
#include "worker/api/api_coll.h"

#include "common/base/why.h"
#include "common/system/fp_env.h"

#include <unistd.h>

/* ---- the groups of every job ----------------------------------------------------------------- */
pen_group *pen_group_get(pen_ctx *ctx, pen_group_kind kind)
{
    FP_ENV_OURS();
    /* Also for a context that has failed: every call on the group then returns that failure. */
    if (ctx == NULL || ctx->pid != getpid()) {
        context_check(ctx, "pen_group_get");
        return NULL;
    }
    if (kind != PEN_GROUP_WORLD && kind != PEN_GROUP_NODE && kind != PEN_GROUP_ACROSS) {
        last_error_report(PEN_INVALID_ARGUMENT, "pen_group_get: invalid kind %d", (int)kind);
        return NULL;
    }
    pen_error why;
    pen_group *g = context_group(ctx, kind, &why);
    if (g == NULL) last_error_set(&why);
    return g;
}

/* A program may hold a world from before members came or went. */
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
        last_error_report(PEN_INVALID_ARGUMENT, "pen_group_ranks: the group is NULL");
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
        status = last_error_report(PEN_INVALID_ARGUMENT, "%s: g is NULL", function);
    else if (parent->engine == NULL)
        status = last_error_report(PEN_WRONG_STATE, "%s: the job has not begun", function);
    else if (api_batch_is_open(parent->ctx))
        status = last_error_report(
            PEN_WRONG_STATE, "%s: not allowed in a batch; call it after pen_batch_end()", function);
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
        return last_error_report(
            PEN_INVALID_ARGUMENT,
            "pen_group_new: invalid n %d; expected 1 to %d members of the parent", n, parent->size);
    for (int i = 0; i < n; i++) {
        if (!is_member(parent, ranks[i]))
            return last_error_report(PEN_INVALID_ARGUMENT,
                                     "pen_group_new: rank %d is not a member of the parent",
                                     ranks[i]);
        for (int j = 0; j < i; j++)
            if (ranks[j] == ranks[i])
                return last_error_report(PEN_INVALID_ARGUMENT,
                                         "pen_group_new: rank %d is named twice", ranks[i]);
    }
    return PEN_OK;
}

static bool is_among(const pen_group *parent, const int *ranks, int n)
{
    for (int i = 0; i < n; i++)
        if (ranks[i] == parent->ranks[parent->rank]) return true;
    return false;
}

pen_status pen_group_new(pen_group *parent, const int *ranks, int n, pen_group **g)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = enter(parent, "pen_group_new", g);
    if (status != PEN_OK) return status;
    status = check_ranks(parent, ranks, n);
    if (status == PEN_OK && is_among(parent, ranks, n)) {
        status = group_new(parent, ranks, n, context_patience(parent->ctx, NULL), g, &why);
        if (status != PEN_OK) last_error_set(&why);
    }
    return context_leave(parent->ctx, status);
}

pen_status pen_group_split(pen_group *parent, int color, int key, pen_group **g)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = enter(parent, "pen_group_split", g);
    if (status != PEN_OK) return status;
    if (color < -1)
        status =
            why_set(&why, PEN_INVALID_ARGUMENT,
                    "pen_group_split: invalid color %d; use 0 or more, or -1 for no group", color);
    else
        status = group_split(parent, color, key, context_patience(parent->ctx, NULL), g, &why);
    if (status != PEN_OK) last_error_set(&why);
    return context_leave(parent->ctx, status);
}

/* ---- after a failure ------------------------------------------------------------------------- */
pen_status pen_group_shrink(pen_group *g, pen_group **survivors)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = enter(g, "pen_group_shrink", survivors);
    if (status != PEN_OK) return status;
    status = engine_shrink(g, context_patience(g->ctx, NULL), survivors, &why);
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
