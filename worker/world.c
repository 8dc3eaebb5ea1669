/* world.c - the world of a job whose members change. */
#include "worker/context.h"

#include "common/base/why.h"
#include "common/containers/arrays.h"

#include <stdlib.h>

/* A program may still hold an old world, so it lives as long as the context. */
static bool keep(pen_ctx *ctx, pen_group *g)
{
    if (g->engine != NULL) return true; /* the engine frees it */
    if (!VEC_MORE(ctx->old_world, ctx->n_old_worlds)) return false;
    ctx->old_world[ctx->n_old_worlds++] = g;
    return true;
}

static pen_group *make_world(pen_ctx *ctx, uint32_t n, const int32_t *rank)
{
    pen_group *g = group_create_world(ctx, (int)n, -1);
    if (g == NULL) return NULL;
    for (uint32_t i = 0; i < n; i++) {
        g->ranks[i] = rank[i];
        if (rank[i] == ctx->env.rank) g->rank = (int)i;
    }
    why_set(&g->failure, PEN_UNSUPPORTED,
            "collectives need fixed members, and the members of this job changed in view %llu; "
            "use pen_step_scalar(), pen_command() or pen_store_add()",
            (unsigned long long)members_epoch(&ctx->members));
    g->has_failed = true;
    return g;
}

void context_follow_members(pen_ctx *ctx)
{
    if (!members_advance(&ctx->members, ctx->step.next_index)) return;
    ctx->step.flags |= PEN_STEP_MEMBERS;
    uint32_t n    = members_count(&ctx->members);
    int32_t *rank = calloc(n + 1, sizeof *rank);
    if (rank == NULL || n == 0) {
        free(rank);
        return;
    }
    const uint32_t all = members_ranks(&ctx->members, rank, n);
    pen_group *world   = make_world(ctx, all < n ? all : n, rank);
    if (world != NULL && keep(ctx, ctx->world))
        ctx->world = world;
    else
        group_destroy(world);
    free(rank);
}
