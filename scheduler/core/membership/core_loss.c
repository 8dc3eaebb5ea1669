/* core_loss.c - on_worker_loss=continue: a worker died and the job continues without it.
 *
 * DESIGN.  No single worker has state that only it holds: the model is on all workers, or on servers.  So a death need
 * not be a verdict.  LOST informs all live members, with the sentence of a verdict, and from then on no member waits
 * for that rank.  Collectives end with PEER_LOST, groups when their survivors have agreed (core_shrink.c), and with
 * servers the epoch (core_epoch.c).  The job fails when too few workers live, and ends in good order when the last live
 * one has left.  A worker that returns is no longer lost.
 * Only the first values are on rank 0 alone until servers have them.  When it dies servers are asked; if one lacks
 * values, the job ends.
 */
#include "scheduler/core/core_state.h"
#include <inttypes.h>
#include <stdlib.h>

static wire_control lost_message(const scheduler_core *core, const member_slot *dead)
{
    wire_control c       = {.kind = WIRE_LOST};
    c.u.lost.rank        = dead->rank;
    c.u.lost.incarnation = dead->incarnation;
    c.u.lost.why         = *core_loss_of(core, dead->rank);
    return c;
}

void core_loss_catch_up(scheduler_core *core, const member_slot *s)
{
    MEMBER_SLOT_EACH(dead, &core->members.roster.workers) {
        if (!core_loss_of(core, dead->rank) || dead == s) continue;
        const wire_control c = lost_message(core, dead);
        core_send(&core->out, s, &c);
    }
}

static bool remember(scheduler_core *core, member_slot *dead)
{
    if (core->members.first_lost < 0) core->members.first_lost = dead->rank;
    if (!dead->loss) dead->loss = malloc(sizeof *dead->loss);
    if (!dead->loss) return false;
    sentence_worker_gone(dead, NULL, core->out.now_ms, dead->loss);
    core_add_silence(core, dead, core->out.now_ms, dead->loss);
    return true;
}

static bool has_survivor(const scheduler_core *core)
{
    const uint64_t needed = core->job.settings.workers_min ? core->job.settings.workers_min : 1;
    uint32_t n            = 0;
    MEMBER_SLOT_EACH(s, &core->members.roster.workers) {
        const bool has_done = s->state == MEMBER_LEFT && !s->is_stopped; /* the job ends */
        const bool comes    = member_slot_is_here(s) && !core_is_late(core, s);
        const bool may_come = s->state == MEMBER_ABSENT && !core->job.n_servers;
        n += comes || has_done || may_come;
    }
    return n >= needed;
}

/* ---- initial values -------------------------------------------------------------------------- */
void core_loss_missing(scheduler_core *core, const wire_control *message)
{
    const pen_error *loss = core_loss_of(core, 0);
    pen_error why;
    if (!message->u.missing.lacks_values || message->u.missing.rank != 0 || !loss ||
        core->job.has_verdict)
        return;
    why_set(&why, PEN_PEER_LOST,
            "%.400s; the first values were not on all servers, and no other rank has them: start "
            "the job again",
            loss->text);
    why_culprit(&why, PEN_WORKER, loss->rank, loss->step, loss->tensor);
    core_verdict(core, &why);
}

/* ---- a loss ---------------------------------------------------------------------------------- */
void core_go_on(scheduler_core *core, member_slot *dead)
{
    if (!remember(core, dead) || !has_survivor(core)) {
        /* The cause is the first death, which may have caused the others. */
        const pen_error *first = core_loss_of(core, core->members.first_lost);
        uint32_t living        = 0;
        MEMBER_SLOT_EACH(each, &core->members.roster.workers)
            living += member_slot_is_counted(each);
        pen_error why;
        if (!first) sentence_worker_gone(dead, NULL, core->out.now_ms, &why);
        if (first) why = *first;
        if (living)
            why_set(&why, PEN_PEER_LOST,
                    "%u worker%s left and the job needs %" PRIu64 "; the first one lost: %.400s",
                    living, living == 1 ? " is" : "s are", core->job.settings.workers_min,
                    first ? first->text : why.text);
        else if (first && core->members.roster.workers.n > 1)
            why_set(&why, PEN_PEER_LOST, "all workers are gone; the first one lost: %.500s",
                    first->text);
        if (first) why_culprit(&why, PEN_WORKER, first->rank, first->step, first->tensor);
        core_verdict(core, &why);
        return;
    }
    const wire_control lost = lost_message(core, dead);
    core_log(&core->out, core_has_launcher(&core->out) ? LOG_INFO : LOG_NOTICE,
             "%s; the job goes on without it", lost.u.lost.why.text);
    core_notify(core, dead);
    core_send_all(&core->out, TO_WORKERS | TO_OBSERVERS, &lost);
    wire_control c = {.kind = WIRE_ENQUIRE, .u.enquire = {.rank = dead->rank}};
    if (dead->rank == 0 && core->model.restore < 0) core_send_all(&core->out, TO_SERVERS, &c);
    core_shrink_settle(&core->services.shrinks, &core->out);
    core_epoch_want(core, core->out.now_ms, "%.120s is gone", MEMBER_NAME(dead));
    core->due |= DUE_MODEL | DUE_END; /* no member waits for the dead */
}
