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

#include "penstock.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int32_t rank;
    const char *host, *machine; /* host: for sentences */
    int32_t said_local_rank, said_local_size,
        said_node;            /* what its launcher says; below 0: nothing, as a size of 0 */
    int32_t local_rank, node; /* what it comes to */
} machines_worker;

/* All workers of a job that begins; rank ascending.  MISMATCH: a sentence, with its culprit. */
pen_status machines_place(machines_worker *worker, uint32_t n, pen_error *why);

/* One that comes to others[n], who have their places: what it does not say is the lowest that is free where it is. */
void machines_place_late(machines_worker *late, const machines_worker *others, uint32_t n);

#endif
