/* http_places.h - the connections of one HTTP listener: time limits, and which one makes room.  Pure.
 *
 * A connection sends its request or reads its answer; both have a limit on their total time, however steadily bytes
 * drip.  If a new connection or answer exceeds a limit, the oldest ends: connections that never finish cannot starve a
 * probe, which asks at once.
 */
#ifndef COMMON_HTTP_PLACES_H
#define COMMON_HTTP_PLACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HTTP_PLACES       = 64,    /* connections at once */
    HTTP_PLACES_EACH  = 16,    /* of one address */
    HTTP_PLACES_SPARE = 32,    /* ended but not closed */
    HTTP_REQUEST_MS   = 10000, /* from the connection, or the last answer, to the end of a header */
    HTTP_ANSWER_MS    = 30000, /* to read an answer */
    HTTP_ANSWERS_BYTES = 32 << 20, /* of answers that were not read yet, all together */
    HTTP_SMALL_BYTES   = 4 << 10   /* an answer that is never refused */
};

typedef struct {
    bool lives, is_ended; /* is_ended: shut down, not closed yet */
    bool reads;           /* an answer of `bytes` bytes */
    int fd;
    uint64_t address;  /* of the other side, as one number */
    uint64_t since_ms; /* when its request, or its answer, began */
    size_t bytes;
    uint64_t turn; /* its owner's: its request waits since this one; 0: it does not wait */
    bool had_turn;
    void *user;
} http_place;

typedef struct { /* zero: no connections */
    http_place at[HTTP_PLACES + HTTP_PLACES_SPARE];
} http_places;

/* A new connection.  NULL: no place; close it at once.  *goes: the one that makes room, to be ended by the caller;
 * NULL: none. */
http_place *http_places_take(http_places *self, int fd, uint64_t address, uint64_t now_ms,
                             http_place **goes);
void http_place_leave(http_place *p);

/* Its request is complete, with this answer size; its answer was sent, and another request may come. */
void http_place_answer(http_place *p, size_t bytes, uint64_t now_ms);
void http_place_wait(http_place *p, uint64_t now_ms);

/* Whether an answer of this size may be sent.  False: too many unread bytes.  *goes as above. */
bool http_places_has_room(http_places *self, size_t bytes, http_place **goes);

/* Those with a turn: of an address, and the one with the next turn; NULL: none. */
size_t http_places_count_waiting(const http_places *self, uint64_t address);
http_place *http_places_next_waiting(http_places *self, uint64_t after);

/* The next connection over its time, to be ended by the caller; NULL: none left. */
http_place *http_places_overdue(http_places *self, uint64_t now_ms);
uint64_t http_places_next_ms(const http_places *self); /* next time limit; UINT64_MAX: never */

#endif
