/* outbox.c - queues messages that a connection does not take now, with a bound for each peer. */
#include "scheduler/shell/outbox.h"
#include "common/containers/list.h"
#include <stdlib.h>
#include <string.h>

struct outbox_message {
    struct outbox_message *next, *prev;
    uint32_t peer;
    size_t size;
    uint8_t head[];
};

static bool has_messages(const outbox *self, uint32_t peer)
{
    for (const struct outbox_message *l = self->first; l; l = l->next)
        if (l->peer == peer) return true;
    return false;
}

static bool queue(outbox *self, uint32_t peer, const void *head, size_t size)
{
    if (self->bytes + size > OUTBOX_BYTES_MAX) return false;
    struct outbox_message *l = malloc(sizeof *l + size);
    if (!l) return false;
    l->peer = peer;
    l->size = size;
    memcpy(l->head, head, size);

    LIST_APPEND(self->first, l);
    self->bytes += size;
    return true;
}

bool outbox_send(outbox *self, transport *t, uint32_t peer, const void *head, size_t size)
{
    if (has_messages(self, peer)) return queue(self, peer, head, size);
    const pen_status status = transport_send(t, peer, head, size, NULL);
    if (status == PEN_AGAIN) return queue(self, peer, head, size);
    return status == PEN_OK;
}

static void drop(outbox *self, struct outbox_message *l)
{
    LIST_REMOVE(self->first, l);
    self->bytes -= l->size;
    free(l);
}

bool outbox_flush(outbox *self, transport *t)
{
    enum { BLOCKED_MAX = 16 }; /* full peers of this round; a round with more stops early */
    uint32_t blocked[BLOCKED_MAX], n = 0;
    LIST_EACH(l, self->first) {
        uint32_t b = 0;
        while (b < n && blocked[b] != l->peer) b++;
        if (b < n) continue;
        if (transport_send(t, l->peer, l->head, l->size, NULL) != PEN_AGAIN)
            drop(self, l);
        else
            blocked[n++] = l->peer;
        if (n == BLOCKED_MAX) break;
    }
    return !self->first;
}

void outbox_forget(outbox *self, uint32_t peer)
{
    LIST_EACH(l, self->first)
        if (l->peer == peer) drop(self, l);
}

void outbox_clear(outbox *self)
{
    while (self->first) drop(self, self->first);
}
