/* call.h - what is behind a pen_call: a command or a request that waits for pen_reply().
 *
 * Workers have commands (membership/commands.h), servers have those and requests of handlers
 * (server/shard/handler/handler_part.h).  The function is in the call, so a plugin may link a libpenstock of its own.
 */
#ifndef COMMON_CALL_H
#define COMMON_CALL_H

#include "common/base/why.h"

struct pen_call {
    /* As pen_reply(); *why is set with any other status than PEN_OK. */
    pen_status (*reply)(pen_call *call, pen_status answer, const void *data, size_t n,
                        const uint32_t *lens, pen_error *why);
};

/* Whether a program may answer with this status. */
static inline pen_status call_check_status(pen_status answer, pen_error *why)
{
    if (answer == PEN_OK || why_is_failure(answer)) return PEN_OK;
    return why_set(why, PEN_INVALID_ARGUMENT,
                   "pen_reply: invalid status %d; expected PEN_OK or an error", (int)answer);
}

#endif
