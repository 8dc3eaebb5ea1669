/* engine_begin.c - how a call begins: checked, numbered, queued, and left to its driver, which is whoever waits. */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/clock.h"
#include "common/base/why.h"
#include "common/containers/list.h"
#include "common/trace/trace.h"

#include <stdlib.h>
#include <string.h>

void engine_call_fill(engine_call *c, pen_group *g, const coll_call *call, uint64_t patience_ms)
{
    const coll_engine *e = g->engine;
    memset(c, 0, offsetof(engine_call, why));
    c->g        = g;
    c->call     = *call;
    c->begun_ms = clock_ms(&clock_real);
    c->begun_ns = trace_begin();
    c->since_ns = stat_begin(e->setup.stats);
    /* A copy: the program's label may be gone when a sentence needs it. */
    const char *label = call->label != NULL ? call->label : "";
    const size_t n    = strnlen(label, sizeof c->label - 1);
    memcpy(c->label, label, n);
    c->label[n]    = '\0';
    c->call.label  = c->label;
    c->deadline_ms = patience_ms > 0 ? c->begun_ms + patience_ms : 0;
    c->warn_at_ms  = c->begun_ms + e->warn_ms;
    c->tell_at_ms  = c->begun_ms + engine_tell_after(e, 0);
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
    pen_group *g      = c->g;
    coll_engine *e    = g->engine;
    pen_status status = engine_refuse(e, g, why);
    if (status == PEN_OK && c->done != NULL && g->size > 1) status = engine_thread_start(e, why);
    if (status != PEN_OK) return status;
    c->seq = ++g->seq;
    LIST_APPEND(g->head, c);
    c->entry = write_down(e, c);
    return PEN_OK;
}

static pen_status check_engine(const pen_group *g, const coll_call *call, pen_error *why)
{
    if (g->engine != NULL) return PEN_OK;
    return why_set(why, PEN_WRONG_STATE, "%s: the job has not begun", coll_kind_name(call->kind));
}

/* ---- for the SDK itself ---------------------------------------------------------------------- */
static bool copy_counts(const size_t *from, int n, size_t **to)
{
    if (from == NULL) return true;
    *to = malloc((size_t)n * sizeof **to);
    if (*to != NULL) memcpy(*to, from, (size_t)n * sizeof **to);
    return *to != NULL;
}

/* A group of one never waits: its calls end before this returns. */
static void run_alone(coll_engine *e, pen_group *g)
{
    while (g->head != NULL) {
        if (g->is_driven)
            pthread_cond_wait(&e->ended, &e->lock);
        else
            engine_drive(e, g, NULL);
    }
}

pen_status coll_submit(pen_group *g, const coll_call *call, uint64_t patience_ms, coll_done_fn done,
                       void *user, pen_error *why)
{
    coll_engine *e    = g->engine;
    pen_status status = check_engine(g, call, why);
    if (status != PEN_OK) return status;
    engine_call *c = aligned_alloc(64, sizeof *c);
    if (c == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for another call");
    engine_call_fill(c, g, call, patience_ms);
    c->done = done;
    c->user = user;
    if (!copy_counts(call->counts, g->size, &c->counts) ||
        !copy_counts(call->out_counts, g->size, &c->out_counts))
        status = why_set(why, PEN_NO_MEMORY, "no memory for another call");
    c->call.counts     = c->counts;
    c->call.out_counts = c->out_counts;
    pthread_mutex_lock(&e->lock);
    if (status == PEN_OK) status = engine_call_begin(c, why);
    if (status == PEN_OK && g->size == 1) run_alone(e, g);
    pthread_mutex_unlock(&e->lock);
    if (status != PEN_OK)
        engine_call_free(c);
    else if (g->size == 1)
        engine_notify(e);
    else
        engine_wake(e);
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

pen_status engine_run(pen_group *g, const coll_call *call, uint64_t patience_ms, pen_error *why)
{
    engine_call c;
    coll_engine *e    = g->engine;
    pen_status status = check_engine(g, call, why);
    if (status != PEN_OK) return status;
    engine_call_fill(&c, g, call, patience_ms);
    pthread_mutex_lock(&e->lock);
    status = engine_call_begin(&c, why);
    if (status == PEN_OK) {
        g->waiters++;
        while (!c.has_ended) attend_once(e, &g, 1, &c.has_ended, NULL);
        leave(e, g);
        status = c.status;
        if (status != PEN_OK) *why = c.why;
    }
    pthread_mutex_unlock(&e->lock);
    return status;
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
