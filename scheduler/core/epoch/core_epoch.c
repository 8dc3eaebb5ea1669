/* core_epoch.c - EPOCH, SEAL, SEALED: the members, the placement of copies, and the fate of an open step.
 *
 * DESIGN.  The epoch view names the members.  While a job trains it changes in four moves: all holders of state are
 * sealed and stop; their reports are resolved (resolve.h), and the placement moves towards its goal (placement.h); the
 * new view is persisted; it is sent to all.  Holders are the servers; in a job without servers the workers, if all of
 * them can be sealed.
 * Causes that come during a change become part of it: the report of a sealed holder remains true.  A holder that dies
 * meanwhile is one more cause.  Workers of servers are not awaited: one that missed a view gets the newest.
 */
#include "common/base/mutation.h"
#include "scheduler/core/core_state.h"
#include "scheduler/core/epoch/resolve.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- the first view ------------------------------------------------------------------------- */
void core_epoch_begin(scheduler_core *core)
{
    core->epoch.number      = 1;
    core->members.ranks_max = core->members.roster.workers.n;
    if (core->job.settings.workers_max > core->members.ranks_max)
        core->members.ranks_max = (uint32_t)core->job.settings.workers_max;
    core->members.wanted_workers = (int32_t)core->members.roster.workers.n;
    core->members.wanted_servers = (int32_t)core->job.n_servers;
    if (!core_epoch_write(core, NULL, false)) {
        core_epoch_fail(core);
        return;
    }
    core_epoch_note(core);
    if (core_persist(core)) core_send_all(&core->out, TO_WORKERS | TO_SERVERS, &core->epoch.view);
}

/* ---- conditions and times -------------------------------------------------------------------- */
static void open_change(scheduler_core *core)
{
    core_change *c = &core->epoch.change;
    c->is_open     = true;
    c->is_wanted   = false;
    c->due_ms =
        core->out.now_ms +
        (core->job.settings.lease_ms > CORE_SEAL_MS ? core->job.settings.lease_ms : CORE_SEAL_MS);
    const member_slots *holders = core_holders(core);
    MEMBER_SLOT_EACH(each, holders) each->is_sealed = false;
    core_log(&core->out, LOG_DEBUG, "ending epoch %" PRIu64 ": %s", core->epoch.number, c->cause);
    const wire_control seal = core_epoch_seal(core);
    MEMBER_SLOT_EACH(one, holders)
        if (member_slot_is_counted(one)) core_send(&core->out, one, &seal);
}

void core_epoch_want(scheduler_core *core, uint64_t due_ms, const char *format, ...)
{
    core_change *c = &core->epoch.change;
    if (!core_may_change(core)) return;
    if (!c->is_wanted && !c->is_open) {
        va_list args;
        va_start(args, format);
        vsnprintf(c->cause, sizeof c->cause, format, args);
        va_end(args);
        c->begun_ms = core->out.now_ms;
    }
    if (c->is_open) { /* the resolution includes this cause */
        core->due |= DUE_EPOCH;
        return;
    }
    if (!c->is_wanted || due_ms < c->due_ms) c->due_ms = due_ms;
    c->is_wanted = true;
    if (c->due_ms <= core->out.now_ms) core->due |= DUE_EPOCH;
}

void core_epoch_want_without_dead(scheduler_core *core)
{
    MEMBER_SLOT_EACH(s, &core->members.roster.workers)
        if (s->in_view && !member_slot_is_counted(s))
            core_epoch_want(core, core->out.now_ms, "%.120s is gone", MEMBER_NAME(s));
}

bool core_epoch_survives(const scheduler_core *core)
{
    if (!core_may_change(core)) return false;
    for (uint32_t shard = 0; shard < core->model.n_shards; shard++) {
        bool lives = false;
        for (uint32_t i = 0; i < core->epoch.place.n && !lives; i++) {
            const wire_replica *r = &core->epoch.place.row[i].at;
            const member_slot *s  = roster_find(&core->members.roster, PEN_SERVER, r->server);
            lives                 = r->shard == shard && s && core_epoch_is_part(s) &&
                    (r->role != WIRE_LEARNER || mutation(MUTATION_LEARNER_PROMOTED));
        }
        if (!lives) return false;
    }
    return true;
}

/* ---- deciding -------------------------------------------------------------------------------- */
static bool all_sealed(const scheduler_core *core)
{
    MEMBER_SLOT_EACH(each, core_holders(core))
        if (core_epoch_is_part(each) && !each->is_sealed)
            return mutation(MUTATION_SEAL_NOT_AWAITED);
    return true;
}

static bool resolve_reports(scheduler_core *core, resolved *out)
{
    const member_slots *holders = core_holders(core);
    resolve_holder *facts       = calloc(holders->n + 1, sizeof *facts);
    pen_error why;
    if (!facts) {
        core_epoch_fail(core);
        return false;
    }
    for (uint32_t i = 0; i < holders->n; i++)
        facts[i] = (resolve_holder){.is_alive  = core_epoch_is_part(holders->at[i]),
                                    .n_reports = holders->at[i]->n_reports,
                                    .report    = holders->at[i]->report};
    const pen_status status =
        core->job.n_servers
            ? resolve_epoch(&core->epoch.place, core->model.n_shards, facts, holders->n, out, &why)
            : resolve_workers(facts, holders->n, out, &why);
    free(facts);
    if (status == PEN_OK) return true;
    if (core->epoch.change.lost)
        why_culprit(&why, core->epoch.change.lost->role, core->epoch.change.lost->rank,
                    core->job.step, NULL);
    core_verdict(core, &why);
    return false;
}

