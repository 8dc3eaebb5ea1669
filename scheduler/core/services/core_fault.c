/* core_fault.c - FAULT and OVERDUE: failed collectives, and waiting ones.
 *
 * DESIGN.  Workers run collectives among themselves and notice a failure at different moments and in different words.
 * Each sends FAULT; the first one of a (group, call) goes to all workers, with the scheduler's knowledge of the
 * culprit.  The newest CORE_FAULTS_MAX are remembered, so that late askers get the same answer.
 * Call 0 stands for any call of a group whose members have changed.  A job that waits for replacements ends with it.
 */
#include "scheduler/core/core_state.h"
#include <ctype.h>
#include <string.h>

/* ---- the state of a worker ---------------------------------------------------- */
/* Silent too long to be called alive, but not yet for a lease. */
static bool is_quiet(const scheduler_core *core, const member_slot *s, uint64_t now_ms)
{
    return s->state == MEMBER_ACTIVE && now_ms - s->last_seen_ms > core->job.settings.lease_ms / 3;
}

static void add_state(const scheduler_core *core, sentence *text, const member_slot *s,
                      const char *subject, uint64_t now_ms)
{
    if (s->state == MEMBER_DEAD)
        sentence_add(text, "%s is gone", subject);
    else if (s->state == MEMBER_LEFT)
        sentence_add(text, "%s has left the job", subject);
    else if (is_quiet(core, s, now_ms))
        sentence_add(text, "%s was last seen %s ago%s%s", subject,
                     SPAN_NAME(now_ms - s->last_seen_ms),
                     s->call[0] && strncmp(s->call, "after ", 6) != 0 ? ", in "
                     : s->call[0]                                     ? ", "
                                                                      : "",
                     s->call);
    else
        sentence_alive(text, s, subject, now_ms);
}

static void name_subject(char *text, size_t size, int32_t n, int32_t rank)
{
    if (n > 1)
        snprintf(text, size, "Rank %d", (int)rank);
    else
        snprintf(text, size, "It");
}

/* ---- FAULT ----------------------------------------------------------------------------------- */
/* "...; it is alive: in user code for 31 s, last call pen_metric" */
static void add_what_is_known(const scheduler_core *core, pen_error *why)
{
    const int32_t rank   = why->missing_n > 0 ? why->missing[0] : why->rank;
    const member_slot *s = roster_find(&core->members.roster, PEN_WORKER, rank);
    if (!s || why->role != PEN_WORKER) return;
    char subject[16];
    sentence text = {0};
    name_subject(subject, sizeof subject, why->missing_n, rank);
    sentence_add(&text, "%s; ", why->text);
    const size_t at = text.used;
    add_state(core, &text, s, subject, core->out.now_ms);
    text.text[at]    = (char)tolower((unsigned char)text.text[at]);
    why->last_seen_s = (double)(core->out.now_ms - s->last_seen_ms) / 1e3;
    memcpy(why->text, text.text, sizeof why->text);
}

static const core_fault_note *find_note(const core_services *services, uint64_t group,
                                        uint64_t call)
{
    for (int i = 0; i < CORE_FAULTS_MAX && (uint64_t)i < services->n_faults; i++) {
        const core_fault_note *note = &services->fault[i];
        if (note->group == group && note->call == call) return note;
    }
    return NULL;
}

/* Replaces the oldest. */
static const core_fault_note *note_down(scheduler_core *core, const member_slot *s,
                                        const wire_fault *said)
{
    core_services *services = &core->services;
    core_fault_note *note   = &services->fault[services->n_faults++ % CORE_FAULTS_MAX];
    *note                   = (core_fault_note){said->group, said->call, said->why};
    core_bound_claim(s, &note->why);
    const pen_error *loss = note->why.status == PEN_PEER_LOST && note->why.role == PEN_WORKER
                                ? core_loss_of(core, note->why.rank)
                                : NULL;
    if (loss) note->why = *loss;
    if (note->why.status == PEN_TIMED_OUT) add_what_is_known(core, &note->why);
    return note;
}

static wire_control faulted_message(const core_fault_note *note)
{
    wire_control c = {.kind    = WIRE_FAULTED,
                      .u.fault = {.group = note->group, .call = note->call, .why = note->why}};
    return c;
}

void core_fault(scheduler_core *core, member_slot *s, const wire_control *message)
{
    const wire_fault *said      = &message->u.fault;
    const core_fault_note *note = find_note(&core->services, said->group, said->call);
    if (note) {
        const wire_control again = faulted_message(note);
        core_send(&core->out, s, &again);
        return;
    }
    note                       = note_down(core, s, said);
    const wire_control faulted = faulted_message(note);
    core_log(&core->out, LOG_INFO, "%s", note->why.text);
    if (!said->call && core_waits(core)) core_verdict(core, &note->why);
    core_send_all(&core->out, TO_WORKERS, &faulted); /* only the group handles it */
}

