/* core_join.c - HELLO, WELCOME, EPOCH: which process takes which member slot, and when the job begins. */
#include "proto/status_json.h"
#include "scheduler/core/core_state.h"
#include "scheduler/core/membership/machines.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char *text_of(const char *text)
{
    return text ? text : "";
}

static void welcome(scheduler_core *core, const member_slot *s)
{
    wire_control c          = {.kind = WIRE_WELCOME};
    c.u.welcome.incarnation = s->incarnation;
    c.u.welcome.term        = core->job.term;
    c.u.welcome.lease_ms    = core->job.settings.lease_ms;
    c.u.welcome.rank        = s->rank;
    c.u.welcome.job         = core->job.name;
    c.u.welcome.local_rank  = s->local_rank;
    c.u.welcome.node        = s->node;
    c.u.welcome.grace_ms    = core->out.actions.keep ? core->job.settings.grace_ms : 0;
    core_send(&core->out, s, &c);
}

/* ---- the beginning --------------------------------------------------------------------------- */
static bool all_joined(const scheduler_core *core)
{
    const roster *r = &core->members.roster;
    if (!r->workers.n || !core->job.servers_known || r->servers.n != core->job.n_servers)
        return false;
    return roster_count(&r->workers, MEMBER_JOINING) == r->workers.n &&
           roster_count(&r->servers, MEMBER_JOINING) == r->servers.n;
}

void core_join_begin(scheduler_core *core)
{
    if (core->job.phase != PHASE_JOINING || core->job.has_verdict || !all_joined(core)) return;
    pen_error why;
    if (machines_place(&core->members.roster.workers, &why) != PEN_OK) {
        core_verdict(core, &why);
        return;
    }
    if (!core_prove_done(core)) return;
    ROSTER_EACH(s, &core->members.roster) {
        if (s->rank < 0) continue;
        s->last_seen_ms = core->out.now_ms; /* leases start here; before, the connection counts */
        core_move(&core->out, s, MEMBER_EVENT_BEGIN);
    }
    core->job.phase            = PHASE_REGISTERING;
    core->reports.last_will_ms = core->out.now_ms;
    core_log(&core->out, LOG_INFO, "job '%s': %s and %s are here", core->job.name,
             MANY(core->members.roster.workers.n, "worker"), MANY(core->job.n_servers, "server"));
    core_epoch_begin(core);
}

/* ---- taking a slot --------------------------------------------------------------------------- */
/* Sends a joining or returning member everything it missed. */
static void catch_up(scheduler_core *core, member_slot *s)
{
    if (core->job.has_verdict) {
        core_notify(core, s);
        return;
    }
    if (core->job.phase == PHASE_JOINING) core_prove_notify(core, s);
    if (s->rank < 0 || core->job.phase == PHASE_JOINING) return;
    const bool is_late = core_is_late(core, s);
    if (member_slot_is_counted(s) || is_late) {
        core_epoch_notify(core, s);
        if (!is_late || s->role == PEN_SERVER || s->is_registered) core_model_catch_up(core, s);
        if (s->role == PEN_WORKER) core_loss_catch_up(core, s);
        if (s->is_stopped) core_send(&core->out, s, &(wire_control){.kind = WIRE_STOP});
    }
    if (core->job.phase == PHASE_STOPPING && s->role == PEN_SERVER)
        core_send(&core->out, s, &(wire_control){.kind = WIRE_STOP});
}

/* (term << 24) loses the top bit of today's milliseconds and stays unique for 34 years.  Nothing is persisted before a job
 * begins: a process that met a scheduler which died brings its incarnation. */
static void number(scheduler_core *core, member_slot *s, const wire_control *hello)
{
    const bool had_one = core->job.phase == PHASE_JOINING && core->out.actions.keep &&
                         hello->from && hello->from >> 24 < core->job.term &&
                         !roster_of(&core->members.roster, hello->from);
    s->nonce = hello->u.hello.nonce;
    s->incarnation =
        had_one ? hello->from : core->job.term << 24 | (++core->job.incarnations & 0xffffff);
    s->sharing    = s->rank;
    s->trying     = -1;
    s->local_rank = s->said_local_rank;
    s->node       = s->said_node;
    if (s->role != PEN_WORKER) return;
    if (core->job.phase == PHASE_JOINING)
        core_prove_anew(core);
    else
        machines_place_late(s, &core->members.roster.workers);
}

