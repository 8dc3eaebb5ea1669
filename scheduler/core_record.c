/* core_record.c - RECORD_ASK and RECORD: the last calls of every worker, for who asks.
 *
 * DESIGN.  A relay without memory.  A guest asks, every worker answers, and for those who cannot the
 * scheduler does, so that the guest gets one answer per rank and knows when it has all.
 */
#include "scheduler/core_state.h"

static void answer_for(scheduler_core *core, const seat *asker, const seat *s, uint64_t id)
{
    char name[SENTENCE_SEAT_BYTES], text[SENTENCE_SEAT_BYTES + 32];
    const bool is_dead = s->state == MEMBER_DEAD;
    snprintf(text, sizeof text, "%s %s", sentence_seat(name, s),
             is_dead                     ? "is gone"
             : s->state == MEMBER_LEFT   ? "has left the job"
             : s->state == MEMBER_ABSENT ? "has not joined"
                                         : "is not connected");
    wire_control c    = {.kind = WIRE_RECORD};
    c.u.record.id     = id;
    c.u.record.asker  = asker->incarnation;
    c.u.record.rank   = s->rank;
    c.u.record.status = is_dead ? PEN_PEER_LOST : PEN_NOT_FOUND;
    c.u.record.text   = text;
    core_send(core, asker, &c);
}

void core_record_ask(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms)
{
    (void)now_ms;
    const seat_list *workers = &core->roster.workers;
    wire_control c           = {.kind = WIRE_RECORD_ASK};
    c.u.record_ask.id        = message->u.record_ask.id;
    c.u.record_ask.asker     = s->incarnation;
    for (uint32_t i = 0; i < workers->n; i++) {
        if (seat_is_counted(workers->at[i]) && workers->at[i]->is_bound)
            core_send(core, workers->at[i], &c);
        else
            answer_for(core, s, workers->at[i], c.u.record_ask.id);
    }
}

void core_record(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms)
{
    (void)now_ms;
    const seat_list *guests = &core->roster.guests;
    wire_control c          = {.kind = WIRE_RECORD, .u.record = message->u.record};
    c.u.record.rank         = s->rank;
    for (uint32_t i = 0; i < guests->n; i++)
        if (guests->at[i]->incarnation == message->u.record.asker)
            core_send(core, guests->at[i], &c);
}