placement_server *core_epoch_servers(const scheduler_core *core)
{
    const member_slots *list = &core->members.roster.servers;
    placement_server *all    = calloc(list->n + 1, sizeof *all);
    for (uint32_t i = 0; all && i < list->n; i++) {
        const member_slot *s = list->at[i];
        all[i] = (placement_server){.places      = member_slot_is_counted(s) ? s->n_addresses : 0,
                                    .is_draining = s->is_draining,
                                    .machine     = s->machine};
    }
    return all;
}

static bool move_copies(scheduler_core *core)
{
    placement_server *all = core->epoch.goal_is_old ? core_epoch_servers(core) : NULL;
    pen_status status     = PEN_OK;
    if (core->epoch.goal_is_old)
        status = all ? placement_goal(&core->epoch.place, core->model.n_shards, all,
                                      core->members.roster.servers.n,
                                      (uint32_t)core->job.settings.replicas, &core->epoch.goal)
                     : PEN_NO_MEMORY;
    free(all);
    core->epoch.goal_is_old = false;
    /* WRONG_STATE: all remaining servers are being drained; nothing moves */
    return status == PEN_WRONG_STATE ||
           (status == PEN_OK && placement_follow(&core->epoch.place, &core->epoch.goal));
}

static bool have_members_changed(const scheduler_core *core)
{
    MEMBER_SLOT_EACH(each, &core->members.roster.workers)
        if (each->in_view != core_epoch_listed(each)) return true;
    return false;
}

/* ---- reporting ------------------------------------------------------------------------------- */
static void notify_late(scheduler_core *core)
{
    MEMBER_SLOT_EACH(s, &core->members.roster.workers) {
        if (!s->is_new) continue;
        const wire_control done = core_model_committed(core, s);
        core_send(&core->out, s, &done);
        s->is_new = false;
    }
}

/* "server 1 (devbox) is gone; other servers took over 2 shards in 0.012 s (view 3)" */
static void report(scheduler_core *core, const resolved *out)
{
    const core_change *c = &core->epoch.change;
    const double took    = (double)(core->out.now_ms - c->begun_ms) / 1e3;
    char line[400];
    if (c->lost)
        snprintf(line, sizeof line, "%s; other servers took over %s in %.3f s (view %" PRIu64 ")",
                 c->cause, MANY(out->n_moved, "shard"), took, core->epoch.number);
    else
        snprintf(line, sizeof line, "%s: view %" PRIu64 " with %s and %s, %.3f s", c->cause,
                 core->epoch.number, MANY(core->epoch.view.u.epoch.n_workers, "worker"),
                 MANY(core->epoch.view.u.epoch.n_servers, "server"), took);
    if (c->lost || c->has_joined || core->epoch.view.u.epoch.members_changed)
        core_announce(&core->out, line);
    else
        core_log(&core->out, LOG_INFO, "%s", line);
}

static void install(scheduler_core *core, const resolved *out, bool changed)
{
    core->epoch.number++;
    if (!core_epoch_write(core, out, changed)) {
        core_epoch_fail(core);
        return;
    }
    /* The step where a late worker begins. */
    const wire_decision *d = &out->decision;
    MEMBER_SLOT_EACH(s, &core->members.roster.workers) {
        if (!member_slot_is_counted(s) || s->in_view == s->incarnation) continue;
        s->is_new     = true;
        s->begin_step = out->step >= 0 ? out->step : out->clock;
        s->begin_applied =
            out->has_decision ? d->applied + (d->outcome == PEN_APPLIED) : core->model.applied;
    }
    core_epoch_note(core);
    core->epoch.change.is_open = false;
    const unsigned all         = TO_WORKERS | TO_SERVERS | 1u << WIRE_LAUNCHER;
    if (mutation(MUTATION_EPOCH_BEFORE_KEEP)) core_send_all(&core->out, all, &core->epoch.view);
    if (core_persist(core)) {
        if (!mutation(MUTATION_EPOCH_BEFORE_KEEP))
            core_send_all(&core->out, all, &core->epoch.view);
        notify_late(core);
        report(core, out);
    }
}

