/* http_places.c - time limits of connections, and which one ends to make room. */
#include "common/net/http_places.h"

enum { ALL = HTTP_PLACES + HTTP_PLACES_SPARE };

static bool is_counted(const http_place *p)
{
    return p->lives && !p->is_ended;
}

/* Waiting connections end before reading ones, older ones first. */
static bool goes_before(const http_place *a, const http_place *b)
{
    if (b == NULL) return true;
    if (a->reads != b->reads) return !a->reads;
    return a->since_ms < b->since_ms;
}

/* Ends the oldest of an address (0: of all) beyond `most`. */
static http_place *make_room(http_places *self, uint64_t address, uint32_t most,
                             const http_place *newest)
{
    http_place *oldest = NULL;
    uint32_t n         = 0;
    for (http_place *p = self->at; p < self->at + ALL; p++) {
        if (!is_counted(p) || (address != 0 && p->address != address)) continue;
        n++;
        if (p != newest && goes_before(p, oldest)) oldest = p;
    }
    if (n <= most || oldest == NULL) return NULL;
    oldest->is_ended = true;
    return oldest;
}

http_place *http_places_take(http_places *self, int fd, uint64_t address, uint64_t now_ms,
                             http_place **goes)
{
    http_place *free = NULL;
    *goes            = NULL;
    for (http_place *p = self->at; p < self->at + ALL && free == NULL; p++)
        if (!p->lives) free = p;
    if (free == NULL) return NULL;
    *free = (http_place){.lives = true, .fd = fd, .address = address, .since_ms = now_ms};
    if (address != 0) *goes = make_room(self, address, HTTP_PLACES_EACH, free);
    if (*goes == NULL) *goes = make_room(self, 0, HTTP_PLACES, free);
    return free;
}

void http_place_leave(http_place *p)
{
    *p = (http_place){0};
}

void http_place_answer(http_place *p, size_t bytes, uint64_t now_ms)
{
    p->reads    = true;
    p->bytes    = bytes;
    p->since_ms = now_ms;
}

void http_place_wait(http_place *p, uint64_t now_ms)
{
    p->reads    = false;
    p->bytes    = 0;
    p->since_ms = now_ms;
}

bool http_places_has_room(http_places *self, size_t bytes, http_place **goes)
{
    http_place *oldest = NULL;
    size_t waiting     = 0;
    *goes              = NULL;
    for (http_place *p = self->at; p < self->at + ALL; p++) {
        if (!p->lives || p->bytes == 0) continue;
        waiting += p->bytes;
        if (p->is_ended) continue;
        if (oldest == NULL || p->since_ms < oldest->since_ms) oldest = p;
    }
    if (bytes <= HTTP_SMALL_BYTES || waiting == 0 || waiting + bytes <= HTTP_ANSWERS_BYTES)
        return true;
    if (oldest != NULL) oldest->is_ended = true;
    *goes = oldest;
    return false;
}

size_t http_places_count_waiting(const http_places *self, uint64_t address)
{
    size_t n = 0;
    for (const http_place *p = self->at; p < self->at + ALL; p++)
        n += p->lives && p->turn > 0 && p->address == address;
    return n;
}

http_place *http_places_next_waiting(http_places *self, uint64_t after)
{
    http_place *next = NULL;
    for (http_place *p = self->at; p < self->at + ALL; p++)
        if (p->lives && p->turn > after && (next == NULL || p->turn < next->turn)) next = p;
    return next;
}

static uint64_t due_ms(const http_place *p)
{
    return p->since_ms + (p->reads ? HTTP_ANSWER_MS : HTTP_REQUEST_MS);
}

http_place *http_places_overdue(http_places *self, uint64_t now_ms)
{
    for (http_place *p = self->at; p < self->at + ALL; p++) {
        if (!is_counted(p) || due_ms(p) > now_ms) continue;
        p->is_ended = true;
        return p;
    }
    return NULL;
}

uint64_t http_places_next_ms(const http_places *self)
{
    uint64_t next = UINT64_MAX;
    for (const http_place *p = self->at; p < self->at + ALL; p++)
        if (is_counted(p) && due_ms(p) < next) next = due_ms(p);
    return next;
}
