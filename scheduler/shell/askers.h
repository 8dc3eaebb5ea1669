/* askers.h - rate limits for peers that are not members of the job.  Pure.
 *
 * Observers, launchers and strangers may send so many messages a second on one connection, and so many questions a second
 * all together.  EXITED and BYE are always heard.
 */
#ifndef SCHEDULER_ASKERS_H
#define SCHEDULER_ASKERS_H

#include "common/base/rate.h"
#include "proto/wire/wire.h"

enum {
    ASKERS_BURST        = 64, /* messages of one connection at once */
    ASKERS_A_SECOND     = 20,
    ASKERS_ALL_BURST    = 1000, /* questions of all */
    ASKERS_ALL_A_SECOND = 400,
    ASKERS_PLACES       = 251 /* connections in the same place share its allowance */
};

typedef struct { /* zero: nobody asked yet */
    rate at[ASKERS_PLACES], all;
} askers;

/* False: the message exceeds the limits. */
bool askers_receive(askers *self, uint32_t peer, const wire_control *message, uint64_t now_ms);

#endif
