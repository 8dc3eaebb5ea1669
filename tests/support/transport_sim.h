/* transport_sim.h - a network that exists only in memory, with faults drawn from a seed.
 *
 * A sim_net belongs to one thread.  Endpoints find it by number: "sim://<id>/<name>" listens, and
 * "sim://<id>/<listener>?from=<name>" dials with a name of its own, so that partitions can name both
 * ends.  Nothing moves by itself: the owner advances the clock to sim_net_next_ms() and calls
 * sim_net_deliver().  The same seed and the same calls give the same run.
 *
 * Without an owner: "sim://self/<name>" is a net of the calling thread that has no faults, uses the
 * real clock and moves when one of its endpoints receives.
 */
#ifndef TESTS_SUPPORT_TRANSPORT_SIM_H
#define TESTS_SUPPORT_TRANSPORT_SIM_H

#include "common/base/clock.h"
#include "common/net/transport/transport.h"

typedef struct sim_net sim_net;

/* Probabilities are per message; delays in milliseconds.  All zero: every message arrives after
 * delay 0, in order. */
typedef struct {
    double drop, repeat, reorder;
    uint32_t delay_ms_min, delay_ms_max;
} sim_faults;

/* clock is BORROWED.  NULL: no memory, or 64 nets in this thread already. */
sim_net *sim_net_create(uint64_t seed, const clock_source *clock);
void sim_net_destroy(sim_net *net); /* after all its endpoints are closed; NULL is fine */
uint32_t sim_net_id(const sim_net *net);

void sim_net_faults(sim_net *net, const sim_faults *faults);

/* Messages from endpoint `from` to endpoint `to` vanish while on.  "*" is every endpoint.  One way: two
 * calls for both. */
void sim_net_partition(sim_net *net, const char *from, const char *to, bool on);

/* Disconnects a dialler: what is in flight is lost, both ends see DOWN, and after
 * reconnect_ms UP again under a new peer number. */
void sim_net_break(sim_net *net, const char *dialler, const char *listener, uint32_t reconnect_ms);

/* As if the process of that name were killed: its connections end and no other is made.  Its
 * endpoints may still be closed, and do nothing else. */
void sim_net_kill(sim_net *net, const char *name);

uint64_t sim_net_next_ms(sim_net *net); /* when something is due next; UINT64_MAX: nothing */
bool sim_net_deliver(sim_net *net);     /* what is due now; true if anything was */

/* How much was sent, and its fate. */
typedef struct {
    uint64_t sent, delivered, dropped, repeated, reordered, bytes;
} sim_counts;
sim_counts sim_net_counts(const sim_net *net);

#endif
