/* settle.h - what sealed holders of state decide: who serves each shard from now on, and what becomes
 * of the step that was open.
 *
 * DESIGN.  Pure.  Sealed copies stand still, so their reports are facts.  The primary stays where it
 * is while its server lives, else the copy of R that has applied the most takes its place.  Copies of R that
 * have not applied the same as their primary become learners: they are filled again.  A step was
 * committed somewhere only if every partition was prepared on all of R (its decision needs all records, and
 * records leave when all of R has them), so with `step` the largest number of steps committed anywhere,
 * every other shard has committed as many or is prepared for the last of them.  A report that
 * says otherwise is a broken promise and ends the job.
 */
#ifndef SCHEDULER_SETTLE_H
#define SCHEDULER_SETTLE_H

#include "scheduler/core/epoch/placement.h"

typedef struct { /* one per rank */
    bool is_alive;
    uint32_t n_reports;
    const wire_sealed_report *report;
} settle_holder;

typedef struct {
    int64_t step;  /* open from now on in every decided partition; -1: there is none */
    int64_t clock; /* least counter over chunks that count for themselves; -1: there are none */
    bool has_decision;
    wire_decision decision; /* of step - 1 */
    uint32_t n_moved;       /* primaries that are others than before */
} settled;

/* Without servers every worker holds the state that it trains, and one that has applied a step proves that all had
 * contributed to it: the job goes on from the largest number of steps.  Who has applied fewer gets the state of one
 * that has not (out->step says so to all).  reports: one of each holder, with `step`.
 * Errors  INTERNAL  no holder is left, or one has not said where it stands. */
pen_status settle_workers(const settle_holder *worker, uint32_t n_workers, settled *out,
                          pen_error *why);

/* Changes roles in `table` and removes copies on servers that are gone; learners that have caught up and
 * are level become backups.
 * Errors  PEER_LOST  no copy of R of a shard is left.   INTERNAL  reports contradict each other.   *why names the
 *         shards, and the table is no longer of use. */
pen_status settle(placement *table, uint32_t n_shards, const settle_holder *server,
                  uint32_t n_servers, settled *out, pen_error *why);

#endif
