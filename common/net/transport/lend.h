/* lend.h - bodies that stay where they are: between two processes of one host a message carries the place of its
 * body, not its bytes.
 *
 * DESIGN.  A layer between the front and a transport that crosses processes; whoever sends or receives sees no
 * difference but speed.  A body is lent when it is large, lies in a segment (common/base/segment.h) and the peer is a member
 * that has proven to map this process's memory; else its bytes travel as ever.
 *   PROBE    after the first body that could be lent: "can you map this place?", with the first of two numbers there
 *   MAPPED   "yes, I read the second", and where its own process shows that number; or 0: "no"
 *   LENT     the head of a message, and where its body lies; the sender keeps a reference to the body
 *   RETURN   "I have read these", once the receiver has dropped its last reference
 * They are heads that begin with eight bytes of their own, without bodies.  Both ends must have the layer; one that
 * does not answer a PROBE is not lent to; it is asked again after twice as many bodies each time.
 *
 * Who gets what.  Nothing is said about memory, and nothing mapped, for a peer that the layer above has not admitted
 * (transport_trust()); whoever was dialled is.  PROBE and MAPPED prove, each way, that the peer is a process of this
 * host and user, and which: places that it lends must lie in that process, and its end is that process's end.  A place
 * is compared with what the kernel says of it (segment_map()), never with other numbers of the peer.
 * What is still lent when a connection ends is taken back at once if the peer's process is gone, and else after
 * the sender's pages were replaced (segment_detach), so that whoever still reads it sees what was sent.
 * A peer that lies is refused; nothing is read out for it, and nothing of it can end this process.
 * Thread: of the endpoint; only what was borrowed may be released by any.
 */
#ifndef COMMON_TRANSPORT_LEND_H
#define COMMON_TRANSPORT_LEND_H

#include "common/net/transport/transport.h"

enum { LEND_BYTES_MIN = 64 << 10 }; /* smaller bodies travel faster than they are mapped */

typedef struct lend lend;

/* state: of an open endpoint of ops, which outlives the layer.  NULL: no memory. */
lend *lend_create(const transport_ops *ops, void *state, bool listens, uint64_t body_bytes_max);
void lend_destroy(lend *self); /* before the endpoint is closed; NULL is fine */

void lend_admit(lend *self, uint32_t peer); /* as transport_trust() */

/* Whether the message is of this layer; an endpoint without it passes over those. */
bool lend_is_private(const transport_event *event);

/* As of transport_ops. */
pen_status lend_send(lend *self, uint32_t peer, const void *head, size_t head_size, buf *body);
pen_status lend_recv(lend *self, transport_event *event);

/* A buffer of `size` bytes that can be lent when it is large enough, else a plain one.  NULL: no memory. */
buf *lend_buf_new(size_t size);

#endif
