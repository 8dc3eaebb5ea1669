/* core_wait.c - on_worker_loss=wait: a worker died, and the job waits for its replacement.
 *
 * DESIGN.  The dead worker stays in the view, because its pushes count.  Its replacement gets ready and is in the
 * next record.  The job ends if no replacement is started, or none comes in time.
 */
#include "scheduler/core/core_state.h"
#include <stdlib.h>
#include <string.h>

/* `missing` tells launchers that a restart of the whole job would not bring it back either. */
static void give_up(scheduler_core *core, const member_slot *s, const char *how)
{
    pen_error why;
    sentence_worker_gone(s, NULL, core->out.now_ms, &why);
    if (s->loss) why = *s->loss;
    const size_t used = strlen(why.text);
    snprintf(why.text + used, sizeof why.text - used, "; %s", how);
    why.missing_n  = 1;
    why.missing[0] = s->rank;
    core_verdict(core, &why);
}

void core_wait_in_vain(scheduler_core *core, const member_slot *s)
{
    const bool is_in_vain = s->has_no_restarts || (s->has_left_early && s->has_ended);
    if (s->awaited_ms && is_in_vain) give_up(core, s, "it is not started again");
}

void core_wait_for(scheduler_core *core, member_slot *dead)
{
    char line[700];
    pen_error *why = dead->loss ? dead->loss : malloc(sizeof *why);
    if (!why) {
        give_up(core, dead, "it is not started again");
        return;
    }
    sentence_worker_gone(dead, NULL, core->out.now_ms, why);
    core_add_silence(core, dead, core->out.now_ms, why);
    dead->loss       = why;
    dead->awaited_ms = core->out.now_ms + core->job.settings.wait_ms;
    snprintf(line, sizeof line, "%.560s; the job waits %s for it to come back", why->text,
             SPAN_NAME(core->job.settings.wait_ms));
    core_announce(&core->out, line);
    core_notify(core, dead);
    /* The replacement is in none of their groups: ends collectives that wait for the dead worker. */
    wire_control c = {
        .kind   = WIRE_LOST,
        .u.lost = {.rank = dead->rank, .incarnation = dead->incarnation, .why = *dead->loss}};
    snprintf(c.u.lost.why.text, sizeof c.u.lost.why.text,
             "%.420s; training waits for a replacement, a collective cannot; sum a loss with "
             "pen_step_scalar()",
             dead->loss->text);
    core_send_all(&core->out, TO_WORKERS, &c);
    core_persist(core);
    core_wait_in_vain(core, dead);
}

static bool is_awaited(const scheduler_core *core, const member_slot *s)
{
    return s->awaited_ms && core->job.phase == PHASE_TRAINING;
}

void core_wait_tick(scheduler_core *core)
{
    char how[SENTENCE_SPAN_BYTES + 48];
    MEMBER_SLOT_EACH(s, &core->members.roster.workers) {
        if (!is_awaited(core, s) || s->awaited_ms > core->out.now_ms) continue;
        snprintf(how, sizeof how, "it has not come back within %s",
                 SPAN_NAME(core->job.settings.wait_ms));
        give_up(core, s, how);
    }
}

uint64_t core_wait_next_ms(const scheduler_core *core)
{
    uint64_t next = UINT64_MAX;
    MEMBER_SLOT_EACH(each, &core->members.roster.workers)
        if (is_awaited(core, each) && each->awaited_ms < next) next = each->awaited_ms;
    return next;
}
