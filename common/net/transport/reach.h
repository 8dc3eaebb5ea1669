/* reach.h - a connection that somebody needs and that does not come up: what stands in its way, in words.
 *
 * DESIGN.  A transport dials again and again and says nothing while it has no connection.  Its owner keeps a reach beside it,
 * hands it UP, DOWN and REFUSED, and looks now and then.  After the patience a thread of the reach's own connects to
 * the same address once, as a plain socket, and the system's answer becomes the sentence.  A connection that can be made
 * is no fault: who listens there may only be slow, or stopped, which is for its lease to find out.
 * A connection that is there may be doubted: the other host confirms nothing any more.  Then the system is asked as well,
 * long before the transport would call it broken.
 */
#ifndef COMMON_REACH_H
#define COMMON_REACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    REACH_FIRST_MS   = 3000, /* patience with a connection that was never there       */
    REACH_TRY_MS     = 1500, /* one attempt: the system tries twice in it              */
    REACH_AGAIN_MS   = 250,  /* between the end of one attempt and the next           */
    REACH_LOOK_MS    = 250,  /* how often to look while a connection is missing       */
    REACH_NOTE_BYTES = 96
};

typedef struct reach_question reach_question;

typedef struct { /* zero: nothing is watched */
    bool is_needed, is_up, is_doubted;
    uint64_t due_ms;   /* when its owner's patience ends, or an attempt is to be made again */
    uint64_t begun_ms; /* it is missing since then */
    uint64_t name_ms;  /* so long a name may be unknown */
    reach_question *asked;
    char note[REACH_NOTE_BYTES];  /* of the newest REFUSED */
    char words[REACH_NOTE_BYTES]; /* what stands in the way */
    int error;                    /* as reach_try() had it then */
} reach;

/* It is needed from now on, for the first time.  name_ms: how long its name may not resolve. */
void reach_begin(reach *r, uint64_t name_ms, uint64_t now_ms);
void reach_up(reach *r);
void reach_down(reach *r, uint64_t patience_ms, uint64_t now_ms);
void reach_refused(reach *r, const char *note);
void reach_end(reach *r); /* then it is zero */

/* It is up, and the other host has confirmed nothing for so long (transport_unconfirmed_ms()): doubtful from a quarter of
 * `lease_ms` on. */
void reach_doubt(reach *r, uint64_t unconfirmed_ms, uint64_t lease_ms, uint64_t now_ms);

bool reach_is_missing(const reach *r); /* needed, and not up or doubted: look every REACH_LOOK_MS */

/* What stands in the way of a connection to this address, "tcp://HOST:PORT"; NULL: nothing known.  Told again while it lasts,
 * with REACH_AGAIN_MS and more in between.  BORROWED until the next call. */
const char *reach_look(reach *r, const char *address, uint64_t now_ms);

/* One attempt, which waits: 0, an errno, or REACH_NO_NAME.  Any thread. */
enum { REACH_NO_NAME = -1 };
int reach_try(const char *host, const char *port, int timeout_ms);

/* In words; not 0. */
void reach_describe(int error, char *words, size_t size);

#endif
