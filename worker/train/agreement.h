/* agreement.h - exchanges weight, rates, bounds and scalars of all ranks in each step without servers.
 *
 * Weights and scalars are added in the order of the group's folds (fold_order.h); everything else must be equal.  One small all_gather per step: it begins
 * with the step and must have ended at its end.
 */
#ifndef WORKER_TRAIN_AGREEMENT_H
#define WORKER_TRAIN_AGREEMENT_H

#include "worker/train/group_calls.h"

typedef struct {
    size_t bytes; /* of one rank */
    uint32_t n_rates;
    int room;      /* members at the start: a group does not grow */
    int n, *ranks; /* members that take part, and their RANKs, including those lost since */
    const reduce_order *order; /* of the group that took part; BORROWED */
    char *own, *all;           /* [bytes], [size * bytes]; the same in a group of one */
} agreement;

pen_status agreement_init(agreement *a, uint32_t n_rates, int size, pen_error *why);
void agreement_fini(agreement *a); /* zeroed is fine */

/* A step begins: sends inputs to all members of t's group; *a is BORROWED until group_calls_wait().  first: for
 * reducer_set_first(). */
void agreement_show(agreement *a, group_calls *t, const wire_inputs *inputs, uint32_t first);

/* The same again, to the survivors. */
void agreement_show_again(agreement *a, group_calls *t);

/* After the wait: compares all members, and sums their weights.  MISMATCH, equal on all, names two of them. */
pen_status agreement_check(const agreement *a, double *weight_sum, pen_error *why);

/* The sum of their scalars. */
void agreement_scalars(const agreement *a, wire_scalars *sum);

/* The last position whose weight is not 0.  If all terms are finite but their sum is not, the overflow happened at that
 * position or an earlier one. */
int32_t agreement_last_with_weight(const agreement *a);

uint32_t agreement_first(const agreement *a); /* that of position 0 */

/* A member wants a snapshot after this step: for snapshot_writer_step(). */
bool agreement_wants_snapshot(const agreement *a);

#endif
