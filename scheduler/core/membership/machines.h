/* machines.h - which workers are on one machine: their nodes and their local ranks.
 *
 * DESIGN.  What a launcher says in full stays as it says.  What it does not say follows from the machines: workers of one
 * machine are a node, nodes are numbered by their lowest ranks, and local ranks follow the ranks.  A launcher
 * that says local ranks and how many there are, and no node, means one node for each time that a local rank
 * comes again on a machine.  What contradicts itself is one sentence.
 * Pure.
 */
#ifndef SCHEDULER_MACHINES_H
#define SCHEDULER_MACHINES_H

#include "scheduler/core/membership/roster.h"

/* All workers of a job that begins: local_rank and node come of what was said.  MISMATCH: a sentence, with its culprit. */
pen_status machines_place(const seat_list *workers, pen_error *why);

/* One that comes to those of the record, who have their places: what it does not say is the lowest that is free where it
 * is. */
void machines_place_late(seat *late, const seat_list *workers);

#endif
