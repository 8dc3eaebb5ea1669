/* lend.h - lent bodies: between two processes of one host a message carries the place of its body, not its bytes.
 *
 * DESIGN.  A layer between the front and a transport that crosses processes, invisible but for speed.  A body is
 * lent if it is large, lies in a segment (common/system/segment.h) and the peer is a member that has proven to map
 * this process's memory; otherwise its bytes are sent.
 *   PROBE    after the first body that could be lent: "can you map this place?", with the first of two numbers there
 *   MAPPED   "yes, I read the second", and where its own process shows that number; or 0: "no"
 *   LENT     the head of a message, and where its body lies; the sender keeps a reference to the body
 *   RETURN   "I have read these", once the receiver has dropped its last reference
 * These are heads with a prefix of eight bytes, without bodies.  Both ends need the layer; a peer that does not
 * answer a PROBE gets no loans and is asked again after twice as many bodies each time.
 *
 * Trust.  A peer gets no information about memory, and nothing of it is mapped, until the layer above has admitted
 * it (transport_trust()); dialled peers are admitted.  PROBE and MAPPED prove, each way, that the peer is a process
 * of this host and user, and which: its lent places must lie in that process, and its end is that process's end.  A
 * place is checked against the kernel (segment_map()), never against other numbers of the peer. When a connection
 * ends, lent bodies return at once if the peer's process is gone, otherwise after the sender's pages were replaced
 * (segment_detach), so that a remaining reader sees what was sent. A lying peer is refused; it learns nothing, and
 * it cannot crash this process.
 * Thread: of the endpoint; borrowed bodies may be released by any.
 */
#ifndef COMMON_TRANSPORT_LEND_H
#define COMMON_TRANSPORT_LEND_H

#include "common/net/transport/transport.h"

enum { LEND_BYTES_MIN = 64 << 10 }; /* copying smaller bodies is faster than mapping */

typedef struct lend lend;

/* state: of an open endpoint of ops, which outlives the layer.  NULL: no memory. */
lend *lend_create(const transport_ops *ops, void *state, bool listens, uint64_t body_bytes_max);
void lend_destroy(lend *self); /* before the endpoint is closed; NULL is fine */

void lend_admit(lend *self, uint32_t peer); /* as transport_trust() */

/* Whether the message is of this layer; an endpoint without the layer ignores those. */
bool lend_is_private(const transport_event *event);

/* As of transport_ops. */
pen_status lend_send(lend *self, uint32_t peer, const void *head, size_t head_size, buf *body);
pen_status lend_recv(lend *self, transport_event *event);

/* A buffer of `size` bytes, lendable if it is large enough.  NULL: no memory. */
buf *lend_buf_new(size_t size);

#endif
