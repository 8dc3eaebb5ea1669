/* engine_fault.c - how calls and groups fail. */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/why.h"

#include <stdlib.h>
#include <string.h>

/* ---- one group ------------------------------------------------------------------------------- */
/* Kernels that wait for other members end, and those that read the word learn of the failure.  A kernel may write why it
 * ended at the same time: both are nonzero. */
static void stop_kernels(device_stop *stop)
{
    __atomic_store_n(&stop->abort, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&stop->result, DEVICE_FLAG_ABORTED, __ATOMIC_RELEASE);
}

void engine_group_fail(pen_group *g, const pen_error *why, bool names_call)
{
    if (g->has_failed) return;
    g->failure    = *why;
    g->names_call = names_call && g->head != NULL;
    g->has_failed = true;
    if (g->stop != NULL) stop_kernels(g->stop);
}

void engine_stop_free(pen_group *g)
{
    if (g->stop != NULL) g->stop_ops->host_free(g->stop);
    g->stop = NULL;
}

/* Outside of enter(), memory of the host belongs to the first device: so it is made inside. */
static device_stop *make_stop(const device_ops *ops, int device, pen_error *why)
{
    if (ops->enter(device, why) != PEN_OK) return NULL;
    device_stop *stop = ops->host_alloc(sizeof *stop, why);
    ops->leave();
    return stop;
}

pen_status coll_stop_word(pen_group *g, const device_ops *ops, int device, const uint32_t **word,
                          pen_error *why)
{
    if (g->engine == NULL) return why_set(why, PEN_WRONG_STATE, "the job has not begun");
    pthread_mutex_lock(&g->engine->lock);
    const bool is_there = g->stop != NULL;
    pthread_mutex_unlock(&g->engine->lock);
    device_stop *made = is_there ? NULL : make_stop(ops, device, why);
    if (!is_there && made == NULL) return PEN_NO_MEMORY;
    pthread_mutex_lock(&g->engine->lock);
    if (g->stop == NULL) {
        g->stop     = made;
        g->stop_ops = ops;
        made        = NULL;
        if (g->has_failed) stop_kernels(g->stop);
    }
    pthread_mutex_unlock(&g->engine->lock);
    if (made != NULL) ops->host_free(made); /* another thread was quicker */
    *word = &g->stop->result;
    if (g->stop_ops == ops) return PEN_OK;
    return why_set(why, PEN_UNSUPPORTED, "the calls of a group use one kind of device: %s, not %s",
                   g->stop_ops->name, ops->name);
}

pen_status engine_refuse(const coll_engine *e, const pen_group *g, pen_error *why)
{
    if (e->has_failed) *why = e->failure;
    if (g->has_failed) *why = g->failure;
    return e->has_failed || g->has_failed ? why->status : PEN_OK;
}

pen_status coll_failure(pen_group *g, pen_error *why)
{
    coll_engine *e = g->engine;
    if (e == NULL) return PEN_OK; /* the job has not begun */
    pthread_mutex_lock(&e->lock);
    const pen_status status = engine_refuse(e, g, why);
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* ---- events of the job, on "pen-io" ---------------------------------------------------------- */
static bool has_member(const pen_group *g, int rank)
{
    for (int i = 0; i < g->size; i++)
        if (g->ranks[i] == rank) return true;
    return false;
}

void engine_group_inherit(coll_engine *e, pen_group *g)
{
    pen_error why;
    for (int i = 0; i < g->size && !g->has_failed; i++) {
        const int rank = g->ranks[i];
        if (rank >= e->n_members || !e->is_lost[rank]) continue;
        why_set(&why, PEN_PEER_LOST, "rank %d is gone", rank);
        engine_group_fail(g, e->loss != NULL ? &e->loss[rank] : &why, true);
    }
}

void coll_engine_lost(coll_engine *e, int rank, const pen_error *why)
{
    pthread_mutex_lock(&e->lock);
    if (rank >= 0 && rank < e->n_members) {
        if (e->loss == NULL) e->loss = calloc((size_t)e->n_members, sizeof *e->loss);
        if (e->loss != NULL && !e->is_lost[rank]) e->loss[rank] = *why;
        e->is_lost[rank] = true;
    }
    for (int i = 0; i < e->n_groups; i++)
        if (has_member(e->group[i], rank)) engine_group_fail(e->group[i], why, true);
    pthread_mutex_unlock(&e->lock);
    if (e->mesh != NULL) {
        pthread_mutex_lock(&e->mesh_lock);
        mesh_lost(e->mesh, rank);
        pthread_mutex_unlock(&e->mesh_lock);
    }
    engine_wake(e);
}

void coll_engine_report_change(coll_engine *e, uint64_t group, const pen_error *why)
{
    if (e->job.fault != NULL) e->job.fault(e->user, group, 0, NULL, 0, why);
}

void coll_engine_fault(coll_engine *e, uint64_t group, uint64_t call, const pen_error *why)
{
    (void)call; /* the sentence names it; all calls of a failed group end */
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < e->n_groups; i++)
        if (e->group[i]->id == group) engine_group_fail(e->group[i], why, false);
    pthread_mutex_unlock(&e->lock);
    engine_wake(e);
}

void coll_engine_fail(coll_engine *e, const pen_error *why)
{
    pen_group *world = *e->setup.world;
    pthread_mutex_lock(&e->lock);
    if (!e->has_failed) {
        e->failure    = *why;
        e->has_failed = true;
    }
    if (world != NULL && world->engine == NULL) world->engine = e; /* its calls tell why */
    for (int i = 0; i < e->n_groups; i++) engine_group_fail(e->group[i], why, false);
    pthread_mutex_unlock(&e->lock);
    engine_wake(e);
}
