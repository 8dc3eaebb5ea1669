/* replica.h - the training state of a model, or of a part of it, on one worker: what a step does where there
 * are no servers.
 *
 * DESIGN.  A replica does to the summed gradients what shards do: the same cuts (plan.h), the same
 * sums of squares, the same decision, the same update rules on the same spans.  So one worker, or
 * several that hold bit-equal sums, get the bits that servers would have given them.  Where a sum
 * comes from is its owner's affair: train/solo.c weighs one gradient, train/reducer.c adds up those of all
 * ranks.  Parameters of 16 bits keep a float32 master, as servers do.
 *   A part is one range of each tensor, on borders of blocks.  Masters, slots and sums of squares are of it only; what
 * a decision needs of the others is packed, exchanged by the owner, and unpacked.
 * Memory is counted (mem.slot.bytes; a master that is all there is of its parameter: mem.param.bytes).
 * Thread: one at a time.
 */
#ifndef WORKER_TRAIN_REPLICA_H
#define WORKER_TRAIN_REPLICA_H

#include "proto/plan.h"
#include "worker/tensor/model.h"
#include "worker/train/holding.h"
#include "worker/train/sharded_cut.h"

typedef struct replica replica;

/* What a rank adds to the sum of n elements: its gradient, rounded as it would be on its way to a
 * server (`as`), times its weight.  grad NULL: zeros.  A rank of weight 0 adds nothing, whatever its
 * bytes are: minus zero is what leaves every float as it is.  Returns whether all is finite. */
bool replica_weigh(float *to, const void *grad, pen_dtype grad_dtype, pen_dtype as, double weight,
                   size_t n);

/* m is frozen, its values are the first ones; it is BORROWED as long as the replica lives. */
pen_status replica_create(const model *m, replica **r, pen_error *why);
/* Of own[n_tensors] only.  A tensor that is apart has its values nowhere but here, and none before
 * replica_load(); of others the range's values are in t->param. */
pen_status replica_create_part(const model *m, const sharded_range *own, const bool *apart,
                               replica **r, pen_error *why);
void replica_destroy(replica *r); /* NULL is fine */

/* First values of the own range, of the tensor's type. */
void replica_load(replica *r, const pen_tensor *t, const void *values);

const plan *replica_plan(const replica *r);

/* The weighted float32 sum of a trained tensor's gradients, of the own range, BORROWED until the step has
 * ended. */
void replica_give(replica *r, const pen_tensor *t, const float *sum);

/* Measures what was given and decides.  *bad_chunk is the lowest chunk that is not finite; returns
 * whether there is one.  The decision counts as made: it is in replica_applied(). */
bool replica_decide(replica *r, const wire_inputs *inputs, double weight_sum,
                    wire_decision *decision, uint32_t *bad_chunk);

/* The same in three steps, for a part: measures, so that replica_pack() gives the sums of squares of the own
 * ranges, in the order of registration (returns how many; at most replica_blocks(own)); and takes those of another
 * member, whose ranges are known.  A bad chunk is REPLICA_NO_CHUNK where all is finite. */
#define REPLICA_NO_CHUNK UINT32_MAX
void replica_measure(replica *r, double weight_sum, uint32_t *bad_chunk);
size_t replica_pack(const replica *r, const sharded_range *own, size_t stride, double *to);
size_t replica_unpack(replica *r, const sharded_range *theirs, size_t stride, const double *from);
size_t replica_blocks(const replica *r, const sharded_range *of, size_t stride);
void replica_mark_bad(replica *r, uint32_t chunk); /* of another member */
bool replica_conclude(replica *r, const wire_inputs *inputs, wire_decision *decision,
                      uint32_t *bad_chunk);

/* A step that no decision closes. */
void replica_count_step(replica *r);

/* What the step means for one tensor: groups that no decision closes do not wait for it.  Writes
 * the new values to t->param. */
void replica_carry_out(replica *r, const pen_tensor *t, const wire_inputs *inputs,
                       double weight_sum, const wire_decision *decision);

/* What the gradient of a tensor is multiplied by; false: it is not applied in this step. */
bool replica_gscale(const replica *r, const pen_tensor *t, const wire_inputs *inputs,
                    double weight_sum, const wire_decision *decision, double *gscale);

/* One update of its own, with the gradient that was given. */
void replica_update(replica *r, const pen_tensor *t, double lr, double gscale);

/* For rules that need norms of the whole tensor, of which this is a part: sums of squares, of the parameters in
 * *param and of the raw update in *update, one per own block; returns how many.  Then the update, with the roots of
 * all members' sums. */
size_t replica_begin_whole(replica *r, const pen_tensor *t, double lr, double gscale, double *param,
                           double *update);
void replica_end_whole(replica *r, const pen_tensor *t, double lr, double gscale, double param_norm,
                       double update_norm);
bool replica_needs_whole(const replica *r, const pen_tensor *t);

/* Values of the own range, of the tensor's type. */
void replica_values(const replica *r, const pen_tensor *t, void *to);

/* For snapshots: the own range of every tensor; copies and copy are the caller's to set.  And the way back: what was
 * written into the holding counts from now on, and the range of t->param is made of it where that is not apart. */
pen_status replica_holding(replica *r, holding *h, pen_error *why);
void replica_restored(replica *r, int64_t applied);

int64_t replica_applied(const replica *r); /* updates of the whole model */
uint64_t replica_version(const replica *r, const pen_tensor *t);

#endif
