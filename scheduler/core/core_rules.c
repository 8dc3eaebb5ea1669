/* core_rules.c - what the settings and the phase of the job allow; nothing here changes state.
 *
 * DESIGN.  A late member sends HELLO, receives the current epoch, and gets ready: a server takes the plan, a worker
 * registers the same model as all others and reaches the servers.  Until then no member waits for it, and it may leave
 * again.  The next epoch record names it.
 */
#include "scheduler/core/core_state.h"

bool core_runs(const scheduler_core *core)
{
    return core->job.phase >= PHASE_REGISTERING && core->job.phase <= PHASE_TRAINING;
}

bool core_is_elastic(const scheduler_core *core)
{
    return core->job.settings.workers_max > 0 && core->job.n_servers > 0;
}

bool core_is_late(const scheduler_core *core, const member_slot *s)
{
    return core->job.phase == PHASE_TRAINING && core->job.n_servers > 0 && s->rank >= 0 &&
           member_slot_is_here(s) && s->in_view != s->incarnation;
}

/* Whether another process may take this slot while the job trains.  A replacement that died before the epoch named it
 * left the slot free for the next one. */
bool core_may_sit(const scheduler_core *core, const member_slot *s)
{
    if (core->job.phase != PHASE_TRAINING || !core->job.n_servers || core->members.query.dead)
        return false;
    if (member_slot_is_here(s)) return false;
    if (s->role == PEN_SERVER) return true;
    if (s->state == MEMBER_LEFT) return core_is_elastic(core);
    if (s->state == MEMBER_ABSENT) return core_is_elastic(core) || s->has_come_back;
    return true; /* dead, and the job continues */
}

/* Whether its death would not be a verdict, so that a process with its rank may be its replacement. */
bool core_may_replace(const scheduler_core *core, const member_slot *s)
{
    if (core->job.phase != PHASE_TRAINING || !core->job.n_servers) return false;
    if (s->role == PEN_SERVER) return core->job.settings.replicas > 0;
    return core->job.settings.on_worker_loss != LOSS_FAIL;
}

bool core_goes_on(const scheduler_core *core)
{
    const bool can =
        core->job.servers_known && (!core->job.n_servers || core->job.phase >= PHASE_TRAINING);
    return core->job.settings.on_worker_loss == LOSS_CONTINUE && can;
}

const pen_error *core_loss_of(const scheduler_core *core, int32_t rank)
{
    const member_slot *s = roster_find(&core->members.roster, PEN_WORKER, rank);
    return s && core_goes_on(core) ? s->loss : NULL;
}

const member_slot *core_loss_lowest(const scheduler_core *core)
{
    MEMBER_SLOT_EACH(each, &core->members.roster.workers)
        if (member_slot_is_counted(each)) return each;
    return NULL;
}

const member_slots *core_holders(const scheduler_core *core)
{
    const roster *r = &core->members.roster;
    return core->job.n_servers ? &r->servers : &r->workers;
}

bool core_is_holder(const scheduler_core *core, const member_slot *s)
{
    return s->holds_state && s->role == (core->job.n_servers ? PEN_SERVER : PEN_WORKER);
}

bool core_may_change(const scheduler_core *core)
{
    if (core->job.phase != PHASE_TRAINING) return false;
    MEMBER_SLOT_EACH(s, core_holders(core))
        if (!s->holds_state && member_slot_is_counted(s)) return false;
    return core_holders(core)->n > 0;
}

bool core_waits(const scheduler_core *core)
{
    return core->job.settings.on_worker_loss == LOSS_WAIT && core->job.n_servers > 0;
}

static pen_status check_without_servers(const scheduler_settings *settings, pen_error *why)
{
    if (settings->on_worker_loss == LOSS_WAIT)
        return why_set(why, PEN_BAD_SETTING,
                       "on_worker_loss=wait needs servers, which keep the model for a worker that "
                       "comes back; add --servers, or set 'fail' or 'continue'");
    if (settings->replicas > 0)
        return why_set(
            why, PEN_BAD_SETTING,
            "replicas=%u needs servers to hold the copies, and the job has none; add --servers",
            (unsigned)settings->replicas);
    if (settings->workers_max > 0)
        return why_set(why, PEN_BAD_SETTING,
                       "workers_max=%u needs servers, which give the model to workers that join "
                       "later; add --servers, or leave out workers_max",
                       (unsigned)settings->workers_max);
    return PEN_OK;
}

pen_status core_check_kind(const scheduler_settings *settings, uint32_t n_servers, pen_error *why)
{
    const uint64_t most = settings->servers_max > n_servers ? settings->servers_max : n_servers;
    if (!n_servers) return check_without_servers(settings, why);
    if (settings->replicas < most) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING,
                   "replicas=%u needs at least %u servers, one for each copy; the job has %u",
                   (unsigned)settings->replicas, (unsigned)settings->replicas + 1, (unsigned)most);
}
