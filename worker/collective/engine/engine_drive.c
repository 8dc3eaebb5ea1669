/* engine_drive.c - calls in progress: driven, waited for, ended, reported. */
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

static uint64_t now_ms(void)
{
    return clock_ms(&clock_real);
}

/* ---- names ----------------------------------------------------------------------------------- */
static void write_name(const engine_call *c, char *text, size_t size)
{
    const char *kind = coll_kind_name(c->call.kind);
    if (c->label[0] != '\0')
        snprintf(text, size, "%s '%s' (call %llu)", kind, c->label, (unsigned long long)c->seq);
    else
        snprintf(text, size, "%s (call %llu)", kind, (unsigned long long)c->seq);
}

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
    recorder_end(&e->record, c->entry, status, now_ms());
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

/* ---- driving --------------------------------------------------------------------------------- */
static bool is_in_path(const engine_call *c)
{
    return c->state == CALL_RUNNING || c->state == CALL_AGREEING;
}

static void lock_path(const engine_call *c)
{
    if (c->on_mesh) pthread_mutex_lock(&c->g->engine->mesh_lock);
}

static void unlock_path(const engine_call *c)
{
    if (c->on_mesh) pthread_mutex_unlock(&c->g->engine->mesh_lock);
}

static pen_status path_start(engine_call *c, const coll_call *call, pen_error *why)
{
    lock_path(c);
    pen_status status = c->path->start(c->team, c->op, call, c->path_seq, why);
    unlock_path(c);
    return status;
}

static coll_state path_advance(engine_call *c, bool *did, pen_error *why)
{
    coll_engine *e = c->g->engine;
    lock_path(c);
    if (c->on_mesh) *did = mesh_advance(e->mesh);
    coll_state state = c->path->advance(c->op, why);
    unlock_path(c);
    if (*did) engine_pass_on(e);
    return state;
}

static void path_abort(engine_call *c)
{
    if (is_in_path(c)) {
        lock_path(c);
        c->path->abort(c->op);
        unlock_path(c);
    }
    engine_stage_end(c);
}

static int path_missing(engine_call *c, int *ranks, int cap)
{
    if (!is_in_path(c)) return 0;
    lock_path(c);
    const int n = c->path->missing(c->op, ranks, cap);
    unlock_path(c);
    for (int i = 0; i < n; i++) ranks[i] = c->g->ranks[ranks[i]];
    return n;
}

enum { MISSING_MAX = 32, SENTENCE_NAMES = 8 };

static void send_overdue(const coll_engine *e, const engine_call *c, const int *missing, int n,
                         uint64_t waited_ms, pen_error *why)
{
    char name[160], who[320] = "";
    size_t at = 0;
    write_name(c, name, sizeof name);
    for (int i = 0; i < n && i < SENTENCE_NAMES && at < sizeof who; i++)
        at += (size_t)snprintf(who + at, sizeof who - at, "%srank %d (%.40s)", i > 0 ? ", " : "",
                               missing[i], e->host != NULL ? e->host[missing[i]] : "unknown");
    if (n > SENTENCE_NAMES && at < sizeof who) snprintf(who + at, sizeof who - at, " and others");
    why_set(why, PEN_TIMED_OUT, "%s waited %.4g s for %s", name, (double)waited_ms / 1000,
            n > 0 ? who : "what others send");
    why_culprit(why, PEN_WORKER, n > 0 ? missing[0] : -1, -1, c->label);
    why->missing_n = n;
    memcpy(why->missing, missing, (size_t)n * sizeof *missing);
}

static void time_out(coll_engine *e, engine_call *c, uint64_t patience_ms)
{
    int missing[MISSING_MAX];
    pen_error why;
    pthread_mutex_unlock(&e->lock);
    const int n = path_missing(c, missing, MISSING_MAX);
    path_abort(c);
    pthread_mutex_lock(&e->lock);
    send_overdue(e, c, missing, n, patience_ms, &why);
    engine_local_failure(e, c, &why);
}

