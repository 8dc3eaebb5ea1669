/* param_memory.h - memory of the SDK for tensors: values of those registered with param NULL, and
 * gradients of those registered with grad NULL and used through pen_view().
 *
 * DESIGN.  Memory comes from segment_alloc(), as in pen_alloc(), so that other workers of the host can map it.  It is
 * counted (mem.param.bytes, mem.grad.bytes).
 *   Values.  Those that stay (pen_tensor.stays) are allocated at pen_commit(), and t->param is
 * final.  Else the strategy that gathers them sets t->param while they are here.
 *   Gradients.  The first pen_view() in a step makes a zeroed buffer.  pen_ready() lends it to the
 * strategy, which returns it when its bytes cannot be asked for again (param_grad_return).  A
 * buffer that comes back at the end of the step serves the next one.
 *   Spare blocks.  After the commit, a dropped block serves the next values or gradient of its size: fresh
 * pages from the system cost more than what is done with them.  Blocks in use and spare ones together
 * never exceed the most that was in use; the end of each step frees the spare ones.
 *   With device=cuda both are pinned pairs (device_copies.h): the SDK uses the host side, and param_grad() returns the
 * device side.
 * Threads: any; the context's grad_lock guards the buffers.
 */
#ifndef WORKER_PARAM_MEMORY_H
#define WORKER_PARAM_MEMORY_H

#include "worker/tensor/model.h"

/* Allocates t->param if it is NULL and the SDK holds its values: zeros before the commit, anything after it. */
pen_status param_memory(pen_tensor *t, pen_error *why);
void param_memory_drop(pen_tensor *t); /* sets t->param to NULL; no-op for memory of the program */

/* The gradient buffer, zeroed at the first call of a micro-batch.  NULL and *why: no memory. */
void *param_grad(pen_tensor *t, pen_error *why);
void *param_grad_seen(pen_tensor *t); /* its host side; NULL before that first call */

/* For pen_ready(): lends `lent` to the strategy; NULL: nothing goes to it in this micro-batch.  Frees other memory of this
 * gradient: a sum has its contents.  No-op for memory of the program, and where gradients stay until the step ends. */
void param_grad_pass(pen_tensor *t, const void *lent);

/* Frees a gradient that the strategy no longer reads.  No-op for NULL and memory of the program.  t may be any of its
 * names.  In any thread. */
void param_grad_return(pen_tensor *t, const void *grad);

/* A micro-batch begins: the next view is the first. */
void param_grad_begin(pen_tensor *t);
/* The step has ended: takes lent gradients back and keeps them for the next step, or frees them. */
void param_grad_step_end(pen_tensor *t, bool keeps);

/* Waits until the lent bytes plus `bytes` are at most `most`, or nothing is lent.  TIMED_OUT after deadline_ms. */
pen_status param_grad_wait(pen_ctx *ctx, uint64_t bytes, uint64_t most, pen_error *why);

void param_memory_free(pen_tensor *t); /* all of it; at the end */
void param_memory_drop_spare(pen_ctx *ctx);

/* Initial values by the tensor's init string, elements [start, start + n), in its type.  A pure
 * function of seed, name and index, so any rank can compute any range.  False: no init string. */
bool param_memory_init_as_is(const pen_tensor *t, uint64_t start, size_t n, void *to);

#endif
