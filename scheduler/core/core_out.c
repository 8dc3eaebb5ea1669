/* core_out.c - what the scheduler's core sends, and what it says.
 *
 * DESIGN.  Every line that the core logs for people is an event, and so is every change of a member's state.  A ring
 * holds the newest CORE_EVENTS_MAX.  They are numbered, so that a reader sees which are new and which it missed.  A
 * restarted scheduler begins without events.
 */
#include "scheduler/core/core_out.h"

#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "scheduler/core/member_sentence.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- messages -------------------------------------------------------------------------------- */
void core_send_peer(const core_out *self, uint32_t peer, const wire_control *message)
{
    self->actions.send(self->actions.user, &peer, 1, message);
}

void core_send(const core_out *self, const member_slot *s, const wire_control *message)
{
    if (s->is_bound) core_send_peer(self, s->peer, message);
}

void core_send_all(core_out *self, unsigned roles, const wire_control *message)
{
    const roster *r = self->all;
    /* Without memory for their list each is sent its own. */
    const bool has_list = VEC_ROOM(self->peers, self->peers_capacity,
                                   (size_t)r->workers.n + r->servers.n + r->observers.n);
    uint32_t n          = 0;
    ROSTER_EACH(s, self->all) {
        if (!(roles & 1u << s->role) || !s->is_bound) continue;
        if (s->state == MEMBER_LEFT || s->state == MEMBER_DEAD) continue;
        if (has_list)
            self->peers[n++] = s->peer;
        else
            core_send_peer(self, s->peer, message);
    }
    if (n) self->actions.send(self->actions.user, self->peers, n, message);
}

void core_log(core_out *self, int level, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    self->actions.log(self->actions.user, level, line);
    if (level <= LOG_INFO) core_event(self, level, line);
}

/* ---- refusals ---------------------------------------------------------------------- */
enum { TURNED_LINES = 4, TURNED_MS = 60000 };

/* At most TURNED_LINES a minute: a refused peer may retry at once. */
static bool may_log(core_out *self)
{
    if (self->turned_n == 0 || self->now_ms - self->turned_ms >= TURNED_MS) {
        self->turned_ms = self->now_ms;
        self->turned_n  = 0;
    }
    return self->turned_n++ < TURNED_LINES;
}

void core_refuse(core_out *self, uint32_t peer, pen_status status, const char *format, ...)
{
    wire_control verdict = {.kind = WIRE_VERDICT};
    va_list args;
    va_start(args, format);
    why_setv(&verdict.u.verdict, status, format, args);
    va_end(args);
    if (may_log(self)) core_log(self, LOG_NOTICE, "turned away: %s", verdict.u.verdict.text);
    core_send_peer(self, peer, &verdict);
}

/* ---- for people ------------------------------------------------------------------------ */
bool core_has_launcher(const core_out *self)
{
    MEMBER_SLOT_EACH(s, &self->all->observers)
        if (s->role == WIRE_LAUNCHER) return true;
    return false;
}

void core_announce(core_out *self, const char *line)
{
    const bool has_launcher = core_has_launcher(self);
    core_log(self, has_launcher ? LOG_INFO : LOG_NOTICE, "%s", line);
    if (has_launcher)
        core_send_all(self, 1u << WIRE_LAUNCHER,
                      &(wire_control){.kind = WIRE_NOTICE, .u.notice = {.text = line}});
}

bool core_move(core_out *self, member_slot *s, member_event event)
{
    const member_state before = s->state;
    if (member_next(&s->state, event) != PEN_OK) return false;
    if (s->state == before) return true;
    core_log(self, LOG_DEBUG, "%s: %s, was %s", MEMBER_NAME(s), member_state_name(s->state),
             member_state_name(before));
    core_event_moved(self, s);
    return true;
}

/* ---- the newest events of the job, for STATUS ------------------------------------------------ */
void core_event(core_out *self, int level, const char *text)
{
    core_event_note *e = &self->event[self->n_events++ % CORE_EVENTS_MAX];
    e->at_ms           = self->now_ms;
    e->level           = level;
    snprintf(e->text, sizeof e->text, "%.*s", (int)sizeof e->text - 1, text);
    for (char *c = e->text; *c; c++) /* some log lines have several */
        if (*c == '\n') *c = ' ';
}

void core_event_moved(core_out *self, const member_slot *s)
{
    static const char *const words[MEMBER_STATE_COUNT] = {
        [MEMBER_ABSENT]  = "has gone without joining",
        [MEMBER_JOINING] = "has connected",
        [MEMBER_ACTIVE]  = "is active",
        [MEMBER_AWAY]    = "has lost its connection",
        [MEMBER_LEFT]    = "has left in good order",
        [MEMBER_DEAD]    = "is dead",
    };
    if (s->rank < 0) return;
    const bool is_bad = s->state == MEMBER_AWAY || s->state == MEMBER_DEAD;
    char text[SENTENCE_MEMBER_BYTES + 32];
    snprintf(text, sizeof text, "%s %s", MEMBER_NAME(s), words[s->state]);
    core_event(self, is_bad ? LOG_WARNING : LOG_INFO, text);
}

uint32_t core_events_fill(const core_out *self, wire_event *out)
{
    const uint64_t newest = self->n_events;
    const uint64_t oldest = newest > CORE_EVENTS_MAX ? newest - CORE_EVENTS_MAX : 0;
    for (uint64_t i = oldest; i < newest; i++) {
        const core_event_note *e = &self->event[i % CORE_EVENTS_MAX];
        out[i - oldest]          = (wire_event){.number = i + 1,
                                                .at_s   = (double)(e->at_ms - self->start_ms) / 1e3,
                                                .level  = e->level,
                                                .text   = e->text};
    }
    return (uint32_t)(newest - oldest);
}
