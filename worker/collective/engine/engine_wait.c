/* engine_wait.c - a thread that waits drives the groups of its calls meanwhile. */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/clock.h"

/* With the lock held: one turn of a waiting thread.  It drives the groups, or sleeps while other threads do. */
static void attend_once(coll_engine *e, pen_group *const *group, int n, const bool *has_ended,
                        engine_follower *f)
{
    const engine_seen seen = engine_see(e);
    engine_links links     = {.may_spin = true};
    bool is_driver = false, did = false;
    for (int i = 0; i < n; i++) {
        if (group[i]->head == NULL || group[i]->is_driven) continue;
        is_driver = true;
        did |= engine_drive(e, group[i], f) || (f != NULL && f->status != PEN_AGAIN);
        engine_add_links(group[i], &links);
    }
    if (!is_driver) pthread_cond_wait(&e->ended, &e->lock);
    if (!is_driver || (e->over == NULL && (did || *has_ended))) return;
    pthread_mutex_unlock(&e->lock);
    engine_notify(e);
    if (!did) engine_nap(e, seen, links);
    pthread_mutex_lock(&e->lock);
}

static void leave(coll_engine *e, pen_group *g)
{
    g->waiters--;
    if (g->head != NULL && g->waiters == 0) pthread_cond_broadcast(&e->work);
}

pen_status engine_run(pen_group *g, const coll_call *call, uint64_t deadline_ms, pen_error *why)
{
    engine_call c;
    engine_call_fill(&c, g, call, deadline_ms);
    if (engine_call_begin(&c, why) != PEN_OK) return why->status;
    coll_engine *e = g->engine;
    pthread_mutex_lock(&e->lock);
    g->waiters++;
    while (!c.has_ended) attend_once(e, &g, 1, &c.has_ended, NULL);
    leave(e, g);
    pthread_mutex_unlock(&e->lock);
    if (c.status != PEN_OK) *why = c.why;
    return c.status;
}

static bool have_calls(pen_group *const *group, int n)
{
    for (int i = 0; i < n; i++)
        if (group[i]->head != NULL) return true;
    return false;
}

bool coll_attend(pen_group *const *group, int n, const atomic_ullong *news, unsigned long long seen,
                 uint64_t until_ms)
{
    coll_engine *e   = group[0]->engine;
    const bool never = false;
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < n; i++) group[i]->waiters++;
    while (atomic_load(news) == seen && have_calls(group, n) &&
           (until_ms == 0 || clock_ms(&clock_real) < until_ms))
        attend_once(e, group, n, &never, NULL);
    const bool has_more = have_calls(group, n);
    for (int i = 0; i < n; i++) leave(e, group[i]);
    pthread_mutex_unlock(&e->lock);
    return has_more;
}

pen_status engine_follow(pen_group *g, const void *user, device_stream stream, pen_error *why)
{
    coll_engine *e    = g->engine;
    engine_follower f = {user, stream, PEN_AGAIN, why};
    const bool never  = false;
    pthread_mutex_lock(&e->lock);
    g->waiters++;
    while (f.status == PEN_AGAIN && !g->has_failed && engine_find_followed(g, &f) != NULL)
        attend_once(e, &g, 1, &never, &f);
    leave(e, g);
    pthread_mutex_unlock(&e->lock);
    return f.status;
}
