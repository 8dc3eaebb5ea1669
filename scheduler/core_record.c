/* core_record.c - RECORD_ASK and RECORD: the last calls of every worker, for who asks.
 *
 * DESIGN.  A relay without memory.  A guest asks, every worker answers, and for those who cannot the
 * scheduler does, so that the guest gets one answer per rank and knows when it has all.  The page of this
 * process asks too: as asker 0, which no guest is, and the answers are merged here.
 */
#include "scheduler/core_state.h"

static void pass_on(scheduler_core *core, const wire_control *record)
{
    const seat_list *guests = &core->roster.guests;
    if (record->u.record.asker == 0 && core->report && record->u.record.id == core->reports)
        stuck_take_record(core->report, record);
    for (uint32_t i = 0; i < guests->n; i++)
        if (guests->at[i]->incarnation == record->u.record.asker)
            core_send(core, guests->at[i], record);
}

static void answer_for(scheduler_core *core, const seat *s, uint64_t asker, uint64_t id)
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
    c.u.record.asker  = asker;
    c.u.record.rank   = s->rank;
    c.u.record.status = is_dead ? PEN_PEER_LOST : PEN_NOT_FOUND;
    c.u.record.text   = text;
    pass_on(core, &c);
}

static void ask_all(scheduler_core *core, uint64_t asker, uint64_t id)
{
    const seat_list *workers = &core->roster.workers;
    wire_control c = {.kind = WIRE_RECORD_ASK, .u.record_ask = {.id = id, .asker = asker}};
    for (uint32_t i = 0; i < workers->n; i++) {
        if (seat_is_counted(workers->at[i]) && workers->at[i]->is_bound)
            core_send(core, workers->at[i], &c);
        else
            answer_for(core, workers->at[i], asker, id);
    }
}

void core_record_ask(scheduler_core *core, seat *s, const wire_control *message)
{
    ask_all(core, s->incarnation, message->u.record_ask.id);
}

void core_record(scheduler_core *core, seat *s, const wire_control *message)
{
    wire_control c  = {.kind = WIRE_RECORD, .u.record = message->u.record};
    c.u.record.rank = s->rank;
    pass_on(core, &c);
}

static void begin_report(void *user, const wire_control *status)
{
    stuck_take_status(user, status);
}

void scheduler_core_ask_records(scheduler_core *core, uint64_t now_ms)
{
    stuck *report = stuck_create();
    if (!report) return;
    stuck_destroy(core->report);
    core->report = report;
    core->reports++;
    scheduler_core_describe(core, now_ms, begin_report, report);
    ask_all(core, 0, core->reports);
}

const stuck *scheduler_core_records(const scheduler_core *core)
{
    return core->report;
}
