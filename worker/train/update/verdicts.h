/* verdicts.h - the steps of a strategy whose verdicts the host has not read.
 *
 * DESIGN.  A strategy adds a step when it has enqueued the step's sums, and settles it when it must be known: on the host,
 * or if the step is not lazy, at its end.  On a device a lazy step may stay undecided while later ones are enqueued.
 * Thread: one at a time.
 */
#ifndef WORKER_TRAIN_VERDICTS_H
#define WORKER_TRAIN_VERDICTS_H

#include "worker/train/update/update_state.h"

/* Finds the RANK whose gradient is not finite in a chunk.  is_own: this rank's is not.  words: of update_state_settle();
 * NULL on the host.  last: as given to verdicts_add(). */
typedef pen_status (*verdicts_culprit_fn)(void *user, uint32_t chunk, bool is_own,
                                          const uint32_t *words, int32_t last, int32_t *rank,
                                          pen_error *why);

typedef struct {
    pen_ctx *ctx;
    update_state *state;
    verdicts_culprit_fn culprit;
    void *user;
    double *rates; /* [UPDATE_STATE_PENDING_MAX * n_groups] */
    struct {
        int64_t step;
        int32_t last;
    } pending[UPDATE_STATE_PENDING_MAX + 1]; /* by number of the decision */
    uint64_t n_added, n_settled;
} verdicts;

/* ctx, state and user are BORROWED. */
pen_status verdicts_init(verdicts *v, pen_ctx *ctx, update_state *state,
                         verdicts_culprit_fn culprit, void *user, pen_error *why);
void verdicts_fini(verdicts *v); /* zeroed is fine */

/* The step in progress has all sums of squares: update_state_decide().  last: position to name if no rank is known to have
 * added what is not finite. */
pen_status verdicts_add(verdicts *v, const wire_inputs *inputs, double weight_sum,
                        const uint32_t *words, int32_t last, pen_error *why);

/* For update_state_carry_out(): the rates for each number of updates that is possible before this one. */
const double *verdicts_rates(verdicts *v, const wire_inputs *inputs);

/* strategy_ops.settle. */
pen_status verdicts_settle(verdicts *v, uint32_t most, pen_error *why);

/* The step in progress ends: decided, or pending if it may. */
pen_status verdicts_end_step(verdicts *v, bool may_be_pending, pen_error *why);

/* The lowest position whose word names the chunk; *at is unchanged if there is none. */
void verdicts_find(const uint32_t *words, int n, uint32_t chunk, int32_t *at);

#endif
