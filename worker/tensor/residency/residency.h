/* residency.h - which units to fetch and to drop.  A pure state machine.
 *
 * DESIGN.  Uses, releases and arrivals go in; callbacks say what to fetch and to drop.  It moves no
 * data and has no thread, clock or lock.  Values may come from servers (io_unit.c) or from other
 * workers (sharded/sharded.c).
 *   Each step records its uses, and compares each with those of earlier steps to fetch the next
 * unit ahead: in the forward pass with prefetch_forward, in the backward pass before (pre) or after
 * (post) the current unit, or never (none).  One unit ahead, of the same pass, and only up to
 * prefetch_bucket elements.
 *   Two orders are known: some steps validate, most do not.  A step follows the more usual one until it
 * differs, then the other; in a step that is in neither nothing more is fetched ahead, and its order is known from then
 * on.  Three such steps in a row are logged, once.  A wrong guess costs memory, never values.
 *   Units that are here or being fetched are live.  A unit in use is always fetched.  A fetch ahead
 * beyond max_live waits until something is dropped.  Units that are only kept for reuse are dropped
 * before a unit in use exceeds max_live.
 *   A released unit is kept if it is used again in the same step within max_reuse elements of other units, or with
 * keeps_forward (SHARD_GRAD_OP) after a release in the forward pass.
 *   At the end of a step values are stale: units not in use are dropped, the others are fetched again at their next use.
 * A unit without moving elements is always here and never fetched.
 * Uses nest: a unit is released after as many releases as uses.
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
    const uint64_t *moving; /* [n_units] elements that are fetched and dropped; copied */
    residency_prefetch backward;
    bool forward;
    bool keeps_forward;
    uint64_t max_live, prefetch_bucket, max_reuse; /* elements */
} residency_setup;

/* Called by the functions below; must not call them. */
typedef struct {
    void (*fetch)(void *user, uint32_t unit); /* residency_arrived() or _failed() follows, later */
    void (*drop)(void *user, uint32_t unit);  /* its values are no longer needed */
    void (*warn)(void *user, const char *line);
} residency_actions;

residency *residency_create(const residency_setup *setup, const residency_actions *actions,
                            void *user, pen_error *why);
void residency_destroy(residency *self); /* drops nothing; NULL is fine */

/* The unit is needed; the caller waits until residency_has().  step: the one in progress; -1: outside a step, where
 * nothing is recorded or fetched ahead.  False: no memory to record it, so in later steps this rank may
 * fetch and keep other units than the other ranks. */
bool residency_use(residency *self, uint32_t unit, pen_phase phase, int64_t step);
/* A release without a use does nothing. */
void residency_release(residency *self, uint32_t unit, pen_phase phase);
bool residency_has(const residency *self, uint32_t unit);

void residency_arrived(residency *self, uint32_t unit);
void residency_failed(residency *self, uint32_t unit); /* as if it had not been fetched */

void residency_step_end(residency *self);

#endif
