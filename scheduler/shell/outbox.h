/* outbox.h - messages that a full connection did not take yet, in order, per peer.
 *
 * Control must not be lost because a peer reads slowly, nor grow without bound because a peer does not read at all.  Past
 * OUTBOX_BYTES_MAX messages are dropped; the peer's lease ends it.
 */
#ifndef SCHEDULER_OUTBOX_H
#define SCHEDULER_OUTBOX_H

#include "common/net/transport/transport.h"
#include <stdbool.h>

enum { OUTBOX_BYTES_MAX = 64 << 20 };

typedef struct {
    struct outbox_message *first; /* zero is an empty outbox */
    size_t bytes;
} outbox;

/* Sends now, or keeps a copy if the connection is full.  False: dropped. */
bool outbox_send(outbox *self, transport *t, uint32_t peer, const void *head, size_t size);

/* Retries; true when nothing is left. */
bool outbox_flush(outbox *self, transport *t);

void outbox_forget(outbox *self, uint32_t peer); /* its connection is gone */
void outbox_clear(outbox *self);

#endif
