/* engine_thread.c - the thread "pen-coll": calls and messages that no thread waits for. */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/clock.h"
#include "common/base/why.h"
#include "common/containers/list.h"
#include "common/system/fp_env.h"

#include <stdlib.h>
#include <string.h>

/* ---- messages -------------------------------------------------------------------------------- */
/* A message ends by itself, by its deadline or by the failure of its group. */
bool engine_message_look(engine_message *m)
{
    coll_engine *e = m->g->engine;
    pthread_mutex_lock(&e->mesh_lock);
    bool is_over = mesh_test(m->message, &m->result);
    pthread_mutex_unlock(&e->mesh_lock);
    if (is_over) return true;
    const uint64_t now = clock_ms(&clock_real);
    pthread_mutex_lock(&e->lock);
    if (m->g->has_failed) {
        m->result.why = m->g->failure;
        is_over       = true;
    }
    pthread_mutex_unlock(&e->lock);
    if (!is_over && m->deadline_ms != 0 && now >= m->deadline_ms) {
        why_set(&m->result.why, PEN_TIMED_OUT,
                "waited %.3g s for a message: the other side did not take or send it",
                (double)(now - m->begun_ms) / 1000);
        is_over = true;
    }
    if (!is_over) return false;
    m->result.status = m->result.why.status;
    m->result.count  = 0;
    pthread_mutex_lock(&e->mesh_lock);
    mesh_cancel(m->message);
    pthread_mutex_unlock(&e->mesh_lock);
    return true;
}

/* Only "pen-coll" removes from the list; other threads append. */
static bool advance_messages(coll_engine *e)
{
    pthread_mutex_lock(&e->lock);
    engine_message *m = e->messages;
    pthread_mutex_unlock(&e->lock);
    if (m == NULL) return false;
    bool did = engine_mesh_advance(e);
    while (m != NULL) {
        const bool is_over = engine_message_look(m);
        pthread_mutex_lock(&e->lock);
        engine_message *next = m->next;
        if (is_over) LIST_REMOVE(e->messages, m);
        pthread_mutex_unlock(&e->lock);
        if (is_over) {
            m->done(m->user, &m->result);
            free(m);
            did = true;
        }
        m = next;
    }
    return did;
}

/* ---- the thread ------------------------------------------------------------------------------ */
static bool is_unattended(const pen_group *g)
{
    return engine_must_drive(g) && g->waiters == 0 && !g->is_driven;
}

static bool has_work(const coll_engine *e)
{
    for (int i = 0; i < e->n_groups; i++)
        if (is_unattended(e->group[i])) return true;
    return e->messages != NULL || e->over != NULL;
}

static void *run_engine_thread(void *user)
{
    coll_engine *e = user;
    fp_env_set_ours();
    e->setup.begin_thread();
    pthread_mutex_lock(&e->lock);
    while (!e->is_stopping) {
        if (!has_work(e)) {
            pthread_cond_wait(&e->work, &e->lock);
            continue;
        }
        const engine_seen seen = engine_see(e);
        engine_links links     = {.wire = e->messages != NULL};
        bool did               = false;
        for (int i = 0; i < e->n_groups; i++) {
            pen_group *g = e->group[i];
            if (!is_unattended(g)) continue;
            did |= engine_drive(e, g, NULL);
            engine_add_links(g, &links);
        }
        pthread_mutex_unlock(&e->lock);
        did |= advance_messages(e);
        engine_notify(e);
        if (!did) engine_nap(e, seen, links);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

pen_status engine_thread_start(coll_engine *e, pen_error *why)
{
    if (e->has_thread) return PEN_OK;
    int error = pthread_create(&e->thread, NULL, run_engine_thread, e);
    if (error != 0)
        return why_set(why, PEN_NO_MEMORY, "no thread for collectives: %s", strerror(error));
    pthread_setname_np(e->thread, "pen-coll");
    e->has_thread = true;
    return PEN_OK;
}
