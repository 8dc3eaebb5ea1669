/* lifeline.h - a dialled endpoint whose connection can be renewed without being given up first.
 *
 * A connection that a network swallowed for a while is alive for both ends and yet says nothing: TCP
 * tries again at growing intervals, up to twice as late as the network came back, and never from
 * another address.  Who closes it to dial again tells the other end, if only one direction was cut,
 * that it has gone.  So a lifeline dials a second connection beside the first and moves to it once it
 * is up; until then the first is used as before.
 *
 * Events are those of a dialled endpoint (transport.h), with one more freedom: UP may come twice with
 * no DOWN between, when it has moved.  What was on its way on the old connection may then be lost, as
 * with any reconnect.  A lifeline belongs to one thread.
 */
#ifndef COMMON_LIFELINE_H
#define COMMON_LIFELINE_H

#include "common/net/transport/transport.h"

typedef struct lifeline lifeline;

/* For a connection on which a lease of so long runs: many attempts to dial fit into it, and three heartbeats do not, for
 * what silence means is the lease's business. */
transport_options lifeline_options(uint64_t lease_ms);

/* As transport_dial(); options are copied, what they point to is BORROWED until it is closed, and
 * NULL is fine. */
pen_status lifeline_dial(const char *address, const transport_options *options, lifeline **out,
                         pen_error *why);

/* As transport_send() to peer 0, and transport_recv(). */
pen_status lifeline_send(lifeline *self, const void *head, size_t head_size, buf *body);
pen_status lifeline_recv(lifeline *self, transport_event *event);

/* For loop_add(); the same for as long as it lives.  -1: has none, call recv. */
int lifeline_poll_fd(lifeline *self);

/* Dials beside the present connection, by name anew; nothing while that has been under way for less than a second, and
 * else instead of it.  When there is no memory or descriptor for it, the present connection stays. */
void lifeline_renew(lifeline *self);

/* Again and again while the other end has been silent for so long.  From half a lease on the system is asked for the
 * way to it, and what stands there is logged, once until the other end is heard again, which is logged too; nothing
 * where the host answers.  who: "worker 1 (b)"; whom: "the scheduler at a:29500"; remedy: what to do. */
void lifeline_watch(lifeline *self, uint64_t silent_ms, uint64_t lease_ms, const char *who,
                    const char *whom, const char *remedy, uint64_t now_ms);

void lifeline_close(lifeline *self, uint32_t linger_ms); /* as transport_close(); NULL is fine */

#endif