static void warn(coll_engine *e, engine_call *c, uint64_t now, bool is_quiet)
{
    int missing[MISSING_MAX];
    char name[160];
    const uint64_t waited = now - c->begun_ms;
    if (!is_quiet) c->warn_at_ms = now + waited; /* intervals double */
    c->tell_at_ms = now + engine_tell_after(e, waited);
    if (e->job.overdue == NULL) return;
    write_name(c, name, sizeof name);
    pthread_mutex_unlock(&e->lock);
    const int n = path_missing(c, missing, MISSING_MAX);
    e->job.overdue(e->user, name, waited, missing, n, is_quiet);
    pthread_mutex_lock(&e->lock);
}

/* A deadline of a queued call also ends the call in progress. */
static bool check_time(coll_engine *e, engine_call *c)
{
    const uint64_t now = now_ms();
    for (const engine_call *q = c; q != NULL; q = q->next) {
        if (q->deadline_ms == 0 || now < q->deadline_ms) continue;
        time_out(e, c, q->deadline_ms - q->begun_ms);
        return true;
    }
    if (e->warn_ms > 0 && now >= c->warn_at_ms)
        warn(e, c, now, false);
    else if (now >= c->tell_at_ms)
        warn(e, c, now, true);
    return false;
}

/* The others' calls may use the other kind of memory, and therefore another path. */
static bool check_memory(coll_engine *e, engine_call *c)
{
    pen_error why;
    if (c->state != CALL_RUNNING || engine_compare_memory(c, &why) == PEN_OK) return false;
    pthread_mutex_unlock(&e->lock);
    path_abort(c);
    pthread_mutex_lock(&e->lock);
    c->is_one_sided = true;
    engine_local_failure(e, c, &why);
    return true;
}

/* ---- the stages of a call: when one is DONE, the next begins; without the lock ---------------- */
static coll_state run(engine_call *c, bool *did, pen_error *why)
{
    coll_state state = path_advance(c, did, why);
    if (state == COLL_FAILED && engine_goes_round_device(c, why)) {
        memset(c->op, 0, sizeof c->op);
        *did = true;
        return COLL_RUNNING;
    }
    if (state == COLL_FAILED && engine_goes_round_node(c, why))
        return path_start(c, &c->call, why) == PEN_OK ? COLL_RUNNING : COLL_FAILED;
    if (state != COLL_DONE || c->stage == NULL) return state;
    if (engine_stage_return(c, why) != PEN_OK) return COLL_FAILED;
    if (c->call.in_stream_order) return COLL_DONE;
    c->state = CALL_RETURNING;
    return engine_stage_state(c, why);
}

static coll_state start(engine_call *c, bool *did, pen_error *why)
{
    c->state = CALL_RUNNING;
    return path_start(c, &c->call, why) == PEN_OK ? run(c, did, why) : COLL_FAILED;
}

static coll_state stage(engine_call *c, bool *did, pen_error *why)
{
    coll_state state = engine_stage_state(c, why);
    return state == COLL_DONE ? start(c, did, why) : state;
}

static coll_state begin(engine_call *c, bool *did, pen_error *why)
{
    return c->state == CALL_STAGING ? stage(c, did, why) : start(c, did, why);
}

static coll_state agree(engine_call *c, bool *did, pen_error *why)
{
    coll_state state = path_advance(c, did, why);
    if (state == COLL_FAILED && engine_goes_round_node(c, why))
        return path_start(c, &c->vote, why) == PEN_OK ? COLL_RUNNING : COLL_FAILED;
    if (state != COLL_DONE) return state;
    memset(c->op, 0, sizeof c->op);
    return engine_settle_device(c, why) == PEN_OK ? begin(c, did, why) : COLL_FAILED;
}

static coll_state choose(engine_call *c, bool *did, pen_error *why)
{
    if (engine_choose_path(c, why) != PEN_OK) return COLL_FAILED;
    if (c->state != CALL_AGREEING) return begin(c, did, why);
    return path_start(c, &c->vote, why) == PEN_OK ? agree(c, did, why) : COLL_FAILED;
}

