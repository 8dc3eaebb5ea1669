/* residency.h - which units' values are here, which are to come, and which may go: a pure state machine.
 *
 * DESIGN.  The residency is told what the program uses and releases and what has arrived; it says through
 * callbacks what to fetch and what to drop.  It moves no byte, has no thread, clock or lock, and does not
 * care where values come from: from servers (client_unit.c) or from other workers (train/sharded.c).
 *   The uses of the first step are recorded.  From the second on each use is compared with them, and the
 * one that comes next is fetched ahead: in the forward pass if prefetch_forward says so, in the backward
 * pass before (pre) or after (post) the current unit is worked on, or not (none).  One unit ahead, of the
 * same pass; not if it has more elements than prefetch_bucket.
 *   A program whose order changes is warned once; nothing is fetched ahead in the rest of that step, and
 * the next step is recorded instead.  A guess that was wrong costs memory, never values.
 *   Units that are fetched or here count as live.  What is used now may always come.  A fetch ahead that
 * would pass max_live waits until something is dropped.  Before a unit in use is fetched beyond max_live,
 * those that are only kept for reuse are dropped.
 *   A unit is kept after its release when it is used again in the same step within max_reuse elements of
 * other units, or with keeps_forward (SHARD_GRAD_OP) after a release in the forward pass.
 *   When a step has ended values are old: all that is not in use is dropped; what is, is fetched again at
 * its next use.
 * A unit without moving elements is always here and never fetched.
 * Uses nest: a unit is released when as many releases came as uses.
 * Source  event order: PyTorch 2 FSDP, BackwardPrefetch; trace, max_live, max_reuse: DeepSpeed stage 3,
 *         partitioned_param_coordinator.py.
 */
#ifndef WORKER_RESIDENCY_H
#define WORKER_RESIDENCY_H

#include "penstock.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct residency residency;

typedef enum { PREFETCH_PRE, PREFETCH_POST, PREFETCH_NONE } residency_prefetch;

typedef struct {
    uint32_t n_units;
    const uint64_t *moving; /* [n_units] elements that come and go; copied */
    residency_prefetch backward;
    bool forward;
    bool keeps_forward;
    uint64_t max_live, prefetch_bucket, max_reuse; /* elements */
} residency_setup;

/* Called within the functions below, which none may call. */
typedef struct {
    void (*fetch)(void *user, uint32_t unit); /* residency_arrived() or _failed() follows, later */
    void (*drop)(void *user, uint32_t unit);  /* its values are here, and not wanted any more */
    void (*warn)(void *user, const char *line);
} residency_actions;

residency *residency_create(const residency_setup *setup, const residency_actions *actions,
                            void *user, pen_error *why);
void residency_destroy(residency *self); /* drops nothing; NULL is fine */

/* The unit is needed: it is here, or it is on its way and the caller waits until residency_has().
 * step: the one in progress, or -1 outside of one: such uses are neither recorded nor fetched ahead. */
void residency_use(residency *self, uint32_t unit, pen_phase phase, int64_t step);
/* A release that no use came before does nothing. */
void residency_release(residency *self, uint32_t unit, pen_phase phase);
bool residency_has(const residency *self, uint32_t unit);

void residency_arrived(residency *self, uint32_t unit);
void residency_failed(residency *self, uint32_t unit); /* as if it had not been fetched */

void residency_step_end(residency *self);

#endif