/* PEN_OK: the verdict was sent to it. */
static pen_status refuse_taken(scheduler_core *core, const member_slot *s, uint32_t peer,
                               const wire_control *c, pen_error *why)
{
    const int rank   = (int)s->rank;
    const char *role = status_role_name(s->role);
    if (core->job.has_verdict) {
        core_send_peer(&core->out, peer,
                       &(wire_control){.kind = WIRE_VERDICT, .u.verdict = core->job.verdict});
        return PEN_OK;
    }
    if (s->state == MEMBER_ABSENT)
        return why_set(why, PEN_WRONG_STATE, "%s %d joined after the job had ended", role, rank);
    if (s->state == MEMBER_LEFT)
        return why_set(why, PEN_WRONG_STATE, "%s %d has left the job; its rank stays taken", role,
                       rank);
    return why_set(
        why, PEN_MISMATCH,
        "rank %d of the %ss is taken by process %d on %s; process %d on %s needs its own RANK",
        rank, role, (int)s->pid, s->host, (int)c->u.hello.pid, text_of(c->u.hello.host));
}

/* A restarted process can arrive before the report of its predecessor's death.  So the current member has one beat's
 * time to show that it lives; the newcomer, which repeats HELLO, gets no answer meanwhile. */
static bool may_have_died(const scheduler_core *core, member_slot *s, const wire_control *c)
{
    if (s->state != MEMBER_ACTIVE || !core_may_replace(core, s)) return false;
    if (s->rival != c->u.hello.nonce) s->rival_ms = core->out.now_ms;
    s->rival = c->u.hello.nonce;
    return s->last_seen_ms <= s->rival_ms;
}

static bool is_free(const scheduler_core *core, const member_slot *s)
{
    const bool stops = core->job.phase == PHASE_STOPPING && s->role == PEN_SERVER;
    return s->state == MEMBER_ABSENT && (core->job.phase == PHASE_JOINING || stops);
}

static void greet(scheduler_core *core, member_slot *s)
{
    if (!core->members.has_begun) core->members.joining_ms = core->out.now_ms;
    core->members.has_begun = true;
    s->last_seen_ms         = core->out.now_ms;
    s->is_missed            = false;
    welcome(core, s);
    core_last_will_notify(core, s);
    catch_up(core, s);
    core->due |= DUE_JOIN;
    core_pass_by(core);
}

/* AGAIN: the previous member is gone, which must be handled first; then handle HELLO again. */
static pen_status sit_down(scheduler_core *core, member_slot *s, uint32_t peer,
                           const wire_control *c, pen_error *why)
{
    const bool is_same = s->incarnation && s->nonce == c->u.hello.nonce;
    if (!is_same && s->state == MEMBER_AWAY && core_may_replace(core, s)) {
        core_lose(core, s, MEMBER_EVENT_LOST, "another process has taken its place");
        return PEN_AGAIN;
    }
    const bool is_late = !is_same && !is_free(core, s) && core_may_sit(core, s);
    if (is_late && c->from) /* a predecessor that was declared dead */
        return why_set(why, PEN_NOT_A_MEMBER, "%s %d (%s) was removed from the job",
                       status_role_name(s->role), (int)s->rank, text_of(c->u.hello.host));
    if (!is_same && !is_free(core, s) && !is_late)
        return may_have_died(core, s, c) ? PEN_OK : refuse_taken(core, s, peer, c, why);
    if (is_late) member_slot_vacate(s);
    if (member_slot_describe(s, c) != PEN_OK)
        return why_set(why, PEN_NO_MEMORY, "the scheduler has no memory for another process");
    if (!is_same) number(core, s, c);
    roster_bind(&core->members.roster, s, peer);
    if (is_late && !core_persist(core)) return PEN_OK;
    if (core_move(&core->out, s, MEMBER_EVENT_HELLO))
        greet(core, s);
    else
        core_notify(core, s);
    return PEN_OK;
}

/* ---- workers --------------------------------------------------------------------------------- */
/* More servers may have joined than the job has. */
static void settle_servers(scheduler_core *core, uint32_t n)
{
    member_slots *servers   = &core->members.roster.servers;
    core->job.n_servers     = n;
    core->job.servers_known = true;
    for (uint32_t i = n; i < servers->n; i++)
        if (servers->at[i]->is_bound)
            core_refuse(&core->out, servers->at[i]->peer, PEN_MISMATCH,
                        "the job has %s; this one is not needed", MANY(n, "server"));
    roster_shrink(&core->members.roster, servers, n);
}