static coll_state go_on(engine_call *c, bool *did, pen_error *why)
{
    switch (c->state) {
    case CALL_QUEUED: return choose(c, did, why);
    case CALL_AGREEING: return agree(c, did, why);
    case CALL_STAGING: return stage(c, did, why);
    case CALL_RUNNING: return run(c, did, why);
    default: return engine_stage_state(c, why);
    }
}

static bool step(coll_engine *e, engine_call *c)
{
    pen_error why;
    bool did = false;
    pthread_mutex_unlock(&e->lock);
    const coll_state state = go_on(c, &did, &why);
    /* A peer may have given up for this reason, which is the better one. */
    if (state == COLL_FAILED && why.status == PEN_PEER_LOST &&
        engine_compare_memory(c, &why) != PEN_OK)
        c->is_one_sided = true;
    if (state != COLL_RUNNING) engine_stage_end(c);
    pthread_mutex_lock(&e->lock);
    if (state == COLL_RUNNING) return check_memory(e, c) || check_time(e, c) || did;
    if (state == COLL_DONE)
        finish(e, c, PEN_OK, NULL);
    else
        engine_local_failure(e, c, &why);
    return true;
}

/* The calls before a failure, logged with log_level=info. */
static void log_newest(coll_engine *e)
{
    char *rest, *text = recorder_json(&e->record, e->rank, now_ms(), ENGINE_LOGGED_CALLS);
    pthread_mutex_unlock(&e->lock);
    for (char *line = text != NULL ? strtok_r(text, "\n", &rest) : NULL; line != NULL;
         line       = strtok_r(NULL, "\n", &rest))
        log_info("%s", line);
    free(text);
    pthread_mutex_lock(&e->lock);
}

/* A call that has all it needs succeeds, even if its group has failed meanwhile. */
static void end_first(coll_engine *e, engine_call *c)
{
    pen_error why;
    bool did = false;
    pthread_mutex_unlock(&e->lock);
    const coll_state state =
        c->state == CALL_RUNNING && c->stage == NULL ? path_advance(c, &did, &why) : COLL_RUNNING;
    if (state == COLL_RUNNING) path_abort(c);
    pthread_mutex_lock(&e->lock);
    if (state == COLL_DONE) finish(e, c, PEN_OK, NULL);
}

/* Ends all queued calls with the group's sentence. */
static void end_all(coll_engine *e, pen_group *g)
{
    if (g->head->state != CALL_QUEUED && g->head->state != CALL_FAULTING) end_first(e, g->head);
    engine_call *c = g->head;
    if (c == NULL) return;
    if (g->names_call) {
        char name[160];
        const size_t at = strlen(g->failure.text);
        write_name(c, name, sizeof name);
        snprintf(g->failure.text + at, sizeof g->failure.text - at, "; in %s", name);
        g->names_call = false;
    }
    log_newest(e);
    while ((c = g->head) != NULL) finish(e, c, g->failure.status, &g->failure);
}

/* Calls that ended in stream order may still wait there for a member that is gone. */
static void stop_device(coll_engine *e, pen_group *g)
{
    pthread_mutex_unlock(&e->lock);
    device_team_stop(g->device);
    pthread_mutex_lock(&e->lock);
    g->device_is_stopped = true;
}

bool engine_must_drive(const pen_group *g)
{
    return g->head != NULL || (g->has_failed && g->device != NULL && !g->device_is_stopped);
}

bool engine_drive(coll_engine *e, pen_group *g)
{
    engine_call *c = g->head;
    bool did       = true;
    g->is_driven   = true;
    if (!g->has_failed && c->state == CALL_FAULTING) engine_await_verdict(e, c);
    if (g->has_failed) {
        if (g->head != NULL) end_all(e, g);
        if (g->device != NULL && !g->device_is_stopped) stop_device(e, g);
    } else if (c->state == CALL_FAULTING)
        did = false;
    else
        did = step(e, c);
    g->is_driven = false;
    pthread_cond_broadcast(&e->ended);
    return did;
}

