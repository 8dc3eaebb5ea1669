/* http_places.h - the connections of one HTTP listener: how long each may take, and which one makes room.  Pure.
 *
 * A connection waits for a whole request or reads an answer, and either has a bound on its whole time, however
 * steadily bytes drip.  Where a new connection or a new answer is one too many, the oldest goes: who connects and
 * asks at once, as a probe does, is not starved by others that never finish.
 */
#ifndef COMMON_HTTP_PLACES_H
#define COMMON_HTTP_PLACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HTTP_PLACES       = 64,    /* connections at once                                           */
    HTTP_PLACES_EACH  = 16,    /* of them of one address                                        */
    HTTP_PLACES_SPARE = 32,    /* ended ones that are not closed yet                            */
    HTTP_REQUEST_MS   = 10000, /* from the connection, or the last answer, to the end of a header */
    HTTP_ANSWER_MS    = 30000, /* to read an answer                                             */
    HTTP_ANSWERS_BYTES = 32 << 20, /* of answers that were not read yet, all together            */
    HTTP_SMALL_BYTES   = 4 << 10   /* an answer that is never refused                            */
};

typedef struct {
    bool lives, is_ended; /* is_ended: it was told to go and is not closed yet */
    bool reads;           /* an answer of `bytes` bytes                       */
    int fd;
    uint64_t address;  /* of the other side, as one number            */
    uint64_t since_ms; /* when its request, or its answer, began      */
    size_t bytes;
} http_place;

typedef struct { /* zero is nobody */
    http_place at[HTTP_PLACES + HTTP_PLACES_SPARE];
} http_places;

/* A connection has come.  NULL: there is no place, and it has to go at once.  *goes: who makes room, to be ended by
 * the caller; NULL: nobody. */
http_place *http_places_take(http_places *self, int fd, uint64_t address, uint64_t now_ms,
                             http_place **goes);
void http_place_leave(http_place *p);

/* Its request is whole, and this is the answer's size; its answer was sent, and another request may come. */
void http_place_answer(http_place *p, size_t bytes, uint64_t now_ms);
void http_place_wait(http_place *p, uint64_t now_ms);

/* Whether an answer of so many bytes may be sent.  False: too much waits for others.  *goes as above. */
bool http_places_has_room(http_places *self, size_t bytes, http_place **goes);

/* Whose time is over, to be ended by the caller; NULL: nobody's, any more. */
http_place *http_places_overdue(http_places *self, uint64_t now_ms);
uint64_t
http_places_next_ms(const http_places *self); /* when the next one's is; UINT64_MAX: never */

#endif
