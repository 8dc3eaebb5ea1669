/* node.h - collectives of members that share memory, with mapped memory and flags.
 *
 * DESIGN
 * Place.     A node_place is this process among the workers of its host: its control segment, which peers map by
 *            /proc/PID/fd/FD, and a doorbell.  While the job joins, members prove that they can map each other by
 *            reading a number there; teams consist of those alone.  If a mapping fails later all the same, the member
 *            marks the group in its own control segment.  Peers find the mark in their first call, before that call
 *            has ended on any member; the wire then carries it for all.
 * Team.      Members of one group on one host.  Each has a slot in its own control segment, found by the group's
 *            id: header and arrival flag of the call in progress, small payloads, counts, references to its
 *            buffers (segment id, offset), a staging window for buffers that peers cannot map.
 * Flags.     Numbers that only grow; a member writes its own and reads the others'.  A waiting member spins
 *            briefly, then sleeps on its own doorbell (futex); setting a flag rings peers that sleep.
 * Small.     Payload inline in the slot, entries of even and odd calls: one flag exchange per call.
 * Large.     Mapped buffers: arrive, work directly on the peers' memory (all_reduce: member r folds slice r of
 *            all inputs and writes it to all outputs, 2nS bytes of traffic), leave.  Buffers that cannot be
 *            mapped go through the windows in cache-sized pieces.
 * In place.  A fold writes each result over its input.  Slice r of every buffer is read and written by member r alone,
 *            so a piece overwrites nothing that another needs.  Before, member r copies what it overwrites to the scratch
 *            of each buffer's owner, and counts it in `saved` of its own slot.  A member that fails copies its scratch
 *            back, after peers have left its memory: what every peer has counted, or all of the slice of a peer that is
 *            in a later call already.  With `overwrites` nothing has to be saved.  All other calls in place, and folds
 *            in foreign buffers below NODE_PAST_FROM_BYTES, write a scratch and copy it, at once, when no member needs
 *            an input any more.
 * Giving up. A member that aborts marks its slot as revoked.  Peers mark themselves busy before each block they read
 *            or write in another member's memory, and then check for revoked calls; the aborter waits for busy peers,
 *            at most NODE_PATIENCE_MS.  A peer that was stopped inside a block may resume at any time.  The output that
 *            it may still write is therefore detached (segment_detach): the buffer keeps its address and contents, no
 *            process maps it any more, and later calls carry it through the windows.  What the peer may still read of
 *            an input is discarded: its call has failed.  Peers of an aborter wait for a while longer: the aborter
 *            knows the reason, and the engine passes it on.
 * Memory.    A slot may be reused for another group when every peer has ended the last call of the old one.  Slower
 *            peers can still read what a leaving member has in its slot or window.
 */
#ifndef WORKER_COLL_NODE_H
#define WORKER_COLL_NODE_H

#include "common/compute/simd/reduce.h"
#include "worker/collective/coll.h"

enum { NODE_PATIENCE_MS = 100, NODE_MEMBERS_MAX = 64 /* each maps all others */ };

typedef struct node_place node_place;
typedef struct node_team node_team;

/* Makes this process's control segment.  `slots` bounds the groups alive at a time. */
pen_status node_place_create(node_place **place, pen_error *why);
void node_place_destroy(node_place *place); /* after its teams; NULL is fine */

/* What peers need to map it, as text without spaces: "node:PID:FD:ID:SIZE".  Mapping may still fail. */
const char *node_place_address(const node_place *place);
/* A random number in the control segment and in no address: a process that knows it has read it there. */
uint64_t node_place_number(const node_place *place);
/* The number of the process with this address; 0: it cannot be read.  keep: it stays mapped, for a group of all. */
uint64_t node_read_number(const char *address, bool keep);

/* Collective among the members, but without waiting for them: maps what exists already.  address[size]: of each
 * member's place, own included.  `id` is the group's, unique in the job.  UNREACHABLE: some peer cannot be mapped. */
pen_status node_team_create(node_place *place, uint64_t id, const char *const *address,
                            const int *ranks, int size, int rank, node_team **team, pen_error *why);
void node_team_destroy(node_team *team);

/* The order of its folds; BORROWED, before its first call.  NULL, the default: rank order. */
void node_team_set_order(node_team *team, const reduce_order *order);

/* Tells peers that this process has no team of that id, because node_team_create() failed.  Their first call fails with
 * UNREACHABLE before it moves anything, and node_team_is_refused() is true. */
void node_refuse(node_place *place, uint64_t id);
bool node_team_is_refused(const node_team *team);

void node_team_ring(const node_team *team); /* wakes the other members; any thread */

/* Sleeps until the doorbell rings after `seen` was read, or for timeout_us.  Thread: any, several at once.
 * An advance() that stops in the middle of work, to release the lock to others, rings its own doorbell.
 *   seen = node_doorbell(place);  if (nothing to do) node_sleep(place, seen, timeout_us); */
uint32_t node_doorbell(const node_place *place);
void node_sleep(node_place *place, uint32_t seen, uint64_t timeout_us);
void node_ring_self(node_place *place); /* wakes this process's sleepers; any thread */

/* Number of spins before a sleep; 0 when there are more members than cores. */
void node_set_spin(node_place *place, uint32_t turns);

#endif
