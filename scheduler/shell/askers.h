/* askers.h - rate limits for peers that are not members of the job.  Pure.
 *
 * Observers, launchers and strangers have a limit of messages a second per connection, and one of questions a second
 * for all together.  EXITED and BYE are always accepted.
 */
#ifndef SCHEDULER_ASKERS_H
#define SCHEDULER_ASKERS_H

#include "common/base/rate.h"
#include "proto/wire/wire.h"

enum {
    ASKERS_BURST        = 64, /* burst of one connection */
    ASKERS_A_SECOND     = 20,
    ASKERS_ALL_BURST    = 1000, /* burst of questions of all connections */
    ASKERS_ALL_A_SECOND = 400,
    ASKERS_PLACES       = 251 /* connections in the same slot share its allowance */
};

typedef struct { /* zero: unused */
    rate at[ASKERS_PLACES], all;
} askers;

/* Its answer is as large as the job, or it causes work for others. */
static inline bool askers_is_question(const wire_control *message)
{
    switch (message->kind) {
    case WIRE_HELLO: return message->u.hello.role == WIRE_OBSERVER;
    case WIRE_STATUS_ASK:
    case WIRE_RECORD_ASK:
    case WIRE_SNAPSHOT_PLEASE:
    case WIRE_SCALE:
    case WIRE_DRAIN: return true;
    default: return false;
    }
}

/* False: the message exceeds the limits. */
static inline bool askers_receive(askers *self, uint32_t peer, const wire_control *message,
                                  uint64_t now_ms)
{
    if (message->kind == WIRE_EXITED || message->kind == WIRE_BYE) return true;
    if (!rate_take(&self->at[peer % ASKERS_PLACES], ASKERS_BURST, ASKERS_A_SECOND, now_ms))
        return false;
    return !askers_is_question(message) ||
           rate_take(&self->all, ASKERS_ALL_BURST, ASKERS_ALL_A_SECOND, now_ms);
}

#endif
