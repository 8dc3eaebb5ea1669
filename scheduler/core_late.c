/* core_late.c - who comes, or comes back, while the job trains.
 *
 * DESIGN.  Whoever is late says HELLO, hears the epoch that is, and makes itself ready: a server takes the
 * plan, a worker registers the same model as all others and reaches the servers.  Until then nobody waits for it and
 * nothing is lost should it go again.  The next epoch record names it.
 */
#include "scheduler/core_state.h"
#include <stdlib.h>
#include <string.h>

bool core_is_elastic(const scheduler_core *core)
{
    return core->settings.workers_max > 0 && core->n_servers > 0;
}

bool core_is_late(const scheduler_core *core, const seat *s)
{
    return core->phase == PHASE_TRAINING && core->n_servers > 0 && s->rank >= 0 &&
           seat_is_here(s) && s->in_record != s->incarnation;
}

/* Whether another process may take this seat while the job trains.  Who came in a dead worker's place and died before
 * the epoch named it left the seat as it was: free for the next one. */
bool core_may_sit(const scheduler_core *core, const seat *s)
{
    if (core->phase != PHASE_TRAINING || !core->n_servers || core->inquest.dead) return false;
    if (seat_is_here(s)) return false;
    if (s->role == PEN_SERVER) return true;
    if (s->state == MEMBER_LEFT) return core_is_elastic(core);
    if (s->state == MEMBER_ABSENT) return core_is_elastic(core) || s->has_come_back;
    return true; /* dead, and the job goes on */
}

/* Whether the death of this one would be no verdict, so that who comes with its rank may be believed. */
bool core_may_replace(const scheduler_core *core, const seat *s)
{
    if (core->phase != PHASE_TRAINING || !core->n_servers) return false;
    if (s->role == PEN_SERVER) return core->settings.replicas > 0;
    return core->settings.on_worker_loss != SCHEDULER_LOSS_FAIL;
}

seat *core_late_server(scheduler_core *core)
{
    seat_list *list = &core->roster.servers;
    for (uint32_t i = 0; i < list->n; i++)
        if (core_may_sit(core, list->at[i])) return list->at[i];
    if (core->phase != PHASE_TRAINING || list->n >= core->settings.servers_max) return NULL;
    return roster_grow(list, PEN_SERVER, list->n + 1) == PEN_OK ? list->at[list->n - 1] : NULL;
}

/* ---- a worker's model ------------------------------------------------------------------------ */
void core_late_register(scheduler_core *core, seat *s, const wire_control *message)
{
    pen_error why;
    char name[SENTENCE_SEAT_BYTES];
    if (plan_compare(&message->u.register_, s->rank, s->host, &core->model, -1, "the job", &why) !=
        PEN_OK) {
        core_refuse(core, s->peer, why.status, "%s cannot join: %.400s", sentence_seat(name, s),
                    why.text);
        return;
    }
    s->is_registered = true;
    core_model_catch_up(core, s);
}

/* ---- on_worker_loss=wait --------------------------------------------------------------------- */
void core_announce(scheduler_core *core, const char *line)
{
    const bool has_launcher = core_has_launcher(core);
    core_log(core, has_launcher ? LOG_INFO : LOG_NOTICE, "%s", line);
    if (has_launcher)
        core_send_all(core, 1u << WIRE_LAUNCHER,
                      &(wire_control){.kind = WIRE_NOTICE, .u.notice = {.text = line}});
}

/* Who comes in its place is in no group of theirs: collectives that wait for the dead end here. */
static void tell_waiting(scheduler_core *core, const seat *dead)
{
    wire_control c       = {.kind = WIRE_LOST};
    c.u.lost.rank        = dead->rank;
    c.u.lost.incarnation = dead->incarnation;
    c.u.lost.why         = *dead->loss;
    snprintf(c.u.lost.why.text, sizeof c.u.lost.why.text,
             "%.420s; training waits for another in its place, and a collective cannot: a loss is "
             "summed with the step by pen_step_scalar()",
             dead->loss->text);
    core_send_all(core, TO_WORKERS, &c);
}

void core_wait_for(scheduler_core *core, seat *dead, uint64_t now_ms)
{
    char span[SENTENCE_SPAN_BYTES], line[700];
    pen_error *why = dead->loss ? dead->loss : malloc(sizeof *why);
    if (!why) {
        core_wait_in_vain(core, dead, now_ms);
        return;
    }
    sentence_worker_gone(dead, NULL, now_ms, why);
    core_add_silence(core, dead, now_ms, why);
    dead->loss       = why;
    dead->awaited_ms = now_ms + core->settings.wait_ms;
    snprintf(line, sizeof line, "%.560s; the job waits %s for it to come back", why->text,
             sentence_span(span, core->settings.wait_ms));
    core_announce(core, line);
    core_tell(core, dead);
    tell_waiting(core, dead);
    core_keep(core, now_ms);
}

static void give_up(scheduler_core *core, const seat *s, const char *how, uint64_t now_ms)
{
    pen_error why;
    sentence_worker_gone(s, NULL, now_ms, &why);
    if (s->loss) why = *s->loss;
    const size_t used = strlen(why.text);
    snprintf(why.text + used, sizeof why.text - used, "; %s", how);
    core_verdict(core, &why, now_ms);
}

void core_wait_in_vain(scheduler_core *core, seat *s, uint64_t now_ms)
{
    give_up(core, s, "it is not started again", now_ms);
}

static bool is_awaited(const scheduler_core *core, const seat *s)
{
    return s->awaited_ms && core->phase == PHASE_TRAINING;
}

void core_wait_tick(scheduler_core *core, uint64_t now_ms)
{
    const seat_list *workers = &core->roster.workers;
    char span[SENTENCE_SPAN_BYTES], how[SENTENCE_SPAN_BYTES + 48];
    for (uint32_t i = 0; i < workers->n; i++) {
        const seat *s = workers->at[i];
        if (!is_awaited(core, s) || s->awaited_ms > now_ms) continue;
        snprintf(how, sizeof how, "it has not come back within %s",
                 sentence_span(span, core->settings.wait_ms));
        give_up(core, s, how, now_ms);
    }
}

uint64_t core_wait_next_ms(const scheduler_core *core)
{
    const seat_list *workers = &core->roster.workers;
    uint64_t next            = UINT64_MAX;
    for (uint32_t i = 0; i < workers->n; i++)
        if (is_awaited(core, workers->at[i]) && workers->at[i]->awaited_ms < next)
            next = workers->at[i]->awaited_ms;
    return next;
}
