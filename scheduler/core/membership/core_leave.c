/* core_leave.c - BYE, and exits reported by launchers. */
#include "proto/status_json.h"
#include "scheduler/core/core_state.h"
#include <string.h>

/* ---- BYE -------------------------------------------------------------------------------- */
static bool servers_may_go(const scheduler_core *core)
{
    return core->job.phase == PHASE_JOINING || core->job.phase >= PHASE_STOPPING;
}

static void leave(scheduler_core *core, member_slot *s)
{
    if (s->role == PEN_SERVER && member_slot_is_counted(s) && !servers_may_go(core) &&
        !core_scale_may_go(core, s)) {
        core_lose(core, s, MEMBER_EVENT_LOST, "it left while it was needed");
        return;
    }
    const member_state before = s->state;
    if (!core_move(&core->out, s, MEMBER_EVENT_BYE)) {
        if (s->state == MEMBER_DEAD) core_notify(core, s);
        return;
    }
    if (s->state == before) return;
    if (s->role == PEN_WORKER && s->state == MEMBER_LEFT)
        core_shrink_settle(&core->services.shrinks, &core->out);
    core->due |= DUE_LEFT | DUE_END | DUE_EPOCH;
    const bool is_gone =
        s->state == MEMBER_LEFT && (s->role == PEN_SERVER || core_is_elastic(core));
    if (is_gone)
        core_epoch_want(core, core->out.now_ms + CORE_LEAVE_MS, "%.120s has left", MEMBER_NAME(s));
}

void core_bye(scheduler_core *core, member_slot *s)
{
    const wire_control byed = {.kind = WIRE_BYED};
    const bool is_kept      = core->out.actions.keep && s->role == PEN_WORKER && s->rank >= 0;
    if (!is_kept) core_send(&core->out, s, &byed);
    s->has_said_bye = true;
    if (s->rank >= 0)
        leave(core, s);
    else
        core_dismiss(core, s);
    if (!is_kept) return; /* otherwise the next scheduler must know that it has left */
    if (core->job.phase == PHASE_TRAINING && !core_persist(core)) return;
    core_send(&core->out, s, &byed);
}

void core_dismiss(scheduler_core *core, member_slot *observer)
{
    roster_dismiss(&core->members.roster, observer);
    core->due |= DUE_END;
}

/* ---- EXITED --------------------------------------------------------------------- */
/* is_final: it cannot be run at all, so that launchers do not start the job again. */
static void fail_before_join(scheduler_core *core, int32_t role, int32_t rank, const char *how,
                             bool is_final)
{
    pen_error why;
    why_set(&why, PEN_PEER_LOST, "%s %d %s before it joined", status_role_name(role), (int)rank,
            how);
    why_culprit(&why, role, rank, -1, NULL);
    why.missing_n  = is_final;
    why.missing[0] = rank;
    core_verdict(core, &why);
}

/* The number of workers that the connected launchers have started. */
static uint32_t started(const scheduler_core *core)
{
    uint32_t n = 0;
    MEMBER_SLOT_EACH(s, &core->members.roster.observers) {
        if (s->role == WIRE_LAUNCHER && s->is_bound && s->said_local_size > 0)
            n += (uint32_t)s->said_local_size;
    }
    return n;
}

/* If all workers started so far have ended, the others belong to a machine that is not here yet.  It gets as long as
 * workers have to join. */
static void wait_for_machines(scheduler_core *core, uint32_t n_passed)
{
    if (core->members.has_begun && !core->members.is_for_machines) return;
    if (!core->members.has_begun) core->members.joining_ms = core->out.now_ms;
    core->members.has_begun = core->members.is_for_machines = n_passed >= started(core);
}

/* A launcher may run programs that never call the SDK.  If none does, the job is over once they have ended; if only some
 * do, it can never begin. */
void core_pass_by(scheduler_core *core)
{
    const member_slots *workers = &core->members.roster.workers;
    const member_slot *passed   = NULL;
    uint32_t n                  = 0;
    MEMBER_SLOT_EACH(each, workers) {
        if (!each->has_passed) continue;
        passed = each;
        n++;
    }
    if (!n || core->job.phase != PHASE_JOINING) return;
    if (roster_count(workers, MEMBER_ABSENT) < workers->n) {
        fail_before_join(core, PEN_WORKER, passed->rank, "exited with code 0", false);
    } else if (n == workers->n) {
        core_stop(core);
        core->due |= DUE_END;
    } else {
        wait_for_machines(core, n);
    }
}

/* A worker that failed after its BYE is restarted if the job waits for its workers: its slot must be free. */
static member_event event_of_exit(const scheduler_core *core, const member_slot *s)
{
    const bool is_awaited = s->role == PEN_WORKER && s->state == MEMBER_LEFT && core_waits(core) &&
                            core->job.phase == PHASE_TRAINING;
    return is_awaited ? MEMBER_EVENT_LOST : MEMBER_EVENT_EXITED;
}

/* About a predecessor or a missed process: the job waits for another. */
static bool is_old_news(const member_slot *s, int32_t pid)
{
    const bool sat_another = s->has_come_back || s->was_missed;
    return s->is_missed || (sat_another && member_slot_is_here(s) && s->pid != pid);
}

void core_exited(scheduler_core *core, const wire_control *message)
{
    const int32_t role = message->u.exited.role, rank = message->u.exited.rank;
    if (role != PEN_WORKER && role != PEN_SERVER) return;
    const int32_t code = message->u.exited.code;
    char how[64];
    const size_t size = sizeof how;
    if (message->u.exited.signal)
        snprintf(how, size, "was killed by signal %d", (int)message->u.exited.signal);
    else
        snprintf(how, size, "exited with code %d", (int)message->u.exited.code);
    const bool in_order = !message->u.exited.signal && !code;
    member_slot *s      = roster_find(&core->members.roster, role, rank);
    const char *note    = message->u.exited.note ? message->u.exited.note : "";
    if (s) s->has_no_restarts |= strcmp(note, "no restarts left") == 0;
    if (s && is_old_news(s, message->u.exited.pid)) return;
    if (s) member_slot_place(s, message);

    if (!s || s->state == MEMBER_ABSENT) {
        if (!in_order && core->job.phase == PHASE_TRAINING && core->job.n_servers)
            core_log(&core->out, LOG_WARNING, "%s %d %s before it joined", status_role_name(role),
                     (int)rank, how);
        else if (!in_order)
            fail_before_join(core, role, rank, how, code == 126 || code == 127);
    } else if (!in_order ||
               (role == PEN_SERVER && !servers_may_go(core) && !core_scale_may_go(core, s))) {
        core_lose(core, s, event_of_exit(core, s), how);
    } else if (member_slot_is_here(s)) {
        if (role == PEN_WORKER)
            core_log(&core->out, LOG_WARNING, "%s ended without pen_finalize()", MEMBER_NAME(s));
        leave(core, s);
    }
    if (in_order && role == PEN_WORKER && s) s->has_ended = true;
    if (s) core_wait_in_vain(core, s);
    if (in_order && role == PEN_WORKER && s && s->state == MEMBER_ABSENT) {
        s->has_passed = true;
        core_pass_by(core);
    }
}
