/* linger.h - closed endpoints whose last messages still leave, each in a thread of its own.
 *
 * A connection has time until what was queued is with the other host: a socket that is closed with unread input takes
 * back what it had sent.  The process waits for these connections when its last endpoint is closed, since its exit would
 * end them.  Thread: any.
 */
#ifndef COMMON_LINGER_H
#define COMMON_LINGER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    /* Reads and drops what comes, until then at most, and sends what it can.  Called every millisecond, by one thread at
     * a time.  True: nothing is left to wait for. */
    bool (*has_left)(void *what, uint64_t until_ms);
    void (*close)(void *what); /* releases it */
} linger_kind;

void linger_begin(void); /* an endpoint was opened */
/* OWNS what: closes it once its last messages have left, or after linger_ms, in another thread if need be. */
void linger_close(void *what, uint32_t linger_ms, const linger_kind *kind); /* kind: static */
/* An endpoint was closed: the last one of the process waits for what lingers. */
void linger_end(void);

/* Whether the other host has what the kernel was given.  True for a Unix-domain socket. */
bool linger_is_acknowledged(int fd);

#endif
