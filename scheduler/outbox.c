#include "scheduler/outbox.h"
#include <stdlib.h>
#include <string.h>

struct outbox_letter {
    struct outbox_letter *next;
    uint32_t peer;
    size_t size;
    uint8_t head[];
};

static bool has_letters(const outbox *self, uint32_t peer)
{
    for (const struct outbox_letter *l = self->first; l; l = l->next)
        if (l->peer == peer) return true;
    return false;
}

static bool keep_letter(outbox *self, uint32_t peer, const void *head, size_t size)
{
    if (self->bytes + size > OUTBOX_BYTES_MAX) return false;
    struct outbox_letter *l = malloc(sizeof *l + size);
    if (!l) return false;
    l->next = NULL;
    l->peer = peer;
    l->size = size;
    memcpy(l->head, head, size);

    if (!self->first) self->end = &self->first;
    *self->end = l;
    self->end  = &l->next;
    self->bytes += size;
    return true;
}

bool outbox_send(outbox *self, transport *t, uint32_t peer, const void *head, size_t size)
{
    if (has_letters(self, peer)) return keep_letter(self, peer, head, size);
    const pen_status status = transport_send(t, peer, head, size, NULL);
    if (status == PEN_AGAIN) return keep_letter(self, peer, head, size);
    return status == PEN_OK;
}

static void drop(outbox *self, struct outbox_letter **link)
{
    struct outbox_letter *l = *link;
    *link                   = l->next;
    if (!l->next) self->end = link;
    self->bytes -= l->size;
    free(l);
}

bool outbox_flush(outbox *self, transport *t)
{
    enum { BLOCKED_MAX = 16 }; /* full peers of this round; a round with more stops early */
    uint32_t blocked[BLOCKED_MAX], n = 0;
    for (struct outbox_letter **link = &self->first; *link && n < BLOCKED_MAX;) {
        struct outbox_letter *l = *link;
        uint32_t b              = 0;
        while (b < n && blocked[b] != l->peer) b++;
        const bool is_full =
            b < n || transport_send(t, l->peer, l->head, l->size, NULL) == PEN_AGAIN;
        if (!is_full) {
            drop(self, link);
            continue;
        }
        if (b == n) blocked[n++] = l->peer;
        link = &l->next;
    }
    return !self->first;
}

void outbox_forget(outbox *self, uint32_t peer)
{
    for (struct outbox_letter **link = &self->first; *link;) {
        if ((*link)->peer == peer)
            drop(self, link);
        else
            link = &(*link)->next;
    }
}

void outbox_clear(outbox *self)
{
    while (self->first) drop(self, &self->first);
}
