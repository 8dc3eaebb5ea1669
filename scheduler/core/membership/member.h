/* member.h - the life cycle of one worker or server, as seen by the scheduler. */
#ifndef SCHEDULER_MEMBER_H
#define SCHEDULER_MEMBER_H

#include "penstock.h"
#include <stdio.h>

/* clang-format off */
#define MEMBER_STATES(X)                                                                           \
    X(ABSENT,  "not here yet, or gone again before the job began")                                 \
    X(JOINING, "said hello and was welcomed; waits for the others")                                \
    X(ACTIVE,  "named by the epoch record; meetings and steps wait for it")                        \
    X(AWAY,    "its connection is down; still counted, so that a hiccup is not a death")           \
    X(LEFT,    "said goodbye in good order; nobody waits for it")                                  \
    X(DEAD,    "declared gone; its late messages are refused")

/* HELLO: of the process in the slot, or of the first one to take it.  Others cause the first four events, which may come
 * at any time, twice, or late; the core itself causes the last three. */
#define MEMBER_EVENTS(X) X(HELLO) X(MESSAGE) X(BYE) X(EXITED) X(BEGIN) X(DOWN) X(LOST)
/* clang-format on */

typedef enum {
#define X(name, doc) MEMBER_##name,
    MEMBER_STATES(X)
#undef X
        MEMBER_STATE_COUNT
} member_state;

typedef enum {
#define X(name) MEMBER_EVENT_##name,
    MEMBER_EVENTS(X)
#undef X
        MEMBER_EVENT_COUNT
} member_event;

/* Moves *state, or refuses.
 * Errors  PEN_NOT_A_MEMBER  this state does not allow a message of others; *state is unchanged.
 * Asserts that our own events happen only where they can: a remote mistake is answered, a local mistake is a bug. */
pen_status member_next(member_state *state, member_event event);

const char *member_state_name(member_state state); /* "active" */

/* The table as a graph for dot(1): docs/member.dot. */
void member_write_dot(FILE *out);

#endif
