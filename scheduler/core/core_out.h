/* core_out.h - what the core sends and says: messages, log lines, the newest events.  It calls nothing above it. */
#ifndef SCHEDULER_CORE_OUT_H
#define SCHEDULER_CORE_OUT_H

#include "common/base/log.h"
#include "scheduler/core/core.h"
#include "scheduler/core/membership/roster.h"

enum { CORE_EVENTS_MAX = 128 };

typedef struct {
    uint64_t at_ms;
    int level;
    char text[352];
} core_event_note;

typedef struct {
    scheduler_actions actions;
    const roster *all;
    uint64_t start_ms, now_ms; /* now_ms: of the latest external call */

    core_event_note event[CORE_EVENTS_MAX]; /* a ring */
    uint64_t n_events;                      /* since the beginning */

    uint64_t turned_ms; /* when the count of "turned away" lines began */
    uint32_t turned_n;

    uint32_t *peers; /* scratch of core_send_all */
    size_t peers_capacity;
} core_out;

enum { /* sets of roles */
       TO_WORKERS   = 1 << PEN_WORKER,
       TO_SERVERS   = 1 << PEN_SERVER,
       TO_OBSERVERS = 1 << WIRE_LAUNCHER | 1 << WIRE_OBSERVER
};

void core_send(const core_out *self, const member_slot *s, const wire_control *message);
void core_send_peer(const core_out *self, uint32_t peer, const wire_control *message);
/* To all connected members of these roles that have neither left nor died. */
void core_send_all(core_out *self, unsigned roles, const wire_control *message);

void core_log(core_out *self, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void core_announce(core_out *self,
                   const char *line); /* to launchers, which print it, else to the log */
bool core_has_launcher(const core_out *self);
void core_refuse(core_out *self, uint32_t peer, pen_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5))); /* a verdict for that process alone */
bool core_move(core_out *self, member_slot *s,
               member_event event); /* false: refused; logs changes */

/* core_events.c */
void core_event(core_out *self, int level, const char *text);
void core_event_moved(core_out *self, const member_slot *s);      /* records its new state */
uint32_t core_events_fill(const core_out *self, wire_event *out); /* [CORE_EVENTS_MAX] */

#endif
