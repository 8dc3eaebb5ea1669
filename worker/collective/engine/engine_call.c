/* engine_call.c - the states of a call, in one table.
 *
 * DESIGN
 * A driver (engine_drive.c) advances the group's oldest call, without the engine's lock.  A call stays in a state until
 * what it waits for is there; then it enters the next one, at once.  It ends as CALL_ENDED, or as CALL_FAILED with c->why
 * for the whole group.  Nothing here waits.
 */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/clock.h"
#include "common/base/why.h"

#include <stdio.h>
#include <string.h>

enum { MISSING_MAX = 32, SENTENCE_NAMES = 8 };

static uint64_t now_ms(void)
{
    return clock_ms(&clock_real);
}

/* ---- the path of a call ---------------------------------------------------------------------- */
static void lock_path(const engine_call *c)
{
    if (c->on_mesh) pthread_mutex_lock(&c->g->engine->mesh_lock);
}

static void unlock_path(const engine_call *c)
{
    if (c->on_mesh) pthread_mutex_unlock(&c->g->engine->mesh_lock);
}

static pen_status path_start(engine_call *c, const coll_call *call)
{
    lock_path(c);
    pen_status status = c->path->start(c->team, c->op, call, c->path_seq, &c->why);
    unlock_path(c);
    return status;
}

static bool is_in_path(const engine_call *c)
{
    return c->state == CALL_RUNNING || c->state == CALL_AGREEING;
}

/* RUNNING for a call that is in no path. */
static coll_state path_advance(engine_call *c, bool *did)
{
    coll_engine *e = c->g->engine;
    if (!is_in_path(c)) return COLL_RUNNING;
    lock_path(c);
    const bool has_read    = c->on_mesh && mesh_advance(e->mesh);
    const coll_state state = c->path->advance(c->op, &c->why);
    unlock_path(c);
    if (has_read) engine_pass_on(e);
    *did |= has_read;
    return state;
}

