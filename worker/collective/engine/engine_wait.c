/* engine_wait.c - a thread of the program that waits drives its group meanwhile. */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/clock.h"

/* With the lock held: one turn of a waiting thread.  It drives the group, or sleeps while another thread does. */
static void attend_once(coll_engine *e, pen_group *g, const bool *has_ended, engine_follower *f)
{
    engine_links links = {.may_spin = true};
    if (g->is_driven) {
        pthread_cond_wait(&e->ended, &e->lock);
        return;
    }
    const engine_seen seen = engine_see(e);
    const bool did         = engine_drive(e, g, f) || (f != NULL && f->status != PEN_AGAIN);
    if (e->over == NULL && (did || *has_ended)) return;
    engine_add_links(g, &links);
    pthread_mutex_unlock(&e->lock);
    engine_notify(e);
    if (!did) engine_nap(e, seen, links);
    pthread_mutex_lock(&e->lock);
}

static void leave(coll_engine *e, pen_group *g)
{
    g->waiters--;
    if (g->head != NULL && g->waiters == 0) pthread_cond_broadcast(&e->work);
    pthread_mutex_unlock(&e->lock);
}

pen_status engine_run(pen_group *g, const coll_call *call, uint64_t deadline_ms, pen_error *why)
{
    engine_call c;
    engine_call_fill(&c, g, call, deadline_ms);
    if (engine_call_begin(&c, why) != PEN_OK) return why->status;
    coll_engine *e = g->engine;
    pthread_mutex_lock(&e->lock);
    g->waiters++;
    while (!c.has_ended) attend_once(e, g, &c.has_ended, NULL);
    leave(e, g);
    if (c.status != PEN_OK) *why = c.why;
    return c.status;
}

bool engine_attend(pen_group *g, const atomic_ullong *news, unsigned long long seen,
                   uint64_t until_ms)
{
    coll_engine *e   = g->engine;
    const bool never = false;
    pthread_mutex_lock(&e->lock);
    g->waiters++;
    while (atomic_load(news) == seen && g->head != NULL &&
           (until_ms == 0 || clock_ms(&clock_real) < until_ms))
        attend_once(e, g, &never, NULL);
    const bool has_more = g->head != NULL;
    leave(e, g);
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
        attend_once(e, g, &never, &f);
    leave(e, g);
    return f.status;
}
