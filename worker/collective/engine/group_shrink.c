/* group_shrink.c - how the survivors of a group continue: the job tells them who they are, and they make a group. */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/clock.h"
#include "common/base/why.h"

#include <stdlib.h>
#include <string.h>

void coll_engine_shrunk(coll_engine *e, uint64_t group, uint64_t new_group, const int *survivors,
                        int n, const pen_error *why)
{
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < e->n_groups; i++) {
        pen_group *g = e->group[i];
        if (g->id != group || g->has_shrunk) continue;
        g->shrink_why = (pen_error){0};
        if (why != NULL && why->status != PEN_OK) {
            g->shrink_why = *why;
        } else {
            g->survivors = malloc((size_t)(n > 0 ? n : 1) * sizeof *g->survivors);
            if (g->survivors == NULL)
                why_set(&g->shrink_why, PEN_NO_MEMORY, "no memory for a group of %d", n);
            else
                memcpy(g->survivors, survivors, (size_t)n * sizeof *survivors);
        }
        g->n_survivors = n;
        g->successor   = new_group;
        g->has_shrunk  = true;
    }
    pthread_mutex_unlock(&e->lock);
    engine_wake(e);
}

static pen_status await_survivors(coll_engine *e, pen_group *g, uint64_t patience_ms,
                                  pen_error *why)
{
    const uint64_t until = patience_ms > 0 ? clock_ms(&clock_real) + patience_ms : 0;
    int error            = 0;
    pthread_mutex_lock(&e->lock);
    while (!g->has_shrunk && !e->has_failed && error == 0) error = engine_await(e, until);
    pen_status status = PEN_OK;
    if (e->has_failed) {
        *why   = e->failure;
        status = why->status;
    } else if (!g->has_shrunk) {
        status = why_set(why, PEN_TIMED_OUT,
                         "pen_group_shrink: some survivors of the group did not call it in time");
    } else if (g->shrink_why.status != PEN_OK) {
        *why   = g->shrink_why;
        status = why->status;
    }
    if (status != PEN_OK) g->has_shrunk = false; /* the program may try again */
    pthread_mutex_unlock(&e->lock);
    return status;
}

static pen_status ask_for_survivors(coll_engine *e, pen_group *g, pen_error *why)
{
    int *alive = malloc((size_t)g->size * sizeof *alive);
    int n      = 0;
    if (alive == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a group of %d", g->size);
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < g->size; i++)
        if (!e->is_lost[g->ranks[i]]) alive[n++] = g->ranks[i];
    free(g->survivors);
    g->survivors  = NULL;
    g->has_shrunk = false;
    pthread_mutex_unlock(&e->lock);
    e->job.shrink(e->user, g->id, alive, n);
    free(alive);
    return PEN_OK;
}

pen_status engine_shrink(pen_group *g, uint64_t patience_ms, pen_group **out, pen_error *why)
{
    coll_engine *e    = g->engine;
    pen_status status = PEN_OK;
    if (g->size == 1) return group_create(e, group_child_id(g, g->ranks, 1), g->ranks, 1, out, why);
    if (e->job.shrink == NULL)
        return why_set(
            why, PEN_UNSUPPORTED,
            "pen_group_shrink: this job has no scheduler, which survivors need to agree");
    status = ask_for_survivors(e, g, why);
    if (status == PEN_OK) status = await_survivors(e, g, patience_ms, why);
    if (status != PEN_OK) return status;
    return group_create(e, g->successor, g->survivors, g->n_survivors, out, why);
}
