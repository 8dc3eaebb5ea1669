/* core_cause.c - causes: a verdict, a death.
 *
 * DESIGN.  A cause is noted here, and core.c acts on it.  Any file may call this one; it calls none of them back.
 */
#include "scheduler/core/core_state.h"

/* ---- the verdict ----------------------------------------------------------------------------- */
void core_notify(scheduler_core *core, member_slot *s)
{
    if (!s->is_bound) return;
    if (s->state == MEMBER_DEAD || !core->job.has_verdict) {
        wire_control c = {.kind = WIRE_VERDICT};
        why_set(&c.u.verdict, PEN_NOT_A_MEMBER, "%s was removed from the job%s%.300s",
                MEMBER_NAME(s), core->job.has_verdict ? ": " : "",
                core->job.has_verdict ? core->job.verdict.text : "");
        why_culprit(&c.u.verdict, s->role, s->rank, s->step, NULL);
        core_send(&core->out, s, &c);
        return;
    }
    core_send(&core->out, s, &(wire_control){.kind = WIRE_VERDICT, .u.verdict = core->job.verdict});
    s->is_told = true;
}

void core_verdict(scheduler_core *core, const pen_error *why)
{
    if (core->job.has_verdict) return;
    core->job.has_verdict    = true;
    core->job.verdict        = *why;
    core->members.query.dead = NULL;
    core->job.phase          = PHASE_FAILED;
    core->job.end_ms         = core->out.now_ms + CORE_END_MS;
    core->due |= DUE_VERDICT;
}

/* ---- a death --------------------------------------------------------------------------------- */
void core_lose(scheduler_core *core, member_slot *s, member_event event, const char *how)
{
    const member_state before = s->state;
    core_move(&core->out, s, event);
    core_log(&core->out, LOG_INFO, "%s: %s", MEMBER_NAME(s), how);
    if (s->state == before) return;
    s->is_lost = true;
    s->lost_ms = core->out.now_ms;
    core->due |= DUE_LOST;
}

void core_left_early(scheduler_core *core, member_slot *s)
{
    s->has_left_early = true;
    core_lose(core, s, MEMBER_EVENT_LOST, "it left while others wait for it");
}

/* ---- what members report ------------------------------------------------------------------------ */
void core_bound_claim(const member_slot *s, pen_error *why)
{
    why->text[sizeof why->text - 1]     = 0;
    why->tensor[sizeof why->tensor - 1] = 0;
    if (why->missing_n < 0 || why->missing_n > 32) why->missing_n = 0;
    if (!why_is_failure(why->status)) why->status = PEN_INTERNAL;
    if (why->role < PEN_SCHEDULER || why->role > WIRE_OBSERVER) {
        why->role = s->role;
        why->rank = s->rank;
    }
    if (!why->text[0])
        snprintf(why->text, sizeof why->text, "%s failed: %s", MEMBER_NAME(s),
                 pen_status_info(why->status)->text);
}

void core_failure(scheduler_core *core, member_slot *s, const wire_control *message)
{
    if (core->members.query.dead) return; /* the first cause wins */

    pen_error why = message->u.verdict;
    core_bound_claim(s, &why);
    core_verdict(core, &why);
}