void engine_add_links(const pen_group *g, engine_links *links)
{
    const engine_call *c = g->head;
    const bool on_mesh =
        g->carrier == GROUP_WIRE || (g->carrier == GROUP_HIER && hier_is_on_mesh(g->hier));
    links->wire |= on_mesh;
    links->node |= !on_mesh;
    links->polled |= c != NULL && (c->path == &coll_path_device ||
                                   c->path == &coll_path_self_device || c->call.on_device);
}

/* ---- waiting --------------------------------------------------------------------------------- */
/* With the lock held: one turn of a waiting thread.  It drives the group, or sleeps while another thread does. */
static void attend_once(coll_engine *e, pen_group *g, const bool *has_ended)
{
    engine_links links = {0};
    if (g->is_driven) {
        pthread_cond_wait(&e->ended, &e->lock);
        return;
    }
    const uint32_t seen = e->place != NULL ? node_doorbell(e->place) : 0;
    const bool did      = engine_drive(e, g);
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

pen_status engine_call_wait(engine_call *c, pen_error *why)
{
    pen_group *g   = c->g;
    coll_engine *e = g->engine;
    pthread_mutex_lock(&e->lock);
    g->waiters++;
    while (!c->has_ended) attend_once(e, g, &c->has_ended);
    leave(e, g);
    if (c->status != PEN_OK) *why = c->why;
    return c->status;
}

bool engine_attend(pen_group *g, const atomic_ullong *news, unsigned long long seen,
                   uint64_t until_ms)
{
    coll_engine *e   = g->engine;
    const bool never = false;
    pthread_mutex_lock(&e->lock);
    g->waiters++;
    while (atomic_load(news) == seen && g->head != NULL && (until_ms == 0 || now_ms() < until_ms))
        attend_once(e, g, &never);
    const bool has_more = g->head != NULL;
    leave(e, g);
    return has_more;
}

/* ---- streams that wait instead of the host ----------------------------------------------------- */
static void say_nothing(void *user, pen_status status, const pen_error *why)
{
    (void)user, (void)status, (void)why;
}

static engine_call *find_call(const pen_group *g, const void *user)
{
    LIST_EACH(c, g->head)
        if (c->user == user && c->done != NULL) return c;
    return NULL;
}

static pen_status follow(engine_call *c, device_stream stream, pen_error *why)
{
    if (c->state == CALL_RETURNING) return engine_stage_follow(c, stream, why);
    if (c->state != CALL_RUNNING || c->stage != NULL || c->path->follow == NULL) return PEN_AGAIN;
    return c->path->follow(c->op, stream, why);
}

/* With the lock held, and as the group's driver. */
static pen_status try_to_follow(coll_engine *e, engine_call *c, device_stream stream,
                                pen_error *why)
{
    pen_group *g = c->g;
    g->is_driven = true;
    pthread_mutex_unlock(&e->lock);
    const pen_status status = follow(c, stream, why);
    pthread_mutex_lock(&e->lock);
    g->is_driven = false;
    if (status == PEN_OK) {
        c->done = say_nothing;
        c->user = NULL; /* its request ends now, and may be that of a later call */
    }
    pthread_cond_broadcast(&e->ended);
    return status;
}

pen_status engine_follow(pen_group *g, const void *user, device_stream stream, pen_error *why)
{
    coll_engine *e    = g->engine;
    pen_status status = PEN_AGAIN;
    const bool never  = false;
    engine_call *c;
    pthread_mutex_lock(&e->lock);
    g->waiters++;
    while (status == PEN_AGAIN && !g->has_failed && (c = find_call(g, user)) != NULL) {
        if (!g->is_driven) status = try_to_follow(e, c, stream, why);
        if (status == PEN_AGAIN) attend_once(e, g, &never);
    }
    leave(e, g);
    return status;
}
