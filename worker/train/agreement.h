/* agreement.h - exchanges weight, rates, bounds and scalars of all ranks in each step without servers.
 *
 * Weights and scalars are added in the order of the group's folds (fold_order.h); everything else must be equal.  One
 * small call per step: it begins with the step and must have ended at its end.  In groups of up to AGREEMENT_MEMBERS_SHOWN
 * it is an all_gather.  N members would receive N^2 inputs, so larger groups add up weights, scalars and hashes of the
 * rest in one all_reduce; only if these do not say it all, they gather, too.
 */
#ifndef WORKER_TRAIN_AGREEMENT_H
#define WORKER_TRAIN_AGREEMENT_H

#include "worker/train/group_calls.h"

enum { AGREEMENT_MEMBERS_SHOWN = 64, AGREEMENT_HASH_PARTS = 4 };

/* What members add up.  16 bits of a hash are equal on all n members exactly if n times the sum of their squares is the
 * square of their sum. */
typedef struct {                /* doubles only: one call adds them */
    double weight, with_weight; /* the latter: members that have one */
    double snapshots, first;    /* first: given by position 0 alone */
    double hash[AGREEMENT_HASH_PARTS], square[AGREEMENT_HASH_PARTS];
    double scalar[WIRE_SCALARS_MAX];
} agreement_sums;

typedef struct {
    size_t bytes; /* of one rank */
    uint32_t n_rates;
    int room;      /* members at the start: a group does not grow */
    int n, *ranks; /* members that take part, and their RANKs, including those lost since */
    const reduce_order *order; /* of the group that took part; BORROWED */
    char *own, *all;           /* [bytes], [size * bytes]; the same in a group of one */
    bool is_summed;            /* by `added` and `sums`; `all` has nothing */
    agreement_sums added, sums;
} agreement;

pen_status agreement_init(agreement *a, uint32_t n_rates, int size, pen_error *why);
void agreement_fini(agreement *a); /* zeroed is fine */

/* A step begins: sends inputs to all members of t's group; *a is BORROWED until group_calls_wait().  first: for
 * reducer_set_first(). */
void agreement_show(agreement *a, group_calls *t, const wire_inputs *inputs, uint32_t first);

/* The same again, to the survivors. */
void agreement_show_again(agreement *a, group_calls *t);

/* After the wait, on all members: gathers and waits if sums do not say it all. */
pen_status agreement_complete(agreement *a, group_calls *t, pen_error *why);

/* After agreement_complete(): compares all members, and sums their weights.  MISMATCH, equal on all, names two of them. */
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
