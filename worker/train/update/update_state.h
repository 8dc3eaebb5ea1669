/* update_state.h - updates a model, or a part of it, on one worker without servers.
 *
 * DESIGN.  An update state treats summed gradients as shards do: the same partitions (plan.h), sums
 * of squares and decision, and the same update rules on the same spans.  So one worker, or several
 * with bit-equal sums, get the same bits as with servers.  The caller provides the sums: train/solo.c
 * weighs one gradient, train/reducer.c sums those of all ranks.  16-bit parameters have a float32
 * master, as on servers.
 *   Space.  All arithmetic is device_ops in one space (space.h).  On the host a call has ended when it returns.  On a
 * device it is enqueued: the verdict of a step stays on the device, where the update reads it, and the host reads a copy
 * later (update_state_settle).  Until then a step may have been applied or not, so the host sends the scalars of an
 * update for each number of updates that is possible before it.
 *   Offload.  With offload_optimizer=cpu a device's slots and masters lie in pinned host memory, where its kernels read
 * and write them; with offload_param=cpu masters that are the only copy of a parameter.
 *   A part is one range of each tensor, at block borders.  It has masters, slots and sums of squares of its ranges only.
 * For a decision the caller packs its sums, exchanges them with the other members, and unpacks theirs.
 * Memory is counted (mem.slot.bytes; a master that is the only copy of its parameter: mem.param.bytes).
 * Thread: one at a time.
 */
#ifndef WORKER_TRAIN_UPDATE_STATE_H
#define WORKER_TRAIN_UPDATE_STATE_H

#include "common/compute/device/device_step.h"
#include "proto/plan.h"
#include "worker/tensor/model.h"
#include "worker/train/sharded/sharded_ranges.h"
#include "worker/train/state_ranges.h"
#include "worker/tensor/device_copy/space.h"

typedef struct update_state update_state;

enum { UPDATE_STATE_PENDING_MAX = 3 }; /* verdicts that the host has not read */

typedef struct {
    const model *model; /* frozen, with first values in t->param; BORROWED while the state lives */
    const memory_space *space; /* NULL: the host; copied */
    const sharded_range *own;  /* [n_tensors] the part; NULL: all */
    /* [n_tensors] the master is the only copy of the tensor, and is empty before update_state_load();
     * NULL: none.  Other tensors have the range's values in t->param. */
    const bool *sharded_out;
    int members; /* words that are copied with a verdict */
    /* Host memory that a device can read: once it is nonzero, no step is applied.  NULL: none. */
    const uint32_t *stop;
    /* Of a part: adds up n doubles in memory of the space over all members, in place; on a device in the order of its
     * stream.  NULL: no rule needs norms of whole tensors, or all is here. */
    pen_status (*add_up)(void *user, double *sums, size_t n, pen_error *why);
    void *user;
} update_state_setup;

pen_status update_state_create(const update_state_setup *setup, update_state **r, pen_error *why);
void update_state_destroy(update_state *r); /* NULL is fine; nothing enqueued uses it */

/* Sets first values of the own range, in the tensor's type, from host memory. */
pen_status update_state_load(update_state *r, const pen_tensor *t, const void *values,
                             pen_error *why);

const plan *update_state_plan(const update_state *r);

/* ---- a step: give, measure, decide, carry out, settle ---- */
/* Sets the weighted float32 sum of a trained tensor's gradients, of the own range, in the space's memory; BORROWED until
 * the update has run. */
void update_state_give(update_state *r, const pen_tensor *t, const float *sum);

/* Computes the sums of squares of the own ranges. */
pen_status update_state_measure(update_state *r, pen_error *why);

/* For a part, on the host: the lowest own chunk that is not finite, DEVICE_ALL_FINITE if none.  update_state_pack()
 * writes the sums of squares of the own ranges, in registration order, and returns their number, at most
 * update_state_blocks(own).  update_state_unpack() reads those of another member's ranges. */
uint32_t update_state_bad_chunk(const update_state *r);
/* The chunk is as a member sent it: any number. */
void update_state_mark_bad(update_state *r, double chunk);
size_t update_state_pack(const update_state *r, const sharded_range *own, size_t stride,
                         double *to);
size_t update_state_unpack(update_state *r, const sharded_range *theirs, size_t stride,
                           const double *from);
size_t update_state_blocks(const update_state *r, const sharded_range *of, size_t stride);

/* All sums of squares, in registration order, and the lowest chunk of the sums that is not finite: memory of the space. */
typedef struct {
    double *sums;
    size_t n;
    uint32_t *bad;
} update_state_sums;
update_state_sums update_state_sums_of(const update_state *r);

/* Where a device keeps the lowest chunk of this rank's own gradients that is not finite (device_weigh.bad). */
uint32_t *update_state_own_bad(const update_state *r);

/* Decides from all sums of squares; the verdict is then pending.  words[members]: memory of the space that is copied with
 * the verdict; NULL: none.  The caller keeps at most UPDATE_STATE_PENDING_MAX verdicts pending. */
pen_status update_state_decide(update_state *r, const wire_inputs *inputs, double weight_sum,
                               const uint32_t *words, pen_error *why);
/* The newest verdict; NULL: the host cannot know it yet. */
const device_verdict *update_state_verdict(const update_state *r);

/* Counts a step without a decision. */
void update_state_count_step(update_state *r);

/* Applies the step to trained tensors list[n], by the newest verdict if their group has one, and writes their new values
 * where the program has them.  rates[k * inputs->n_rates + group]: the rate if k of the steps whose verdicts are pending,
 * without the newest, are applied. */
pen_status update_state_carry_out(update_state *r, const uint32_t *list, uint32_t n,
                                  const wire_inputs *inputs, double weight_sum, const double *rates,
                                  pen_error *why);

uint32_t update_state_pending(const update_state *r);
/* Reads the oldest pending verdict, and counts it.  Waits for the device; TIMED_OUT after the setting deadline_ms.
 * words: of that step; valid until UPDATE_STATE_PENDING_MAX more decisions. */
pen_status update_state_settle(update_state *r, device_verdict *v, const uint32_t **words,
                               pen_error *why);

/* ---- on the host only ---- */
/* The factor of a tensor's gradient in this step; false: it is not applied. */
bool update_state_gscale(const update_state *r, const pen_tensor *t, const wire_inputs *inputs,
                         double weight_sum, double *gscale);

/* One update with the given gradient. */
pen_status update_state_update(update_state *r, const pen_tensor *t, double lr, double gscale,
                               pen_error *why);

/* Copies the values of the own range of a tensor that is sharded out to memory of the space, in the tensor's type; on a
 * device in the order of `stream`. */
pen_status update_state_copy_out(const update_state *r, const pen_tensor *t, void *to,
                                 device_stream stream, pen_error *why);

/* Copies the values of the own range to host memory, in the tensor's type.  Waits for a device. */
pen_status update_state_values(const update_state *r, const pen_tensor *t, void *to,
                               pen_error *why);

/* For snapshots, with no verdict pending: the own range of every tensor, on the host; the caller sets copies and copy.
 * Call update_state_restored() after they were overwritten: it also updates the range of t->param, unless the tensor is
 * sharded out. */
pen_status update_state_state_ranges(update_state *r, state_ranges *h, pen_error *why);
pen_status update_state_restored(update_state *r, int64_t applied, pen_error *why);

int64_t update_state_applied(const update_state *r); /* updates of the whole model */
uint64_t update_state_version(const update_state *r, const pen_tensor *t);

#endif
