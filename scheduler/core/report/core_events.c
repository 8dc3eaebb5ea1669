/* core_events.c - the newest events of this job, for STATUS.
 *
 * DESIGN.  Every line that the core logs for people is an event, and so is every change of a member's state.  A ring
 * holds the newest CORE_EVENTS_MAX.  They are numbered, so that a reader sees which are new and which it missed.  A
 * restarted scheduler begins without events.
 */
#include "scheduler/core/core_out.h"
#include "scheduler/core/member_sentence.h"
#include <string.h>

void core_event(core_out *self, int level, const char *text)
{
    core_event_note *e = &self->event[self->n_events++ % CORE_EVENTS_MAX];
    e->at_ms           = self->now_ms;
    e->level           = level;
    snprintf(e->text, sizeof e->text, "%s", text);
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
