/* core_meet.c - MEET, MET, NOTICE: who meets whom, and what those who wait are told. */
#include "scheduler/core_state.h"

static bool is_open(const meet *m)
{
    return m->is_used && !m->is_over;
}

static wire_control met_message(const meet *m)
{
    wire_control c     = {.kind = WIRE_MET};
    c.u.met.generation = m->generation;
    c.u.met.status     = m->status;
    if (m->status == PEN_OK && m->size) {
        c.u.met.data      = m->data;
        c.u.met.data_size = m->size;
    }
    return c;
}

/* A rank that has left never comes; those who wait for it are told at once instead of at their
 * deadline. */
static void fail_if_left(scheduler_core *core, const meet *m, uint64_t now_ms)
{
    const seat_list *workers = &core->roster.workers;
    const seat *left         = NULL;
    int32_t waits            = -1;
    for (uint32_t i = 0; i < workers->n; i++) {
        if (m->has_come[i] && waits < 0) waits = (int32_t)i;
        if (!m->has_come[i] && !left && workers->at[i]->state == MEMBER_LEFT) left = workers->at[i];
    }
    if (!left || waits < 0) return;

    char name[SENTENCE_SEAT_BYTES], place[MEET_LABEL_BYTES + 64];
    pen_error why;
    meet_name(m, place, sizeof place);
    why_set(&why, PEN_MISMATCH, "%s has left the job and rank %d waits for it in %s",
            sentence_seat(name, left), (int)waits, place);
    why_culprit(&why, PEN_WORKER, left->rank, left->step, m->label);
    core_verdict(core, &why, now_ms);
}

void core_meet_left(scheduler_core *core, const seat *s, uint64_t now_ms)
{
    for (int i = 0; i < MEET_SLOTS; i++) {
        const meet *m = &core->meets.slot[i];
        if (is_open(m) && !m->has_come[s->rank]) fail_if_left(core, m, now_ms);
    }
}

/* One that waits for a rank the job goes on without never ends otherwise. */
static void give_up_if_lost(scheduler_core *core, meet *m)
{
    const seat_list *workers = &core->roster.workers;
    uint32_t i               = 0;
    while (i < workers->n && (m->has_come[i] || !core_loss_of(core, (int32_t)i))) i++;
    if (i == workers->n) return;
    meet_give_up(&core->meets, m, PEN_PEER_LOST);
    const wire_control met = met_message(m);
    core_send_all(core, TO_WORKERS, &met);
}

void core_meet_lost(scheduler_core *core)
{
    for (int i = 0; i < MEET_SLOTS; i++)
        if (is_open(&core->meets.slot[i])) give_up_if_lost(core, &core->meets.slot[i]);
}

enum { MISSING_MAX = 32 };

/* Who is told, and what: the sentence, and for programs the first ranks that have not come. */
typedef struct {
    sentence text;
    int32_t missing[MISSING_MAX];
} meet_notice;

static wire_control notice_message(const scheduler_core *core, const meet *m, meet_notice *n,
                                   uint64_t now_ms)
{
    wire_control c = {.kind = WIRE_NOTICE};
    n->text        = (sentence){0};
    core_meet_waiting(core, m, now_ms, &n->text);
    for (uint32_t i = 0; i < core->roster.workers.n && c.u.notice.n_missing < MISSING_MAX; i++)
        if (!m->has_come[i]) n->missing[c.u.notice.n_missing++] = (int32_t)i;
    c.u.notice.text       = n->text.text;
    c.u.notice.generation = m->generation;
    c.u.notice.missing    = n->missing;
    return c;
}

/* A rank that says again that it has come may be about to give up: it is told whom it waits for. */
static void tell_whom(scheduler_core *core, const seat *s, const meet *m, uint64_t now_ms)
{
    meet_notice n;
    wire_control notice   = notice_message(core, m, &n, now_ms);
    notice.u.notice.quiet = true;
    core_send(core, s, &notice);
}

