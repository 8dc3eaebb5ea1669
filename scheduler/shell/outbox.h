/* outbox.h - messages waiting for a full connection, in order, per peer.
 *
 * A slow reader must not lose control messages, and a peer that does not read must not use unbounded memory.  Past
 * OUTBOX_BYTES_MAX messages are dropped; the peer's lease ends it.
 */
#ifndef SCHEDULER_OUTBOX_H
#define SCHEDULER_OUTBOX_H

#include "common/net/transport/transport.h"
#include <stdbool.h>

enum { OUTBOX_BYTES_MAX = 64 << 20 };

typedef struct {
    struct outbox_message *first; /* zero is empty */
    size_t bytes;
} outbox;

/* Sends now, or keeps a copy if the connection is full.  False: dropped. */
bool outbox_send(outbox *self, transport *t, uint32_t peer, const void *head, size_t size);

/* Retries; true if nothing is left. */
bool outbox_flush(outbox *self, transport *t);

void outbox_forget(outbox *self, uint32_t peer); /* its connection is gone */
void outbox_clear(outbox *self);

#endif