static void decide(scheduler_core *core)
{
    resolved out;
    if (!resolve_reports(core, &out)) return;
    /* Late members that are ready are in this record. */
    ROSTER_EACH(s, &core->members.roster) {
        if (!core_is_late(core, s) || s->state != MEMBER_JOINING || !s->is_ready) continue;
        core_move(&core->out, s, MEMBER_EVENT_BEGIN);
        s->last_seen_ms = core->out.now_ms;
        s->awaited_ms   = 0;
        s->lost_ms      = 0;
        core->epoch.change.has_joined |= s->role == PEN_SERVER;
        free(s->loss);
        s->loss = NULL;
        core->epoch.goal_is_old |= s->role == PEN_SERVER;
    }
    if (core->job.n_servers && !move_copies(core)) {
        core_epoch_fail(core);
        return;
    }
    install(core, &out, have_members_changed(core));
    if (core->job.has_verdict) return;
    core->due |= DUE_MOVED | (core->epoch.change.lost ? DUE_TAKEN_OVER : 0);
    core->epoch.change.lost       = NULL;
    core->epoch.change.has_joined = false;
    if (placement_can_move(&core->epoch.place, &core->epoch.goal))
        core_epoch_want(core, core->out.now_ms + CORE_GATHER_MS, "copies move");
}

void core_epoch_advance(scheduler_core *core)
{
    core_change *c = &core->epoch.change;
    if (!(c->is_wanted || c->is_open) || !core_may_change(core)) return;
    if (c->is_wanted && !c->is_open && c->due_ms <= core->out.now_ms) open_change(core);
    /* A worker whose death is about to end the job stays in the view: it tells a restarted scheduler to judge it. */
    if (c->is_open && all_sealed(core) && !core->members.query.dead) decide(core);
}

void core_sealed(scheduler_core *core, member_slot *s, const wire_control *message)
{
    if (!core->epoch.change.is_open || message->u.sealed.term != core->job.term ||
        message->u.sealed.epoch != core->epoch.number + 1) {
        if (core_may_change(core) && core_epoch_is_part(s) &&
            message->u.sealed.epoch <= core->epoch.number)
            core_send(&core->out, s, &core->epoch.view); /* it missed the end of that change */
        return;
    }
    if (!core_may_change(core) || !core_epoch_is_part(s))
        return; /* all workers have left meanwhile */
    if (!core_is_holder(core, s)) return;
    if (member_slot_seal(s, message) != PEN_OK) {
        core_epoch_fail(core);
        return;
    }
    core->due |= DUE_EPOCH;
}

void core_epoch_lost(scheduler_core *core, const member_slot *server)
{
    core->epoch.goal_is_old = true;
    core->epoch.change.lost = server;
    if (core->epoch.change.is_open || core->epoch.change.is_wanted)
        snprintf(core->epoch.change.cause, sizeof core->epoch.change.cause, "%.120s is gone",
                 MEMBER_NAME(server));
    core_epoch_want(core, core->out.now_ms, "%.120s is gone", MEMBER_NAME(server));
    core->due |= DUE_EPOCH;
}

/* ---- primaries' reports about copies ------------------------------------------------------------ */
/* The row of a copy whose primary is the sender; NULL: none. */
static placement_row *row_of(const scheduler_core *core, const member_slot *s, uint32_t shard,
                             int32_t server)
{
    const placement_row *lead = placement_primary(&core->epoch.place, shard);
    if (!core_may_change(core) || !core_epoch_is_part(s) || !lead || lead->at.server != s->rank)
        return NULL;
    placement_row *row = placement_find(&core->epoch.place, shard, server);
    return row && row->at.server != s->rank ? row : NULL;
}

void core_caught_up(scheduler_core *core, member_slot *s, const wire_control *message)
{
    placement_row *row = row_of(core, s, message->u.caught_up.shard, message->u.caught_up.server);
    if (!row || row->at.role != WIRE_LEARNER) return;
    row->is_caught_up = true;
    core_epoch_want(core, core->out.now_ms + CORE_GATHER_MS, "server %d has a copy of shard %u",
                    (int)row->at.server, row->at.shard);
}

void core_suspect(scheduler_core *core, member_slot *s, const wire_control *message)
{
    placement_row *row = row_of(core, s, message->u.suspect.shard, message->u.suspect.server);
    if (!row || row->at.role != WIRE_BACKUP) return;
    core_log(&core->out, LOG_WARNING,
             "server %d has acknowledged nothing of shard %u for %s; server %d goes on without it",
             (int)row->at.server, row->at.shard, SPAN_NAME(message->u.suspect.waited_ms),
             (int)s->rank);
    row->is_suspect = true; /* becomes a learner in the next change, if its primary lives */
    core_epoch_want(core, core->out.now_ms, "server %d does not keep up", (int)row->at.server);
}

/* ---- time ------------------------------------------------------------------------------------ */
void core_epoch_tick(scheduler_core *core)
{
    if (core->epoch.change.is_open) {
        /* Holders with a live control connection that do not answer SEAL. */
        core->epoch.change.due_ms = core->out.now_ms + CORE_SEAL_MS;
        MEMBER_SLOT_EACH(s, core_holders(core))
            if (core_epoch_is_part(s) && !s->is_sealed)
                core_lose(core, s, MEMBER_EVENT_LOST, "it did not end its epoch");
    }
    core->due |= DUE_EPOCH;
}

uint64_t core_epoch_next_ms(const scheduler_core *core)
{
    const core_change *c = &core->epoch.change;
    return (c->is_open || c->is_wanted) && core_may_change(core) ? c->due_ms : UINT64_MAX;
}
