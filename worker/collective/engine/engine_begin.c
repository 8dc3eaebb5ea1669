/* engine_begin.c - how a call begins: checked, numbered, queued, and left to its driver, which is whoever waits. */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/clock.h"
#include "common/base/why.h"
#include "common/containers/list.h"
#include "common/trace/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t now_ms(void)
{
    return clock_ms(&clock_real);
}

void engine_call_fill(engine_call *c, pen_group *g, const coll_call *call, uint64_t deadline_ms)
{
    const coll_engine *e = g->engine; /* NULL: the job has not begun, and beginning is refused */
    memset(c, 0, offsetof(engine_call, why));
    c->g        = g;
    c->call     = *call;
    c->begun_ms = now_ms();
    c->begun_ns = trace_begin();
    c->since_ns = e != NULL ? stat_begin(e->setup.stats) : 0;
    /* A copy: the program's label may be gone when a sentence needs it. */
    snprintf(c->label, sizeof c->label, "%s", call->label != NULL ? call->label : "");
    c->call.label  = c->label;
    c->deadline_ms = deadline_ms;
    c->warn_at_ms  = c->begun_ms + (e != NULL ? e->warn_ms : 0);
    c->tell_at_ms  = c->begun_ms + (e != NULL ? engine_tell_after(e, 0) : 0);
}

static uint64_t write_down(coll_engine *e, const engine_call *c)
{
    recorder_entry entry = {.group    = c->g->id,
                            .seq      = c->seq,
                            .n        = c->call.n,
                            .begun_ms = c->begun_ms,
                            .kind     = (int32_t)c->call.kind,
                            .op       = (int32_t)c->call.op,
                            .dtype    = (int32_t)c->call.dtype,
                            .root     = c->call.root,
                            .size     = c->g->size};
    memcpy(entry.label, c->label, sizeof entry.label);
    return recorder_begin(&e->record, &entry);
}

pen_status engine_call_begin(engine_call *c, pen_error *why)
{
    pen_group *g   = c->g;
    coll_engine *e = g->engine;
    if (e == NULL)
        return why_set(why, PEN_WRONG_STATE, "%s: the job has not begun",
                       coll_kind_name(c->call.kind));
    const bool is_asynchronous = c->done != NULL, is_self = g->size == 1;
    pthread_mutex_lock(&e->lock);
    pen_status status = engine_refuse(e, g, why);
    if (status == PEN_OK && is_asynchronous && !is_self) status = engine_thread_start(e, why);
    if (status == PEN_OK) {
        c->seq = ++g->seq;
        LIST_APPEND(g->head, c);
        c->entry = write_down(e, c);
        if (is_self && is_asynchronous) {
            /* A group of one never waits: its calls end before this returns. */
            while (g->head != NULL) {
                if (g->is_driven)
                    pthread_cond_wait(&e->ended, &e->lock);
                else
                    engine_drive(e, g, NULL);
            }
        }
    }
    pthread_mutex_unlock(&e->lock);
    if (status == PEN_OK && is_asynchronous) {
        if (is_self)
            engine_notify(e);
        else
            engine_wake(e);
    }
    return status;
}

/* ---- for the SDK itself ---------------------------------------------------------------------- */
static bool copy_counts(const size_t *from, int n, size_t **to)
{
    if (from == NULL) return true;
    *to = malloc((size_t)n * sizeof **to);
    if (*to != NULL) memcpy(*to, from, (size_t)n * sizeof **to);
    return *to != NULL;
}

pen_status coll_submit(pen_group *g, const coll_call *call, uint64_t deadline_ms, coll_done_fn done,
                       void *user, pen_error *why)
{
    engine_call *c = aligned_alloc(64, sizeof *c);
    if (c == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for another call");
    engine_call_fill(c, g, call, deadline_ms > 0 ? now_ms() + deadline_ms : 0);
    c->done           = done;
    c->user           = user;
    pen_status status = PEN_OK;
    if (!copy_counts(call->counts, g->size, &c->counts) ||
        !copy_counts(call->out_counts, g->size, &c->out_counts))
        status = why_set(why, PEN_NO_MEMORY, "no memory for another call");
    c->call.counts     = c->counts;
    c->call.out_counts = c->out_counts;
    if (status == PEN_OK) status = engine_call_begin(c, why);
    if (status != PEN_OK) engine_call_free(c);
    return status;
}

/* ---- waiting -------------------------------------------------------------------------------- */
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