static pen_status grow(member_slots *list, int32_t role, uint32_t n, pen_error *why)
{
    const pen_status status = roster_grow(list, role, n);
    return status == PEN_OK ? status
                            : why_set(why, status, "the scheduler has no memory for %u %ss", n,
                                      status_role_name(role));
}

/* A worker with servers in a job without, or the other way round. */
static pen_status check_kind(const core_job *job, const wire_control *c, pen_error *why)
{
    const int32_t servers = c->u.hello.servers;
    const int rank        = (int)c->u.hello.rank;
    const char *host      = text_of(c->u.hello.host);
    if ((servers > 0) == (job->n_servers > 0))
        return core_check_kind(&job->settings, job->n_servers, why);
    if (servers > 0)
        return why_set(why, PEN_MISMATCH, "worker %d (%s) asks for %d servers and the job has none",
                       rank, host, (int)servers);
    return why_set(
        why, PEN_MISMATCH,
        "worker %d (%s) expects no servers, and the job has %u; set PENSTOCK_SERVERS=%u there too",
        rank, host, job->n_servers, job->n_servers);
}

/* The first worker sets the size of the job if the scheduler has no setting. */
static pen_status learn_size(scheduler_core *core, const wire_control *c, pen_error *why)
{
    const int32_t world = c->u.hello.world_size, servers = c->u.hello.servers;
    const int rank        = (int)c->u.hello.rank;
    const char *host      = text_of(c->u.hello.host);
    member_slots *workers = &core->members.roster.workers;
    if (world < 1 || world > ROSTER_WORKERS_MAX)
        return why_set(why, PEN_BAD_SETTING, "world_size %d of worker %d (%s) is not in 1 .. %d",
                       (int)world, rank, host, ROSTER_WORKERS_MAX);
    if (!core->job.servers_known && (servers < 0 || servers > ROSTER_SERVERS_MAX))
        return why_set(why, PEN_BAD_SETTING,
                       "worker %d (%s) asks for %d servers, expected 0 .. %d; set --servers on the "
                       "scheduler or on all workers",
                       rank, host, (int)servers, ROSTER_SERVERS_MAX);
    if (!workers->n && grow(workers, PEN_WORKER, (uint32_t)world, why) != PEN_OK) {
        roster_shrink(&core->members.roster, workers, 0);
        return PEN_NO_MEMORY;
    }
    if (!core->job.servers_known) settle_servers(core, (uint32_t)servers);
    const pen_status status = check_kind(&core->job, c, why);
    return status == PEN_OK
               ? grow(&core->members.roster.servers, PEN_SERVER, core->job.n_servers, why)
               : status;
}

/* A rank beyond the initial ones, in an elastic job that trains. */
static member_slot *later_member_slot(scheduler_core *core, int32_t rank)
{
    member_slots *list = &core->members.roster.workers;
    if (core->job.phase != PHASE_TRAINING || !core_is_elastic(core)) return NULL;
    if (rank < 0 || (uint32_t)rank >= core->members.ranks_max) return NULL;
    if (roster_grow(list, PEN_WORKER, (uint32_t)rank + 1) != PEN_OK) return NULL;
    return list->at[rank];
}

static pen_status hello_worker(scheduler_core *core, uint32_t peer, const wire_control *c,
                               pen_error *why)
{
    const pen_status status = learn_size(core, c, why);
    if (status != PEN_OK) return status;
    const char *host      = text_of(c->u.hello.host);
    const int rank        = (int)c->u.hello.rank;
    const uint32_t world  = core->members.roster.workers.n;
    const bool may_differ = core_is_elastic(core) && core->job.phase == PHASE_TRAINING;
    if ((uint32_t)c->u.hello.world_size != world && !may_differ)
        return why_set(why, PEN_MISMATCH, "worker %d (%s) has a world size of %d, the job has %s",
                       rank, host, (int)c->u.hello.world_size, MANY(world, "worker"));
    member_slot *s = roster_find(&core->members.roster, PEN_WORKER, rank);
    if (!s) s = later_member_slot(core, rank);
    if (!s)
        return why_set(why, PEN_INVALID_ARGUMENT, "rank %d (%s) is not one of the job's 0 .. %u",
                       rank, host, world - 1);
    return sit_down(core, s, peer, c, why);
}

