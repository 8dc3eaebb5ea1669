/* askers.h - how often those who are no members of the job may ask its scheduler.  Pure.
 *
 * Members are bound by what they do; observers, launchers and strangers by this: so many messages a second of one
 * connection, and so many questions a second of all together.  What a launcher says of processes that ended is
 * always heard.
 */
#ifndef SCHEDULER_ASKERS_H
#define SCHEDULER_ASKERS_H

#include "common/base/rate.h"
#include "proto/wire.h"

enum {
    ASKERS_BURST        = 64, /* messages of one connection at once */
    ASKERS_A_SECOND     = 20,
    ASKERS_ALL_BURST    = 1000, /* questions of all */
    ASKERS_ALL_A_SECOND = 400,
    ASKERS_PLACES       = 251 /* two connections that share one share its allowance */
};

typedef struct { /* zero is nobody */
    rate at[ASKERS_PLACES], all;
} askers;

/* Whether this message of a peer that is not a member is heard. */
bool askers_hear(askers *self, uint32_t peer, const wire_control *message, uint64_t now_ms);

#endif
