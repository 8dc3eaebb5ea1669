/* node.h - members that share memory: mapped memory, flags, and collectives on them.
 *
 * DESIGN
 * Place.     A node_place is this process among the workers of its host: one control segment of its own, which
 *            peers map, and a doorbell.  A peer is mapped by /proc/PID/fd/FD.  Who can map whom is proven while the
 *            job joins, by a number that is read there; teams are of those alone.  Who cannot map another all the
 *            same says so in its own control segment, where those who can map it find it in their first call:
 *            nobody's call has ended then, and the wire carries it, for all alike.
 * Team.      Members of one group on one host.  Each has a slot in its own control segment, found by the group's
 *            id: header and arrival flag of the call in progress, small payloads, counts, references to its
 *            buffers (segment id, offset), a staging window for buffers that peers cannot map.
 * Flags.     Numbers that only grow; a member writes its own and reads the others'.  Who waits spins
 *            briefly, then sleeps on its own doorbell (futex); who sets a flag rings peers that sleep.
 * Small.     Payload inline in the slot, entries of even and odd calls: one flag exchange per call.
 * Large.     Mapped buffers: arrive, work directly on the peers' memory (all_reduce: member r folds slice r of
 *            all inputs and writes it to all outputs, 2nS bytes of traffic), leave.  Buffers that cannot be
 *            mapped go through the windows in cache-sized pieces.  in == out: the result goes to a mapped scratch
 *            first and is written, in one go, when nobody needs an input any more.
 * Giving up. A member that aborts says so in its slot.  Peers mark themselves busy before each block they read or
 *            write in another member's memory, and look at what is revoked after that; the aborter waits for the busy
 *            ones, at most NODE_PATIENCE_MS.  A peer that was stopped inside a block may go on whenever it pleases:
 *            then the output it may still write is taken away from it (segment_detach): the buffer keeps its address
 *            and contents, is no longer mapped by anybody, and later calls carry it through the windows.
 *            What it may still read of an input goes nowhere: its call has failed.
 *            Peers of one that gave up go on waiting for a while: who gave up knows why, and the engine tells them.
 * Memory.    A slot may be used for another group when every peer has ended the last call of the old one; what a
 *            member leaves behind in its slot or window when it goes, slower peers can still read.
 */
#ifndef WORKER_COLL_NODE_H
#define WORKER_COLL_NODE_H

#include "worker/collective/coll.h"

enum { NODE_PATIENCE_MS = 100 };

typedef struct node_place node_place;
typedef struct node_team node_team;

/* Makes this process's control segment.  `slots` bounds the groups alive at a time. */
pen_status node_place_create(node_place **place, pen_error *why);
void node_place_destroy(node_place *place); /* after its teams; NULL is fine */

/* What peers need to map it, as text without spaces: "node:PID:FD:ID:SIZE".  Whether they can, trying tells. */
const char *node_place_address(const node_place *place);
/* A random number that stands in the control segment and in no address: who knows it has read it there. */
uint64_t node_place_number(const node_place *place);
/* That of the process with this address; 0: it cannot be read. */
uint64_t node_read_number(const char *address);

/* Collective among the members, but without waiting for them: maps what is there already.  address[size]: of each
 * member's place, own included.  `id` is the group's, unique in the job.  UNREACHABLE: some peer cannot be mapped. */
pen_status node_team_create(node_place *place, uint64_t id, const char *const *address,
                            const int *ranks, int size, int rank, node_team **team, pen_error *why);
void node_team_destroy(node_team *team);

/* Tells peers that this process is in no team of that id, since node_team_create() failed: their first call fails with
 * UNREACHABLE, nothing moved, and node_team_is_refused() says so. */
void node_refuse(node_place *place, uint64_t id);
bool node_team_is_refused(const node_team *team);

/* Sleeps until the doorbell rings after `seen` was read, or for timeout_us.  Thread: any, several at once.
 * advance() that stops in the middle of work, to let others have the lock, rings its own doorbell.
 *   seen = node_doorbell(place);  if (nothing to do) node_sleep(place, seen, timeout_us); */
uint32_t node_doorbell(const node_place *place);
void node_sleep(node_place *place, uint32_t seen, uint64_t timeout_us);
void node_ring_self(node_place *place); /* wakes this process's sleepers; any thread */

/* Spins this often before it sleeps; 0 when there are more members than cores. */
void node_set_spin(node_place *place, uint32_t turns);

#endif
