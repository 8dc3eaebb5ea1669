/* core_last_will.c - the scheduler's last will: the sentence members report when it is gone.
 *
 * DESIGN.  The scheduler reports every other death in one sentence for all.  It cannot report its own, and survivors
 * notice it at different moments and in different steps.  So it sends them the sentence beforehand: to all at once
 * whenever it changes, at most WILLS_PER_LEASE times a lease, and to each member that joins or returns.  Survivors
 * differ only if it dies between the first and the last of those sends.
 */
#include "scheduler/core/core_state.h"
#include <string.h>

enum { WILLS_PER_LEASE = 10 };

static const member_slot *ahead(const scheduler_core *core)
{
    MEMBER_SLOT_EACH(each, &core->members.roster.workers)
        if (each->step >= 0 && each->step == core->job.step) return each;
    return NULL;
}

void core_last_will_write(scheduler_core *core)
{
    sentence_scheduler_gone(core->job.address, core->job.host, ahead(core),
                            &core->reports.last_will);
}

void core_last_will_notify(scheduler_core *core, const member_slot *s)
{
    core_send(&core->out, s,
              &(wire_control){.kind = WIRE_WILL, .u.verdict = core->reports.last_will});
}

void core_last_will_heard_step(scheduler_core *core)
{
    if (core->reports.last_will.step < 0 && core->job.step >= 0)
        core->reports.last_will_ms = core->out.now_ms;
}

void core_last_will_tick(scheduler_core *core)
{
    core->reports.last_will_ms = core->out.now_ms + core->job.settings.lease_ms / WILLS_PER_LEASE;
    const pen_error then       = core->reports.last_will;
    core_last_will_write(core);
    if (strcmp(then.text, core->reports.last_will.text) == 0) return;
    core_send_all(&core->out, TO_WORKERS | TO_SERVERS,
                  &(wire_control){.kind = WIRE_WILL, .u.verdict = core->reports.last_will});
}

uint64_t core_last_will_next_ms(const scheduler_core *core)
{
    return core_runs(core) ? core->reports.last_will_ms : UINT64_MAX;
}
