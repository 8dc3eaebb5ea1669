/* update_state.h - updates a model, or a part of it, on one worker without servers.
 *
 * DESIGN.  An update state treats summed gradients as shards do: the same partitions (plan.h), sums
 * of squares and decision, and the same update rules on the same spans.  So one worker, or several
 * with bit-equal sums, get the same bits as with servers.  The caller provides the sums: train/solo.c
 * weighs one gradient, train/reducer.c sums those of all ranks.  16-bit parameters have a float32
 * master, as on servers.
 *   A part is one range of each tensor, at block borders.  It has masters, slots and sums of squares of its ranges only.
 * For a decision the caller packs its sums, exchanges them with the other members, and unpacks theirs.
 * Memory is counted (mem.slot.bytes; a master that is the only copy of its parameter: mem.param.bytes).
 * Thread: one at a time.
 */
#ifndef WORKER_TRAIN_UPDATE_STATE_H
#define WORKER_TRAIN_UPDATE_STATE_H

#include "proto/plan.h"
#include "worker/tensor/model.h"
#include "worker/train/sharded/sharded_ranges.h"
#include "worker/train/state_ranges.h"

typedef struct update_state update_state;

/* A rank's share of the sum of n elements: its gradient, rounded as on the wire (`as`), times its
 * weight.  grad NULL: zeros.  Weight 0 gives minus zeros for any grad: adding them changes no float.
 * Returns whether all is finite. */
bool update_state_weigh(float *to, const void *grad, pen_dtype grad_dtype, pen_dtype as,
                        double weight, size_t n);

/* m is frozen and has its first values; it is BORROWED until update_state_destroy(). */
pen_status update_state_create(const model *m, update_state **r, pen_error *why);
/* For the ranges own[n_tensors] only.  With sharded_out[] the master is the only copy of a tensor and
 * is empty before update_state_load().  Other tensors have the range's values in t->param. */
pen_status update_state_create_part(const model *m, const sharded_range *own,
                                    const bool *sharded_out, update_state **r, pen_error *why);
void update_state_destroy(update_state *r); /* NULL is fine */

/* Sets first values of the own range, in the tensor's type. */
void update_state_load(update_state *r, const pen_tensor *t, const void *values);

const plan *update_state_plan(const update_state *r);

/* Sets the weighted float32 sum of a trained tensor's gradients, of the own range; BORROWED until the step ends. */
void update_state_give(update_state *r, const pen_tensor *t, const float *sum);

/* Computes the sums of squares and decides.  *bad_chunk is the lowest chunk that is not finite;
 * returns whether there is one.  update_state_applied() counts the decision. */
bool update_state_decide(update_state *r, const wire_inputs *inputs, double weight_sum,
                         wire_decision *decision, uint32_t *bad_chunk);

/* The same in three steps, for a part.  After update_state_measure(), update_state_pack() writes the sums of squares of
 * the own ranges, in registration order, and returns their number, at most update_state_blocks(own).
 * update_state_unpack() reads those of another member's ranges.  *bad_chunk is UPDATE_STATE_NO_CHUNK if all is finite. */
#define UPDATE_STATE_NO_CHUNK UINT32_MAX
void update_state_measure(update_state *r, double weight_sum, uint32_t *bad_chunk);
size_t update_state_pack(const update_state *r, const sharded_range *own, size_t stride,
                         double *to);
size_t update_state_unpack(update_state *r, const sharded_range *theirs, size_t stride,
                           const double *from);
size_t update_state_blocks(const update_state *r, const sharded_range *of, size_t stride);
void update_state_mark_bad(update_state *r, uint32_t chunk); /* of another member */
bool update_state_conclude(update_state *r, const wire_inputs *inputs, wire_decision *decision,
                           uint32_t *bad_chunk);

/* Counts a step without a decision. */
void update_state_count_step(update_state *r);

/* Applies the step to one tensor, by the decision if its group has one.  Writes the new values to
 * t->param. */
void update_state_carry_out(update_state *r, const pen_tensor *t, const wire_inputs *inputs,
                            double weight_sum, const wire_decision *decision);

/* The factor of a tensor's gradient; false: it is not applied in this step. */
bool update_state_gscale(const update_state *r, const pen_tensor *t, const wire_inputs *inputs,
                         double weight_sum, const wire_decision *decision, double *gscale);

/* One update with the given gradient. */
void update_state_update(update_state *r, const pen_tensor *t, double lr, double gscale);

/* For rules that need norms of the whole tensor.  begin: sums of squares of the parameters (*param) and of the raw
 * update (*update), one per own block; returns how many.  end: the update, with square roots of all members' sums. */
size_t update_state_begin_whole(update_state *r, const pen_tensor *t, double lr, double gscale,
                                double *param, double *update);
void update_state_end_whole(update_state *r, const pen_tensor *t, double lr, double gscale,
                            double param_norm, double update_norm);
bool update_state_needs_whole(const update_state *r, const pen_tensor *t);

/* Copies the values of the own range, in the tensor's type. */
void update_state_values(const update_state *r, const pen_tensor *t, void *to);

/* For snapshots: the own range of every tensor; the caller sets copies and copy.  Call update_state_restored() after
 * they were overwritten: it also updates the range of t->param, unless the tensor is sharded out. */
pen_status update_state_state_ranges(update_state *r, state_ranges *h, pen_error *why);
void update_state_restored(update_state *r, int64_t applied);

int64_t update_state_applied(const update_state *r); /* updates of the whole model */
uint64_t update_state_version(const update_state *r, const pen_tensor *t);

#endif
