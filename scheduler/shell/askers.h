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

/* False: the message exceeds the limits. */
bool askers_receive(askers *self, uint32_t peer, const wire_control *message, uint64_t now_ms);

#endif
