/* lifeline.h - a dialled endpoint that can renew its connection without closing the old one first.
 *
 * After a network outage a connection looks alive at both ends but is silent: TCP retries at growing intervals, up
 * to twice the outage, and never from another address.  Closing it to dial again would look like a death to the
 * other end if only one direction was lost.  So a lifeline dials a second connection beside the first and moves to
 * it once it is up; until then the first stays in use.
 *
 * Events are those of a dialled endpoint (transport.h), except: UP may come twice without DOWN between, after a
 * move.  Messages in flight on the old connection may then be lost, as with any reconnect.  A lifeline belongs to
 * one thread.
 */
#ifndef COMMON_LIFELINE_H
#define COMMON_LIFELINE_H

#include "common/net/transport/transport.h"

typedef struct lifeline lifeline;

/* Options for a connection with this lease: many dial attempts fit into it, but three heartbeats do not, as the
 * lease alone judges silence. */
transport_options lifeline_options(uint64_t lease_ms);

/* As transport_dial(); options are copied, their pointers are BORROWED until it is closed; NULL is fine. */
pen_status lifeline_dial(const char *address, const transport_options *options, lifeline **out,
                         pen_error *why);

/* As transport_send() to peer 0, and transport_recv(). */
pen_status lifeline_send(lifeline *self, const void *head, size_t head_size, buf *body);
pen_status lifeline_recv(lifeline *self, transport_event *event);

/* For loop_add(); constant.  -1: none, call recv. */
int lifeline_poll_fd(lifeline *self);

/* Dials beside the present connection, resolving the name again; replaces an attempt older than a second, otherwise
 * no effect.  Without memory or descriptors the present connection stays. */
void lifeline_renew(lifeline *self);

/* Call repeatedly while the other end is silent.  From half a lease on it checks the route to it and logs the
 * obstacle once, and the recovery; nothing if the host answers.  who: "worker 1 (b)"; whom: "the scheduler at
 * a:29500"; remedy: what to do. */
void lifeline_watch(lifeline *self, uint64_t silent_ms, uint64_t lease_ms, const char *who,
                    const char *whom, const char *remedy, uint64_t now_ms);

void lifeline_close(lifeline *self, uint32_t linger_ms); /* as transport_close(); NULL is fine */

#endif
