/* machines.h - nodes and local ranks: which workers are on one machine.
 *
 * DESIGN.  Complete settings of a launcher are kept.  The rest follows from the machines: workers of one machine are a
 * node, nodes are numbered by their lowest ranks, and local ranks follow the ranks.  A launcher that sets local ranks
 * and their number, but no node, means one node for each time that a local rank occurs on a machine.  A contradiction
 * is one sentence.  Pure.
 */
#ifndef SCHEDULER_MACHINES_H
#define SCHEDULER_MACHINES_H

#include "scheduler/core/membership/roster.h"

/* Sets local_rank and node of all workers when the job begins.  MISMATCH: a sentence, with its culprit. */
pen_status machines_place(const member_slots *workers, pen_error *why);

/* Sets them for a worker that joins later: what its launcher does not set is the lowest free number on its machine. */
void machines_place_late(member_slot *late, const member_slots *workers);

#endif