/* ---- OVERDUE --------------------------------------------------------------------------------- */
/* "waiting 30 s for rank 0 in barrier 'epoch end' (call 212).  It is alive: ..." */
static void write_waiting(const scheduler_core *core, const core_overdue_note *note,
                          uint64_t now_ms, sentence *text)
{
    char subject[16];
    const uint32_t n         = note->n_missing;
    const member_slot *first = roster_find(&core->members.roster, PEN_WORKER, note->missing[0]);
    sentence_add(text, "waiting %s for rank%s",
                 SPAN_NAME(note->waited_ms + (now_ms - note->said_ms)), n == 1 ? "" : "s");
    for (uint32_t i = 0; i < n; i++) sentence_add(text, " %d", (int)note->missing[i]);
    sentence_add(text, " in %s.  ", note->what);
    name_subject(subject, sizeof subject, (int32_t)n, note->missing[0]);
    add_state(core, text, first, subject, now_ms);
}

/* The note of this worker, else the oldest. */
static core_overdue_note *overdue_of(scheduler_core *core, const member_slot *s)
{
    core_overdue_note *oldest = &core->services.overdue[0];
    for (int i = 0; i < CORE_OVERDUES_MAX; i++) {
        core_overdue_note *note = &core->services.overdue[i];
        if (note->asker == s) return note;
        if (note->said_ms < oldest->said_ms) oldest = note;
    }
    return oldest;
}

/* A member that left so long ago that none of its messages can be in flight. */
static const member_slot *left_for_good(const scheduler_core *core, const core_overdue_note *note)
{
    for (uint32_t i = 0; i < note->n_missing; i++) {
        const member_slot *s = roster_find(&core->members.roster, PEN_WORKER, note->missing[i]);
        if (s && s->state == MEMBER_LEFT && core->out.now_ms - s->last_seen_ms >= CORE_LEFT_MS)
            return s;
    }
    return NULL;
}

void core_overdue(scheduler_core *core, member_slot *s, const wire_control *message)
{
    const uint32_t n       = message->u.overdue.n_missing;
    const int32_t *missing = message->u.overdue.missing;
    if (!n || n > CORE_OVERDUE_RANKS || !roster_find(&core->members.roster, PEN_WORKER, missing[0]))
        return;
    core_overdue_note *note = overdue_of(core, s);
    *note                   = (core_overdue_note){.asker     = s,
                                                  .waited_ms = message->u.overdue.waited_ms,
                                                  .said_ms   = core->out.now_ms,
                                                  .n_missing = n};
    memcpy(note->missing, missing, n * sizeof *missing);
    snprintf(note->what, sizeof note->what, "%.199s",
             message->u.overdue.what ? message->u.overdue.what : "");
    sentence text = {0};
    write_waiting(core, note, core->out.now_ms, &text);
    if (!message->u.overdue.quiet)
        core_send(&core->out, s,
                  &(wire_control){.kind = WIRE_NOTICE, .u.notice = {.text = text.text}});
    const member_slot *left = left_for_good(core, note);
    if (left) {
        /* It will never come: notifies its waiters now instead of at their deadline. */
        wire_control c = {.kind   = WIRE_LOST,
                          .u.lost = {.rank = left->rank, .incarnation = left->incarnation}};
        /* a loss fails each group, which adds the call */
        why_set(&c.u.lost.why, PEN_MISMATCH, "%s has left the job and rank %d waits for it%s%s",
                MEMBER_NAME(left), (int)note->asker->rank, core_goes_on(core) ? "" : " in ",
                core_goes_on(core) ? "" : note->what);
        why_culprit(&c.u.lost.why, PEN_WORKER, left->rank, left->step, NULL);
        if (core_goes_on(core))
            core_send_all(&core->out, TO_WORKERS, &c);
        else
            core_verdict(core, &c.u.lost.why);
    }
}

/* The end of a wait is not reported, but a worker in another call has stopped waiting. */
bool core_overdue_lasts(const core_overdue_note *note)
{
    const member_slot *s = note->asker;
    return s && member_slot_is_counted(s) && s->beat_ms < note->said_ms + s->call_ms;
}

bool core_overdue_waiting(const scheduler_core *core, int index, uint64_t now_ms, sentence *text)
{
    const core_overdue_note *note = &core->services.overdue[index];
    if (!core_overdue_lasts(note)) return false;
    for (int i = 0; i < index; i++) /* all waiters in one call have the same sentence */
        if (core_overdue_lasts(&core->services.overdue[i]) &&
            strcmp(core->services.overdue[i].what, note->what) == 0)
            return false;
    write_waiting(core, note, now_ms, text);
    return true;
}
