/* engine_drive.c - calls are driven by one thread at a time, waited for, and end.
 *
 * DESIGN
 * A turn of a driver: under the lock it looks what is to do; without it, it advances the oldest call (engine_call.c);
 * under it again, it records what has ended.  Nothing else works on calls, and the lock is released nowhere else but to
 * sleep.
 */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/why.h"
#include "common/containers/list.h"
#include "common/trace/trace.h"
#include "proto/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- ending ---------------------------------------------------------------------------------- */
static void trace_call(const engine_call *c)
{
    char name[TRACE_NAME_BYTES];
    if (c->begun_ns == 0) return;
    snprintf(name, sizeof name, "%.20s%s%.40s", coll_kind_name(c->call.kind),
             c->label[0] != '\0' ? " " : "", c->label);
    trace_span(TRACE_REDUCE, c->begun_ns,
               &(trace_note){.bytes = c->call.n * plan_dtype_bytes(c->call.dtype), .label = name});
}

static void finish(coll_engine *e, engine_call *c, pen_status status, const pen_error *why)
{
    LIST_REMOVE(c->g->head, c);
    c->status = status;
    if (why != NULL) c->why = *why;
    recorder_end(&e->record, c->entry, status, clock_ms(&clock_real));
    trace_call(c);
    if (status == PEN_OK)
        stat_took(e->setup.stats,
                  device_is_host(c->ops) ? STAT_SPREAD_COLL : STAT_SPREAD_COLL_DEVICE, c->since_ns);
    c->has_ended = true;
    if (c->done != NULL) LIST_APPEND(e->over, c);
}

void engine_call_free(engine_call *c)
{
    free(c->counts);
    free(c->out_counts);
    free(c);
}

void engine_notify(coll_engine *e)
{
    pthread_mutex_lock(&e->lock);
    engine_call *over = e->over;
    e->over           = NULL;
    pthread_mutex_unlock(&e->lock);
    LIST_EACH(c, over) {
        c->done(c->user, c->status, c->status != PEN_OK ? &c->why : NULL);
        engine_call_free(c);
    }
}

/* ---- a turn ----------------------------------------------------------------------------------- */
engine_call *engine_find_followed(const pen_group *g, const engine_follower *f)
{
    LIST_EACH(c, g->head)
        if (f != NULL && c->user == f->user && c->done != NULL) return c;
    return NULL;
}

/* The call with the first deadline, which also ends the one in progress; NULL: none has one. */
static const engine_call *find_due(const pen_group *g)
{
    const engine_call *due = NULL;
    LIST_EACH(c, g->head)
        if (c->deadline_ms != 0 && (due == NULL || c->deadline_ms < due->deadline_ms)) due = c;
    return due;
}

static void say_nothing(void *user, pen_status status, const pen_error *why)
{
    (void)user, (void)status, (void)why;
}

/* All calls of a failed group end with its sentence. */
static void end_all(coll_engine *e, pen_group *g)
{
    if (g->names_call && g->head != NULL) {
        char name[CALL_NAME_BYTES];
        const size_t at = strlen(g->failure.text);
        engine_call_name(g->head, name);
        snprintf(g->failure.text + at, sizeof g->failure.text - at, "; in %s", name);
        g->names_call = false;
    }
    while (g->head != NULL) finish(e, g->head, g->failure.status, &g->failure);
}

bool engine_drive(coll_engine *e, pen_group *g, engine_follower *f)
{
    engine_call *c = g->head, *followed = engine_find_followed(g, f);
    const bool has_failed  = g->has_failed;
    const bool stops       = has_failed && g->device != NULL && !g->device_is_stopped;
    const engine_call *due = find_due(g);
    char *newest =
        has_failed && c != NULL
            ? recorder_json(&e->record, e->rank, clock_ms(&clock_real), ENGINE_LOGGED_CALLS)
            : NULL;
    bool did     = true;
    g->is_driven = true;
    pthread_mutex_unlock(&e->lock);

    /* The calls before a failure, with log_level=info. */
    char *rest;
    for (char *line = newest != NULL ? strtok_r(newest, "\n", &rest) : NULL; line != NULL;
         line       = strtok_r(NULL, "\n", &rest))
        log_info("%s", line);
    free(newest);
    if (has_failed && c != NULL) engine_call_give_up(c);
    if (!has_failed) did = engine_call_advance(c, due);
    if (!has_failed && followed != NULL)
        f->status = engine_call_follow(followed, f->stream, f->why);
    if (stops)
        device_team_stop(
            g->device); /* calls that ended in stream order may wait there for a lost member */

    pthread_mutex_lock(&e->lock);
    if (followed != NULL && f->status == PEN_OK) {
        followed->done = say_nothing;
        followed->user = NULL; /* its request ends now, and may be that of a later call */
    }
    if (c != NULL && c->state == CALL_FAILED) engine_group_fail(g, &c->why, false);
    if (c != NULL && c->state == CALL_ENDED) finish(e, c, PEN_OK, NULL);
    if (has_failed) end_all(e, g);
    if (stops) g->device_is_stopped = true;
    did |= g->has_rung;
    g->has_rung  = false;
    g->idle_ns   = did ? 0 : g->idle_ns != 0 ? g->idle_ns : clock_ns(&clock_real);
    g->is_driven = false;
    pthread_cond_broadcast(&e->ended);
    return did;
}

bool engine_must_drive(const pen_group *g)
{
    return g->head != NULL || (g->has_failed && g->device != NULL && !g->device_is_stopped);
}

void engine_add_links(const pen_group *g, engine_links *links)
{
    const engine_call *c = g->head;
    const bool on_mesh =
        g->carrier == GROUP_WIRE || (g->carrier == GROUP_HIER && hier_is_on_mesh(g->hier));
    links->wire |= on_mesh;
    links->node |= !on_mesh;
    if (g->idle_ns > links->idle_ns) links->idle_ns = g->idle_ns;
    if (c == NULL ||
        (c->path != &coll_path_device && c->path != &coll_path_self_device && !c->call.on_device))
        return;
    links->polled = true;
}
