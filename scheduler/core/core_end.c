/* core_end.c - the end of a job: sends the verdict, stops servers, waits for members to leave. */
#include "scheduler/core/core_state.h"

void core_stop(scheduler_core *core)
{
    /* Members that joined while the last of the others left. */
    MEMBER_SLOT_EACH(s, &core->members.roster.workers) {
        if (core_is_late(core, s))
            core_refuse(&core->out, s->peer, PEN_NOT_A_MEMBER,
                        "%s comes too late: all workers have left the job", MEMBER_NAME(s));
    }
    core->job.phase  = PHASE_STOPPING;
    core->job.end_ms = core->out.now_ms + CORE_END_MS;
    core_persist(core);
    core_send_all(&core->out, TO_SERVERS, &(wire_control){.kind = WIRE_STOP});
}

/* ---- the end --------------------------------------------------------------------------------- */
/* A launcher disconnects when it has read the verdict and its processes have ended. */
static bool is_waited_for(const scheduler_core *core, const member_slot *s)
{
    if (s->role == WIRE_LAUNCHER)
        return core->job.phase == PHASE_FAILED && s->is_bound && s->is_told;
    if (s->rank < 0 || !member_slot_is_here(s)) return false;
    if (core->job.phase == PHASE_STOPPING) return s->role == PEN_SERVER;
    return s->is_bound || !s->is_told; /* notified and disconnected: done */
}

static const member_slot *first_waited_for(const scheduler_core *core)
{
    ROSTER_EACH(s, &core->members.roster)
        if (is_waited_for(core, s)) return s;
    return NULL;
}

static bool is_outstanding(const scheduler_core *core, const member_slot *worker)
{
    if (worker->awaited_ms) return true;
    if (worker->state == MEMBER_LEFT || core_is_late(core, worker)) return false;
    if (worker->state == MEMBER_DEAD) return !core_goes_on(core);
    /* an elastic slot may stay empty */
    return worker->state != MEMBER_ABSENT || core->job.phase != PHASE_TRAINING ||
           !core->job.n_servers;
}

static bool all_have_left(const scheduler_core *core)
{
    MEMBER_SLOT_EACH(each, &core->members.roster.workers)
        if (is_outstanding(core, each)) return false;
    return true;
}

void core_verdict_notify(scheduler_core *core)
{
    core_log(&core->out, LOG_NOTICE, "%s", core->job.verdict.text);
    core_persist(core);
    const wire_control c = {.kind = WIRE_VERDICT, .u.verdict = core->job.verdict};
    core_send_all(&core->out, TO_OBSERVERS, &c); /* launchers report it before their workers do */
    core_send_all(&core->out, TO_WORKERS | TO_SERVERS, &c);
    ROSTER_EACH(s, &core->members.roster) {
        s->is_told = s->is_bound;
        if (s->state == MEMBER_DEAD) core_notify(core, s);
    }
    core->due |= DUE_END;
}

static void end(scheduler_core *core, pen_status status)
{
    if (core->job.phase == PHASE_ENDED) return;
    core->job.phase = PHASE_ENDED;
    if (core->out.actions.keep) core->out.actions.keep(core->out.actions.user, NULL, 0);
    core->out.actions.ended(core->out.actions.user, status,
                            core->job.has_verdict ? &core->job.verdict : NULL);
}

void core_settle(scheduler_core *core)
{
    if (core_runs(core) && all_have_left(core)) core_stop(core);
    if (core->job.phase != PHASE_STOPPING && core->job.phase != PHASE_FAILED) return;
    if (!core->job.is_empty && !first_waited_for(core))
        end(core, core->job.has_verdict ? core->job.verdict.status : PEN_OK);
}

uint64_t core_end_next_ms(const scheduler_core *core)
{
    const bool ends = core->job.phase == PHASE_STOPPING || core->job.phase == PHASE_FAILED;
    return ends ? core->job.end_ms : UINT64_MAX;
}

void core_end_tick(scheduler_core *core)
{
    const member_slot *late = first_waited_for(core);
    if (late && core->job.phase == PHASE_STOPPING)
        core_log(&core->out, LOG_WARNING, "%s has not ended %d s after it was asked to",
                 MEMBER_NAME(late), CORE_END_MS / 1000);
    end(core, core->job.has_verdict ? core->job.verdict.status : PEN_OK);
}
