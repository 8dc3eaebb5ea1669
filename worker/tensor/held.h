/* held.h - tensors whose memory is the SDK's: values of those registered with param NULL, and gradients of
 * those registered with grad NULL and seen by pen_view().
 *
 * DESIGN.  Memory is segment_alloc()'s, as pen_alloc()'s is, so that other workers of the host can map it.
 * It is counted when it is taken and when it is given back (mem.param.bytes, mem.grad.bytes).
 *   Values.  Where all is always here (pen_tensor.stays) they are made at pen_commit() and t->param is
 *   where they lie for good.  Else t->param is set while they are here, by whoever gathers them.
 *   Gradients.  A buffer is made at its first pen_view() in a step, zero; pen_ready() lends it to the
 *   engine, which may return it as soon as nobody can ask for its bytes any more (held_grad_return).  One
 *   that comes back no earlier than the step's end serves the next step.
 *   With the setting device=cuda both are twins (mirror.h): what the SDK reads and writes is the host's side, what the
 * program gets from held_grad() is the device's.
 * Threads: any; a tensor's buffers are under its context's lock `held`.
 */
#ifndef WORKER_HELD_H
#define WORKER_HELD_H

#include "worker/tensor/model.h"

/* Makes t->param, where there is none: of a tensor whose values the SDK holds.  Not zeroed beyond what the
 * system does; OK when it is there. */
pen_status held_param(pen_tensor *t, pen_error *why);
void held_param_drop(pen_tensor *t); /* t->param is NULL then; nothing where it is the program's */

/* Where a held gradient is: zero at the first call of a micro-batch.  NULL and *why: no memory. */
void *held_grad(pen_tensor *t, pen_error *why);
void *held_grad_seen(pen_tensor *t); /* where the SDK reads it; NULL before that first call */

/* pen_ready(): `lent` is the engine's from here on; other memory of this gradient is freed, for it is in a sum. */
void held_grad_pass(pen_tensor *t, const void *lent);

/* Nobody reads the bytes of this gradient any more: they are freed.  NULL and what is not held: nothing.  t may be one
 * of its other names.  In
 * any thread. */
void held_grad_return(pen_tensor *t, const void *grad);

/* A micro-batch begins: the next view is the first. */
void held_grad_begin(pen_tensor *t);
/* The step has ended: what the engine has not returned is taken back; kept for the next one, or freed. */
void held_grad_step_end(pen_tensor *t, bool keeps);

/* Waits until `bytes` more than what engines have been lent are at most `most`, or they have none.
 * TIMED_OUT at the setting deadline_ms. */
pen_status held_grad_wait(pen_ctx *ctx, uint64_t bytes, uint64_t most, pen_error *why);

void held_free(pen_tensor *t); /* all of it; at the end */

/* First values by the tensor's init string, elements [start, start + n), in its own type: a pure function of seed, name
 * and index, so any range can be drawn alone, anywhere.  False: it has none. */
bool held_draw_as_is(const pen_tensor *t, uint64_t start, size_t n, void *to);

#endif
