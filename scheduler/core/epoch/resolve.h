/* resolve.h - resolves the reports of sealed holders: which copy serves each shard, and the fate of the open step.
 *
 * DESIGN.  Pure.  Sealed copies do not change, so their reports are facts.  The primary stays while its server lives;
 * else the copy of R that has applied the most takes its place.  Copies of R that differ from their primary become
 * learners and are filled again.  A step was committed somewhere only if every partition was prepared on all of R: its
 * decision needs all votes, and votes are sent only when all of R has them.  So with `step` the largest number of
 * steps committed anywhere, every other shard has committed as many or is prepared for the last of them.  A report that
 * contradicts this is a broken promise and ends the job.
 */
#ifndef SCHEDULER_RESOLVE_H
#define SCHEDULER_RESOLVE_H

#include "scheduler/core/epoch/placement.h"

typedef struct { /* one per rank */
    bool is_alive;
    uint32_t n_reports;
    const wire_sealed_report *report;
} resolve_holder;

typedef struct {
    int64_t step;  /* open from now on in every decided partition; -1: none */
    int64_t clock; /* least counter over chunks that count for themselves; -1: none */
    bool has_decision;
    wire_decision decision; /* of step - 1 */
    uint32_t n_moved;       /* shards with a new primary */
} resolved;

/* Without servers every worker holds the state it trains.  If a worker has applied a step, all had contributed to it,
 * so the job continues from the largest number of steps (out->step).  Workers that have applied fewer get the state of
 * a worker with all of them.  Each holder has one report, with `step`.
 * Errors  INTERNAL  no holder is left, or one did not report its step. */
pen_status resolve_workers(const resolve_holder *worker, uint32_t n_workers, resolved *out,
                           pen_error *why);

/* Changes roles in `table` and removes copies on dead servers.  Caught-up learners that are level become backups.
 * Errors  PEER_LOST  a shard has no copy of R left.   INTERNAL  reports contradict each other.   *why names the shards,
 *         and the table is no longer usable. */
pen_status resolve_epoch(placement *table, uint32_t n_shards, const resolve_holder *server,
                         uint32_t n_servers, resolved *out, pen_error *why);

#endif