/* ---- servers --------------------------------------------------------------------------------- */
static member_slot *server_of(const scheduler_core *core, uint64_t nonce)
{
    MEMBER_SLOT_EACH(each, &core->members.roster.servers)
        if (each->incarnation && each->nonce == nonce) return each;
    return NULL;
}

static member_slot *late_server(scheduler_core *core)
{
    member_slots *list = &core->members.roster.servers;
    MEMBER_SLOT_EACH(each, list)
        if (core_may_sit(core, each)) return each;
    if (core->job.phase != PHASE_TRAINING || list->n >= core->job.settings.servers_max) return NULL;
    return roster_grow(list, PEN_SERVER, list->n + 1) == PEN_OK ? list->at[list->n - 1] : NULL;
}

static member_slot *free_server(scheduler_core *core)
{
    member_slots *list = &core->members.roster.servers;
    MEMBER_SLOT_EACH(each, list)
        if (each->state == MEMBER_ABSENT) return each;
    if (core->job.phase == PHASE_TRAINING) return late_server(core);
    if (core->job.servers_known || list->n == ROSTER_SERVERS_MAX) return NULL;
    return roster_grow(list, PEN_SERVER, list->n + 1) == PEN_OK ? list->at[list->n - 1] : NULL;
}

static member_slot *wanted_server(scheduler_core *core, int32_t rank)
{
    member_slots *list = &core->members.roster.servers;
    const bool later   = core->job.phase == PHASE_TRAINING && rank >= 0 &&
                       (uint64_t)rank < core->job.settings.servers_max;
    const bool grows =
        later || (!core->job.servers_known && rank >= 0 && rank < ROSTER_SERVERS_MAX);
    if (grows && roster_grow(list, PEN_SERVER, (uint32_t)rank + 1) != PEN_OK) return NULL;
    return roster_find(&core->members.roster, PEN_SERVER, rank);
}

static pen_status hello_server(scheduler_core *core, uint32_t peer, const wire_control *c,
                               pen_error *why)
{
    const char *host = text_of(c->u.hello.host);
    if (!c->u.hello.n_addresses)
        return why_set(why, PEN_INVALID_ARGUMENT, "a server on %s gave no address", host);
    member_slot *s = server_of(core, c->u.hello.nonce);
    if (!s) s = c->u.hello.rank < 0 ? free_server(core) : wanted_server(core, c->u.hello.rank);
    if (s) return sit_down(core, s, peer, c, why);
    return why_set(why, PEN_MISMATCH, "a server on %s is not needed: the job has %u", host,
                   core->members.roster.servers.n);
}

/* ---- observers ------------------------------------------------------------------------------- */
static pen_status refuse_launcher(int32_t workers, const char *other, int64_t its, pen_error *why)
{
    return why_set(why, PEN_BAD_SETTING,
                   "this machine starts %d worker%s, but %.64s starts %d; all machines need the "
                   "same --nproc-per-node",
                   (int)workers, workers == 1 ? "" : "s", other, (int)its);
}

/* Ranks are counted by machines of equal size.  Machine 0's may be known before its launcher has joined. */
static pen_status check_launcher(const scheduler_core *core, const wire_control *c, pen_error *why)
{
    const int32_t workers = c->u.hello.local_world_size;
    const int64_t first   = core->job.settings.local_world_size;
    if (first > 0 && workers != first) return refuse_launcher(workers, "machine 0", first, why);
    MEMBER_SLOT_EACH(s, &core->members.roster.observers) {
        const bool is_other = s->role == WIRE_LAUNCHER && s->is_bound &&
                              s->nonce != c->u.hello.nonce && s->said_local_size > 0;
        if (is_other && s->said_local_size != workers)
            return refuse_launcher(workers, s->host[0] ? s->host : "another machine",
                                   s->said_local_size, why);
    }
    return PEN_OK;
}

