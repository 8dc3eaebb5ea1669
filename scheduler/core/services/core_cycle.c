/* core_cycle.c - waits that cannot end although all waiting workers are alive.
 *
 * DESIGN.  A BEAT names the call and step of a worker.  A worker that waits in a step waits for the gradients of all.  It
 * waits in vain
 *   for one that left     in good order, but in the same step or before: it left in the middle, which counts as a loss
 *   for one that waits    for it in a collective (OVERDUE): servers are asked whether that one owes gradients.  If so,
 *                         neither can go on, and the job ends with both names.
 */
#include "scheduler/core/core_state.h"
#include <inttypes.h>
#include <string.h>

static bool is_in_step(const member_slot *s)
{
    return strcmp(s->call, "pen_step_end") == 0 || strcmp(s->call, "pen_use") == 0;
}

/* ---- left ---------------------------------------------------------------------------- */
/* A worker whose groups are all async waits for no other. */
static bool may_wait(const scheduler_core *core)
{
    bool waits = !core->job.n_servers;
    for (uint32_t i = 0; i < core->model.wire.n_groups; i++)
        waits |= !core->model.wire.group[i].sync ||
                 strncmp(core->model.wire.group[i].sync, "async", 5) != 0;
    return waits;
}

static bool is_missed(const scheduler_core *core, const member_slot *s)
{
    if (s->state != MEMBER_LEFT || s->is_stopped) return false;
    return !core->job.n_servers || s->in_view == s->incarnation;
}

/* Others have registered and wait for a worker that has left: for its tensors or its READY. */
void core_left_registering(scheduler_core *core)
{
    const member_slots *workers = &core->members.roster.workers;
    bool has_registered         = false;
    if (core->job.phase != PHASE_REGISTERING && core->job.phase != PHASE_LOADING) return;
    MEMBER_SLOT_EACH(each, workers)
        has_registered |= each->is_registered && member_slot_is_here(each);
    if (!has_registered) return;
    MEMBER_SLOT_EACH(s, workers) {
        if (s->state != MEMBER_LEFT || s->is_ready) continue;
        core_left_early(core, s);
        core->due |= DUE_LEFT; /* handle this one first */
        return;
    }
}

static member_slot *find_left(const scheduler_core *core, const member_slot *waiting)
{
    MEMBER_SLOT_EACH(s, &core->members.roster.workers) {
        if (is_missed(core, s) && s->step <= waiting->step) return s;
    }
    return NULL;
}

/* ---- waiting for each other ----------------------------------------------------------------- */
static bool waits_for(const core_overdue_note *note, const member_slot *s)
{
    for (uint32_t i = 0; i < note->n_missing; i++)
        if (note->missing[i] == s->rank) return true;
    return false;
}

static const core_overdue_note *find_waiter(const scheduler_core *core, const member_slot *waiting)
{
    for (int i = 0; i < CORE_OVERDUES_MAX; i++) {
        const core_overdue_note *note = &core->services.overdue[i];
        if (core_overdue_lasts(note) && note->asker != waiting && waits_for(note, waiting) &&
            note->asker->step <= waiting->step &&
            note->waited_ms + (core->out.now_ms - note->said_ms) >= core->job.settings.lease_ms)
            return note;
    }
    return NULL;
}

static void suspect(scheduler_core *core, const core_overdue_note *note, member_slot *waiting)
{
    core_cycle *k = &core->services.cycle;
    if (k->note && core->out.now_ms - k->asked_ms < CORE_LEFT_MS) return;
    *k             = (core_cycle){.note = note, .waiting = waiting, .asked_ms = core->out.now_ms};
    wire_control c = {.kind = WIRE_ENQUIRE, .u.enquire = {.rank = note->asker->rank}};
    core_send_all(&core->out, TO_SERVERS, &c);
}

void core_cycle_missing(scheduler_core *core, const wire_control *message)
{
    const core_cycle k            = core->services.cycle;
    const core_overdue_note *note = k.note;
    if (!note || !message->u.missing.known || core->job.has_verdict || core->members.query.dead)
        return;
    if (!core_overdue_lasts(note) || !is_in_step(k.waiting) || !waits_for(note, k.waiting)) return;
    if (note->asker->rank != message->u.missing.rank) return;
    pen_error why;
    core->services.cycle = (core_cycle){0};
    why_set(&why, PEN_MISMATCH,
            "%.100s waits in %.120s for %.100s, which waits in %s of step %" PRId64
            " for the other's '%.100s': neither can go on; sum a loss with pen_step_scalar()",
            MEMBER_NAME(note->asker), note->what, MEMBER_NAME(k.waiting), k.waiting->call,
            message->u.missing.step, message->u.missing.tensor ? message->u.missing.tensor : "");
    why_culprit(&why, PEN_WORKER, note->asker->rank, message->u.missing.step,
                message->u.missing.tensor);
    core_verdict(core, &why);
}

/* ---- a beat ---------------------------------------------------------------------------------- */
void core_cycle_beat(scheduler_core *core, member_slot *waiting)
{
    if (core->job.phase != PHASE_TRAINING || core->job.has_verdict || core->members.query.dead)
        return;
    if (!is_in_step(waiting) || waiting->call_ms < CORE_LEFT_MS / 2 || !may_wait(core)) return;
    member_slot *left = find_left(core, waiting);
    if (left) {
        if (!left->has_said_bye)
            left->step = waiting->step; /* its last beat is older than its end */
        core_left_early(core, left);
        return;
    }
    if (!core->job.n_servers || waiting->call_ms < core->job.settings.lease_ms) return;
    const core_overdue_note *note = find_waiter(core, waiting);
    if (note) suspect(core, note, waiting);
}
