/* engine_message.c - point to point, on every group: the mesh carries it. */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/clock.h"
#include "common/base/why.h"
#include "common/containers/list.h"
#include "worker/collective/engine/self_message.h"

#include <stdlib.h>
#include <string.h>

static pen_status begin(pen_group *g, const engine_transfer *t, mesh_message **message,
                        pen_error *why)
{
    coll_engine *e = g->engine;
    pthread_mutex_lock(&e->lock);
    pen_status status = engine_refuse(e, g, why);
    pthread_mutex_unlock(&e->lock);
    if (status != PEN_OK) return status;
    pthread_mutex_lock(&e->mesh_lock);
    status =
        t->is_send
            ? mesh_send(g->wire, t->peer, t->tag, t->data, t->n, t->dtype, t->label, message, why)
            : mesh_recv(g->wire, t->peer, t->tag, t->data, t->n, t->dtype, t->label, message, why);
    pthread_mutex_unlock(&e->mesh_lock);
    return status;
}

static engine_message filled(pen_group *g, uint64_t deadline_ms)
{
    return (engine_message){.g = g, .deadline_ms = deadline_ms, .begun_ms = clock_ms(&clock_real)};
}

pen_status engine_transfer_run(pen_group *g, const engine_transfer *t, uint64_t deadline_ms,
                               mesh_result *result, pen_error *why)
{
    if (g->engine == NULL) return why_set(why, PEN_WRONG_STATE, "the job has not begun");
    if (g->size == 1) return self_transfer_run(g->engine, t, deadline_ms, result, why);
    engine_message m  = filled(g, deadline_ms);
    pen_status status = begin(g, t, &m.message, why);
    if (status != PEN_OK) return status;
    for (;;) {
        const engine_seen seen = engine_see(g->engine);
        const bool did         = engine_mesh_advance(g->engine);
        if (engine_message_look(&m)) break;
        if (!did) engine_nap(g->engine, seen, (engine_links){.wire = true, .may_spin = true});
    }
    *result = m.result;
    if (m.result.status != PEN_OK) *why = m.result.why;
    return m.result.status;
}

pen_status engine_transfer_begin(pen_group *g, const engine_transfer *t, uint64_t deadline_ms,
                                 void (*done)(void *user, const mesh_result *result), void *user,
                                 pen_error *why)
{
    coll_engine *e = g->engine;
    if (e == NULL) return why_set(why, PEN_WRONG_STATE, "the job has not begun");
    if (g->size == 1) return self_transfer_begin(e, t, done, user, why);
    engine_message *m = malloc(sizeof *m);
    if (m == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for another message");
    *m                = filled(g, deadline_ms);
    m->done           = done;
    m->user           = user;
    pen_status status = begin(g, t, &m->message, why);
    if (status != PEN_OK) {
        free(m);
        return status;
    }
    pthread_mutex_lock(&e->lock);
    status = engine_thread_start(e, why);
    if (status == PEN_OK) LIST_APPEND(e->messages, m); /* oldest first */
    pthread_mutex_unlock(&e->lock);
    if (status != PEN_OK) {
        pthread_mutex_lock(&e->mesh_lock);
        mesh_cancel(m->message);
        pthread_mutex_unlock(&e->mesh_lock);
        free(m);
        return status;
    }
    engine_wake(e);
    return PEN_OK;
}