static pen_status hello_observer(scheduler_core *core, uint32_t peer, const wire_control *c,
                                 pen_error *why)
{
    const bool starts = c->u.hello.role == WIRE_LAUNCHER && c->u.hello.local_world_size > 0;
    if (starts && check_launcher(core, c, why) != PEN_OK) return why->status;
    member_slot *s = roster_observer(&core->members.roster, c->u.hello.role, c->u.hello.nonce);
    if (!s || member_slot_describe(s, c) != PEN_OK)
        return why_set(why, PEN_NO_MEMORY, "the scheduler has no %s for another %s",
                       core->members.roster.observers.n == ROSTER_GUESTS_MAX ? "room" : "memory",
                       status_role_name(c->u.hello.role));
    if (!s->incarnation) number(core, s, c);
    s->last_seen_ms = core->out.now_ms;
    roster_bind(&core->members.roster, s, peer);
    welcome(core, s);
    catch_up(core, s);
    if (s->role == WIRE_LAUNCHER) core_pass_by(core); /* the job waits for its workers */
    return PEN_OK;
}

static pen_status hello(scheduler_core *core, uint32_t peer, const wire_control *c, pen_error *why)
{
    core_job *job        = &core->job;
    const char *name     = text_of(c->u.hello.job);
    const bool is_others = job->name[0] && name[0];
    if (is_others && strncmp(job->name, name, sizeof job->name - 1) != 0)
        return why_set(why, PEN_BAD_SETTING,
                       "the scheduler at %s runs the job '%s', not '%.64s'; leave out --job, or "
                       "set --job %s (PENSTOCK_JOB)",
                       job->master, job->name, name, job->name);
    if (!job->name[0] && c->u.hello.role != WIRE_OBSERVER)
        snprintf(job->name, sizeof job->name, "%.63s", name);
    switch (c->u.hello.role) {
    case PEN_WORKER: return hello_worker(core, peer, c, why);
    case PEN_SERVER: return hello_server(core, peer, c, why);
    case WIRE_LAUNCHER:
    case WIRE_OBSERVER: return hello_observer(core, peer, c, why);
    default: job->refused++; return PEN_OK;
    }
}

bool core_hello(scheduler_core *core, uint32_t peer, const wire_control *message)
{
    pen_error why;
    const pen_status status = hello(core, peer, message, &why);
    if (status != PEN_OK && status != PEN_AGAIN)
        core_refuse(&core->out, peer, status, "%s", why.text);
    return status != PEN_AGAIN;
}

/* ---- missed members --------------------------------------------------------------------------------- */
/* When a joined member counts as missed: a lease after its last message. */
static uint64_t missed_ms(const scheduler_core *core, const member_slot *s)
{
    const bool was_here = s->rank >= 0 && s->incarnation && !s->has_said_bye &&
                          (s->state == MEMBER_JOINING || s->state == MEMBER_ABSENT);
    return was_here && !s->is_missed ? s->last_seen_ms + core->job.settings.lease_ms : UINT64_MAX;
}

/* Frees its slot: for itself if it returns, and for a replacement. */
static void miss(scheduler_core *core, member_slot *s)
{
    const uint64_t end = core->members.joining_ms + core->job.settings.init_timeout_ms;
    pen_error why;
    s->is_missed = s->was_missed = true;
    roster_unbind(&core->members.roster, s);
    core_move(&core->out, s, MEMBER_EVENT_DOWN);
    core_missed(core, s, end > core->out.now_ms ? end - core->out.now_ms : 0, &why);
    core_announce(&core->out, why.text);
}

uint64_t core_join_next_ms(const scheduler_core *core)
{
    if (core->job.phase != PHASE_JOINING || !core->members.has_begun) return UINT64_MAX;
    const uint64_t end = core->members.joining_ms + core->job.settings.init_timeout_ms;
    uint64_t due       = UINT64_MAX;
    ROSTER_EACH(s, &core->members.roster)
        if (missed_ms(core, s) < due) due = missed_ms(core, s);
    if (core->members.proof.is_open && core->members.proof.due_ms < due)
        due = core->members.proof.due_ms;
    return due < end ? due : end;
}

void core_join_tick(scheduler_core *core)
{
    ROSTER_EACH(s, &core->members.roster)
        if (missed_ms(core, s) <= core->out.now_ms) miss(core, s);
    if (core->members.proof.is_open && core->out.now_ms >= core->members.proof.due_ms) {
        core_join_begin(core);
        if (core->job.phase != PHASE_JOINING) return;
        core_prove_anew(core); /* a worker left: PROVE is repeated once all are here */
    }
    const uint64_t waited = core->out.now_ms - core->members.joining_ms;
    if (waited < core->job.settings.init_timeout_ms) return;
    pen_error why;
    sentence_not_joined(&core->members.roster, core->job.n_servers, waited, core->job.master, &why);
    core_verdict(core, &why);
}