static void path_abort(engine_call *c)
{
    if (!is_in_path(c)) return;
    lock_path(c);
    c->path->abort(c->op);
    unlock_path(c);
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

/* ---- what each state waits for --------------------------------------------------------------- */
/* The calls before it have enqueued their work by now: they do not wait for what this one waits for. */
static call_state choose(engine_call *c, coll_state path)
{
    (void)path;
    const call_state next = engine_choose_path(c);
    for (uint32_t i = 0; i < c->call.n_after; i++)
        if (c->ops->stream_wait(c->call.stream, c->call.after[i], &c->why) != PEN_OK)
            return CALL_FAULTING;
    return next;
}

static pen_status start_vote(engine_call *c)
{
    return path_start(c, &c->vote);
}

static call_state vote(engine_call *c, coll_state path)
{
    if (path == COLL_DONE) return engine_settle_device(c);
    if (path == COLL_FAILED && !(engine_goes_round_node(c) && start_vote(c) == PEN_OK))
        return CALL_FAULTING;
    return CALL_AGREEING;
}

static call_state copied_in(engine_call *c, coll_state path)
{
    (void)path;
    const coll_state state = engine_stage_state(c, &c->why);
    return state == COLL_RUNNING ? CALL_STAGING : state == COLL_DONE ? CALL_RUNNING : CALL_FAULTING;
}

static pen_status copy_in(engine_call *c)
{
    return engine_stage_begin(c, &c->why);
}

static pen_status start(engine_call *c)
{
    return path_start(c, &c->call);
}

static call_state run_path(engine_call *c, coll_state path)
{
    if (path == COLL_DONE) return c->stage != NULL ? CALL_RETURNING : CALL_ENDED;
    if (path == COLL_FAILED && engine_goes_round_device(c)) return CALL_STAGING;
    if (path == COLL_FAILED && !(engine_goes_round_node(c) && start(c) == PEN_OK))
        return CALL_FAULTING;
    if (engine_compare_memory(c, &c->why) == PEN_OK) return CALL_RUNNING;
    path_abort(c); /* the others' calls use the other kind of memory, and perhaps another path */
    c->is_one_sided = true;
    return CALL_FAULTING;
}

static pen_status copy_out(engine_call *c)
{
    return engine_stage_return(c, &c->why);
}

static call_state copied_out(engine_call *c, coll_state path)
{
    (void)path;
    if (c->call.in_stream_order) return CALL_ENDED;
    const coll_state state = engine_stage_state(c, &c->why);
    return state == COLL_RUNNING ? CALL_RETURNING : state == COLL_DONE ? CALL_ENDED : CALL_FAULTING;
}

static pen_status give_stage_back(engine_call *c)
{
    engine_stage_end(c);
    return PEN_OK;
}

/* ---- a failure, until the job has one sentence for it ----------------------------------------- */
/* All members of a small group find the same mismatch; any other failure may look different to other members. */
static bool needs_a_verdict(const engine_call *c)
{
    return c->g->engine->job.fault != NULL && c->g->size > 1 &&
           (c->why.status != PEN_MISMATCH || c->is_one_sided || c->g->size > MESH_DIAL_ALL);
}

static pen_status begin_fault(engine_call *c)
{
    /* A peer that gave up knows why, and reports it to the job itself: its sentence is the better one. */
    const bool is_echo = c->why.status == PEN_PEER_LOST;
    if (is_echo && engine_compare_memory(c, &c->why) != PEN_OK) c->is_one_sided = true;
    engine_stage_end(c);
    c->report_at_ms   = now_ms() + (c->why.status == PEN_PEER_LOST ? ENGINE_ECHO_MS : 0);
    c->fault_until_ms = c->report_at_ms + c->g->engine->verdict_ms;
    return PEN_OK;
}

/* Waits for one lease: a scheduler that is silent for longer counts as gone, and that ends all calls with its own
 * sentence.  A member that stops waiting earlier would end with another sentence than its peers. */
static call_state await_verdict(engine_call *c, coll_state path)
{
    const coll_engine *e = c->g->engine;
    const uint64_t now   = now_ms();
    (void)path;
    if (!needs_a_verdict(c)) return CALL_FAILED;
    if (!c->is_reported && now >= c->report_at_ms) {
        c->is_reported = true;
        e->job.fault(e->user, c->g->id, c->seq, c->why.missing,
                     c->why.missing_n > MISSING_MAX ? MISSING_MAX : c->why.missing_n, &c->why);
    }
    return now >= c->fault_until_ms ? CALL_FAILED : CALL_FAULTING;
}

/* ---- the table -------------------------------------------------------------------------------- */
static const struct {
    pen_status (*enter)(engine_call *c); /* NULL: nothing begins.  Not OK: FAULTING is next */
    /* The next state; the same one: it waits.  path: what its path says, after it was advanced.  NULL: the end. */
    call_state (*advance)(engine_call *c, coll_state path);
} states[] = {
    [CALL_QUEUED]    = {NULL, choose},
    [CALL_AGREEING]  = {start_vote, vote},
    [CALL_STAGING]   = {copy_in, copied_in},
    [CALL_RUNNING]   = {start, run_path},
    [CALL_RETURNING] = {copy_out, copied_out},
    [CALL_FAULTING]  = {begin_fault, await_verdict},
    [CALL_ENDED]     = {give_stage_back, NULL},
    [CALL_FAILED]    = {NULL, NULL},
};

/* ---- time ------------------------------------------------------------------------------------- */
static call_state time_out(engine_call *c, const engine_call *due)
{
    const coll_engine *e = c->g->engine;
    int missing[MISSING_MAX];
    char name[CALL_NAME_BYTES], who[320] = "";
    size_t at   = 0;
    const int n = path_missing(c, missing, MISSING_MAX);
    path_abort(c);
    engine_call_name(c, name);
    for (int i = 0; i < n && i < SENTENCE_NAMES && at < sizeof who; i++)
        at += (size_t)snprintf(who + at, sizeof who - at, "%srank %d (%.40s)", i > 0 ? ", " : "",
                               missing[i], e->host != NULL ? e->host[missing[i]] : "unknown");
    if (n > SENTENCE_NAMES && at < sizeof who) snprintf(who + at, sizeof who - at, " and others");
    /* To a hundredth of a second: the call began a little after its deadline was computed. */
    const uint64_t hundredths = (due->deadline_ms - due->begun_ms + 9) / 10;
    why_set(&c->why, PEN_TIMED_OUT, "%s waited %.4g s for %s", name, (double)hundredths / 100,
            n > 0 ? who : "what others send");
    why_culprit(&c->why, PEN_WORKER, n > 0 ? missing[0] : -1, -1, c->label);
    c->why.missing_n = n;
    memcpy(c->why.missing, missing, (size_t)n * sizeof *missing);
    return CALL_FAULTING;
}

static void warn(engine_call *c, uint64_t now, bool is_quiet)
{
    const coll_engine *e = c->g->engine;
    int missing[MISSING_MAX];
    char name[CALL_NAME_BYTES];
    const uint64_t waited = now - c->begun_ms;
    if (!is_quiet) c->warn_at_ms = now + waited; /* intervals double */
    c->tell_at_ms = now + engine_tell_after(e, waited);
    if (e->job.overdue == NULL) return;
    engine_call_name(c, name);
    e->job.overdue(e->user, name, waited, missing, path_missing(c, missing, MISSING_MAX), is_quiet);
}

static call_state check_time(engine_call *c, const engine_call *due)
{
    const uint64_t now = now_ms(), warn_ms = c->g->engine->warn_ms;
    if (due != NULL && now >= due->deadline_ms) return time_out(c, due);
    if (warn_ms > 0 && now >= c->warn_at_ms)
        warn(c, now, false);
    else if (now >= c->tell_at_ms)
        warn(c, now, true);
    return c->state;
}

/* ---- driving ---------------------------------------------------------------------------------- */
void engine_call_name(const engine_call *c, char name[CALL_NAME_BYTES])
{
    const char *kind = coll_kind_name(c->call.kind), *quote = c->label[0] != '\0' ? "'" : "";
    snprintf(name, CALL_NAME_BYTES, "%s%s%s%s%s (call %llu)", kind, *quote ? " " : "", quote,
             c->label, quote, (unsigned long long)c->seq);
}

bool engine_call_advance(engine_call *c, const engine_call *due)
{
    bool did        = false;
    call_state next = states[c->state].advance(c, path_advance(c, &did));
    if (next == c->state && next != CALL_FAULTING) next = check_time(c, due);
    while (next != c->state) {
        did      = true;
        c->state = next;
        if (states[next].enter != NULL && states[next].enter(c) != PEN_OK)
            next = CALL_FAULTING;
        else if (states[next].advance != NULL)
            next = states[next].advance(c, path_advance(c, &did));
    }
    return did;
}

void engine_call_give_up(engine_call *c)
{
    bool did         = false;
    coll_state state = COLL_RUNNING;
    if (c->state == CALL_RUNNING && c->stage == NULL) state = path_advance(c, &did);
    if (state == COLL_RUNNING) path_abort(c);
    engine_stage_end(c);
    c->state = state == COLL_DONE ? CALL_ENDED : CALL_FAILED;
}

pen_status engine_call_follow(engine_call *c, device_stream stream, pen_error *why)
{
    if (c->state == CALL_RETURNING) return engine_stage_follow(c, stream, why);
    if (c->state != CALL_RUNNING || c->stage != NULL || c->path->follow == NULL) return PEN_AGAIN;
    return c->path->follow(c->op, stream, why);
}
