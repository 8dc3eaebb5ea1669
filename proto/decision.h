/* decision.h - the verdict of one step over the whole model: apply or skip, and how much to clip.
 *
 * A pure function of the prepare votes and the inputs.  Sums are added in double, in the tree of arithmetic.h over
 * (registration, block), so workers, scheduler, simulator and devices derive the same bits.
 */
#ifndef PROTO_DECISION_H
#define PROTO_DECISION_H

#include "proto/plan.h"

/* XXH3-64 of a vote: every field but the hash, then the inputs that all ranks share (not weight, snapshot and scalars),
 * the sums of squares, and the vote's scalars.  proto/README.md has the bytes. */
uint64_t decision_vote_hash(uint64_t step, const wire_vote *vote, const wire_inputs *inputs,
                            const double *sums, uint32_t n_sums);

/* Whether the inputs of two ranks are equal bit for bit, except weight and snapshot.  Else *why is MISMATCH and names the
 * first difference and both ranks; the culprit is rank_b. */
bool decision_inputs_equal(const wire_inputs *a, int32_t rank_a, const wire_inputs *b,
                           int32_t rank_b, pen_error *why);

/* records[n_partitions] in partition order; sums[p]: the sums of squares of partition p in the order of its chunks and
 * their blocks.  Partitions that no decision closes (n_decided 0) have no sums, and their records do not count.
 * norm    = sqrt(total) / (weight_sum x loss_scale)
 * clip    = clip bound c > 0 and norm + 1e-6 > c ? c / (norm + 1e-6) : 1     (torch, DeepSpeed)
 * gscale  = clip / (weight_sum x loss_scale)
 * outcome: SKIPPED_EMPTY when the weights add to 0 (norm is then 0); SKIPPED_NONFINITE when a record is not finite and
 * inputs.skip is set; SKIPPED_NORM when the norm is not finite although every element is; else APPLIED.  When skipped, clip
 * is 1 and gscale 0.  weight_sum is that of the first partition that a decision closes.
 * *bad_chunk and *bad_rank: the lowest bad chunk of the records that are not finite, else 0 and -1.  They come from the
 * records unchecked and may lie outside the plan. */
void decision_make(const plan *p, const wire_vote *votes, const double *const *sums,
                   const wire_inputs *inputs, int64_t applied, wire_decision *decision,
                   uint32_t *bad_chunk, int32_t *bad_rank);

#endif
