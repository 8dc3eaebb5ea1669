/* reach.h - finds out why a needed connection does not come up, in words.
 *
 * DESIGN.  A transport redials silently while it has no connection.  Its owner keeps a reach beside it, passes on UP,
 * DOWN and REFUSED, and polls it.  After the patience, a thread connects to the same address once with a plain socket,
 * and the system's answer becomes the sentence.  A successful connect is not an obstacle: the listener may be slow or
 * stopped, which its lease detects.  An existing connection may be doubted: the other host no longer acknowledges.
 * Then the same probe runs, long before the transport would report it broken.
 */
#ifndef COMMON_REACH_H
#define COMMON_REACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    REACH_FIRST_MS   = 3000, /* patience with a first connection */
    REACH_TRY_MS     = 1500, /* one attempt, in which the system tries twice */
    REACH_AGAIN_MS   = 250,  /* between two attempts */
    REACH_LOOK_MS    = 250,  /* polling interval while a connection is missing */
    REACH_NOTE_BYTES = 96
};

typedef struct reach_question reach_question;

typedef struct { /* zero: watches nothing */
    bool is_needed, is_up, is_doubted;
    uint64_t due_ms;   /* end of the patience, or time of the next attempt */
    uint64_t begun_ms; /* when it went missing */
    uint64_t name_ms;  /* time for the name to resolve */
    reach_question *asked;
    char note[REACH_NOTE_BYTES];  /* of the newest REFUSED */
    char words[REACH_NOTE_BYTES]; /* the obstacle */
    int error;                    /* result of reach_try() for it */
} reach;

/* Needed from now on, for the first time.  name_ms: time for its name to resolve. */
void reach_begin(reach *r, uint64_t name_ms, uint64_t now_ms);
void reach_up(reach *r);
void reach_down(reach *r, uint64_t patience_ms, uint64_t now_ms);
void reach_refused(reach *r, const char *note);
void reach_end(reach *r); /* resets it to zero */

/* It is up, but the other host has acknowledged nothing for this long (transport_unconfirmed_ms()): doubtful from a
 * quarter of `lease_ms` on. */
void reach_doubt(reach *r, uint64_t unconfirmed_ms, uint64_t lease_ms, uint64_t now_ms);

bool reach_is_missing(const reach *r); /* needed, and down or doubted: poll every REACH_LOOK_MS */

/* The obstacle to a connection to this address, "tcp://HOST:PORT"; NULL: none known.  Repeated while it lasts, at
 * least REACH_AGAIN_MS apart.  BORROWED until the next call. */
const char *reach_look(reach *r, const char *address, uint64_t now_ms);

/* One blocking attempt: 0, an errno, REACH_NO_NAME, or REACH_LOCAL: a local socket is there.  Any thread. */
enum { REACH_NO_NAME = -1, REACH_LOCAL = -2 };
int reach_try(const char *host, const char *port, int timeout_ms);

#endif
