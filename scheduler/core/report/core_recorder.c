/* core_recorder.c - RECORD_ASK and RECORD: the last calls of every worker.
 *
 * DESIGN.  A relay without memory.  An observer asks and every worker answers; the scheduler answers for those that
 * cannot, so that the observer gets one answer per rank and knows when it has all.  The page of this process is asker
 * 0, and its answers are merged here.
 */
#include "scheduler/core/core_state.h"

static void pass_on(core_reports *self, const core_out *out, const wire_control *record)
{
    const uint64_t asker        = record->u.record.asker;
    const member_slot *observer = asker ? roster_of(out->all, asker) : NULL;
    if (!asker && self->calls && record->u.record.id == self->n_asked)
        stuck_take_record(self->calls, record);
    if (observer && observer->rank < 0) core_send(out, observer, record);
}

static void answer_for(core_reports *self, const core_out *out, const member_slot *s,
                       uint64_t asker, uint64_t id)
{
    char text[SENTENCE_MEMBER_BYTES + 32];
    wire_control c    = {.kind = WIRE_RECORD};
    c.u.record.id     = id;
    c.u.record.asker  = asker;
    c.u.record.rank   = s->rank;
    c.u.record.status = sentence_absent(text, sizeof text, s);
    c.u.record.text   = text;
    pass_on(self, out, &c);
}

void core_recorder_ask(core_reports *self, const core_out *out, uint64_t asker, uint64_t id)
{
    wire_control c = {.kind = WIRE_RECORD_ASK, .u.record_ask = {.id = id, .asker = asker}};
    MEMBER_SLOT_EACH(each, &out->all->workers) {
        if (member_slot_is_counted(each) && each->is_bound)
            core_send(out, each, &c);
        else
            answer_for(self, out, each, asker, id);
    }
}

void core_recorder(core_reports *self, const core_out *out, const member_slot *s,
                   const wire_control *message)
{
    wire_control c  = {.kind = WIRE_RECORD, .u.record = message->u.record};
    c.u.record.rank = s->rank;
    pass_on(self, out, &c);
}

static void begin_report(void *user, const wire_control *status)
{
    stuck_take_status(user, status);
}

void scheduler_core_ask_recorders(scheduler_core *core, uint64_t now_ms)
{
    stuck *report = stuck_create();
    if (!report) return;
    stuck_destroy(core->reports.calls);
    core->reports.calls = report;
    core->reports.n_asked++;
    scheduler_core_describe(core, now_ms, begin_report, report);
    core_recorder_ask(&core->reports, &core->out, 0, core->reports.n_asked);
}

const stuck *scheduler_core_recorders(const scheduler_core *core)
{
    return core->reports.calls;
}