void core_meet(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms)
{
    if (core->has_verdict) core_tell(core, s);
    if (core->phase < PHASE_REGISTERING || core->phase > PHASE_TRAINING) return;

    meet *m = NULL;
    pen_error why;
    wire_control met;
    switch (meet_arrive(&core->meets, s->rank, message, now_ms, &m, &why)) {
    case MEET_COMPLETE:
        met = met_message(m);
        core_send_all(core, TO_WORKERS, &met);
        break;
    case MEET_REPEATED:
        met = met_message(m);
        core_send(core, s, &met);
        break;
    case MEET_WAIT:
        fail_if_left(core, m, now_ms);
        if (is_open(m)) give_up_if_lost(core, m);
        break;
    case MEET_KNOWN: tell_whom(core, s, m, now_ms); break;
    case MEET_FAILED: core_verdict(core, &why, now_ms); break;
    case MEET_IGNORED: break;
    }
}

/* ---- waiting --------------------------------------------------------------------------------- */
enum { WAITING_TAIL_BYTES = 420 }; /* kept free for what follows the list of ranks */

static const seat *add_absent(const scheduler_core *core, const meet *m, sentence *text)
{
    const seat_list *workers = &core->roster.workers;
    const seat *first        = NULL;
    uint32_t left            = workers->n - m->n_come;
    sentence_add(text, " rank%s", left == 1 ? "" : "s");
    for (uint32_t i = 0; i < workers->n; i++) {
        if (m->has_come[i]) continue;
        if (!first) first = workers->at[i];
        if (sentence_room(text) < WAITING_TAIL_BYTES) {
            sentence_add(text, " and %u more", left);
            break;
        }
        sentence_add(text, " %u", i);
        left--;
    }
    return first;
}

void core_meet_waiting(const scheduler_core *core, const meet *m, uint64_t now_ms, sentence *text)
{
    char span[SENTENCE_SPAN_BYTES], place[MEET_LABEL_BYTES + 64], subject[16] = "It";
    meet_name(m, place, sizeof place);
    sentence_add(text, "waiting %s for", sentence_span(span, now_ms - m->since_ms));
    const seat *first = add_absent(core, m, text);
    sentence_add(text, " in %s.  ", place);
    if (core->roster.workers.n - m->n_come > 1)
        snprintf(subject, sizeof subject, "Rank %d", (int)first->rank);
    sentence_alive(text, first, subject, now_ms);
}

static void warn(scheduler_core *core, meet *m, uint64_t now_ms)
{
    meet_notice n;
    const wire_control notice = notice_message(core, m, &n, now_ms);
    const seat_list *ranks    = &core->roster.workers;
    for (uint32_t i = 0; i < ranks->n; i++)
        if (m->has_come[i]) core_send(core, ranks->at[i], &notice);
    core_log(core, LOG_INFO, "%s", n.text.text);
}

static uint64_t warn_ms(const scheduler_core *core, const meet *m)
{
    return m->warn_ms ? m->warn_ms : m->since_ms + core->settings.warn_ms;
}

static bool is_watched(const scheduler_core *core, const meet *m)
{
    return is_open(m) && core->phase <= PHASE_TRAINING;
}

/* Told again when the wait has doubled: 30 s, 60 s, 120 s, ... */
void core_meet_tick(scheduler_core *core, uint64_t now_ms)
{
    for (int i = 0; i < MEET_SLOTS; i++) {
        meet *m = &core->meets.slot[i];
        if (!is_watched(core, m) || warn_ms(core, m) > now_ms) continue;
        warn(core, m, now_ms);
        m->warn_ms = now_ms + (now_ms - m->since_ms);
    }
}

uint64_t core_meet_next_ms(const scheduler_core *core)
{
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < MEET_SLOTS; i++) {
        const meet *m = &core->meets.slot[i];
        if (is_watched(core, m) && warn_ms(core, m) < next) next = warn_ms(core, m);
    }
    return next;
}
