/* mirror.h - training tensors in the memory of a device: each has a twin in host memory, where engines work.
 *
 * DESIGN.  No engine, wire or rule knows of devices: of such a tensor t->param and t->grad are the host's sides of its
 * twins (twin.h), and what the program and the device have is in t->mirror.
 *   Gradients.  pen_ready() enqueues a copy after all that the program's stream was told so far, and returns.  The thread
 *   "pen-copy" waits for the copies one after the other and hands each gradient to the engine, in the order of
 *   pen_ready(), while the device computes the next ones.  pen_step_end() and pen_step_micro() begin by
 *   waiting until all are handed over.
 *   Micro-batches.  Where nothing travels before the last one, gradients are added up on the device, with the
 *   bits of grad_sum.h, and only their sum is copied.  (Not of tensors with two names: those are
 *   summed on the host, in each micro-batch.)
 *   Values.  They are old on the device when a step has ended.  pen_step_end() copies them up and waits; with
 *   step.lazy the next pen_use() enqueues the copies, those of its own unit first, and makes the program's
 *   stream wait for them and not the host.
 *   The program's stream is that of the newest pen_use() or pen_release(); until then the default stream.
 *   Run-ahead.  A host enqueues far faster than a device computes.  Where memory comes and goes (zero2, zero3) pen_use()
 *   waits until the unit before the last one released has been computed, or all units would be there at once.
 * Held memory (held.h) lies on the device with the setting device=cuda; memory of the program wherever it is.
 * Threads: any.  No mirror (NULL) where nothing lies on a device: then every function here returns at once.
 */
#ifndef WORKER_MIRROR_H
#define WORKER_MIRROR_H

#include "worker/tensor/model.h"
#include "worker/tensor/twin.h"

typedef struct mirror mirror;

struct mirror_tensor { /* of a tensor with something on a device */
    twin *values, *grad;
    float *sum;     /* on the device: of this step's earlier micro-batches */
    void *narrowed; /* on the device: the sum in a gradient's type of 16 bits */
};

/* ---- life ------------------------------------------------------------------------------------- */
/* By the setting `device`: which one memory that the SDK holds lies on.  UNSUPPORTED says what is missing. */
pen_status mirror_open(pen_ctx *ctx, pen_error *why);

/* Hands over what pen_ready() was said of: grad is in host memory, or failure says why it never came.  In
 * "pen-copy", without a lock. */
typedef void (*mirror_deliver_fn)(pen_ctx *ctx, pen_tensor *t, const void *grad,
                                  const pen_error *failure);

/* pen_commit(), before the engine's part: values of the program's memory are copied down, and the thread begins.
 * mirror_changed() follows it. */
pen_status mirror_commit(pen_ctx *ctx, mirror_deliver_fn deliver, pen_error *why);

void mirror_stop(pen_ctx *ctx);    /* ends the thread; before the engine is closed */
void mirror_destroy(pen_ctx *ctx); /* after the model */

/* The device of a context, for pen_info; -1: none. */
int mirror_device(const pen_ctx *ctx);

/* ---- memory ------------------------------------------------------------------------------------ */
/* t->param or t->grad is where `data` says, of a device or of the host.  INVALID_ARGUMENT: a second device. */
pen_status mirror_place(pen_tensor *t, pen_what what, void *data, pen_error *why);
void mirror_forget(pen_tensor *t); /* at the end, after what is held was given back */

/* Whether held memory lies on a device; then held.c takes and gives back twins. */
bool mirror_holds(const pen_ctx *ctx);
twin *mirror_take(pen_tensor *t, size_t bytes, pen_error *why);
void mirror_put(pen_tensor *t, twin *w);
pen_status mirror_zero(pen_tensor *t, twin *w,
                       pen_error *why); /* as the program's stream will see it */

/* What the program sees. */
static inline void *mirror_param_of(const pen_tensor *t)
{
    return t->mirror != NULL && t->mirror->values != NULL ? t->mirror->values->device : t->param;
}
static inline void *mirror_grad_of(const pen_tensor *t)
{
    return t->mirror != NULL && t->mirror->grad != NULL ? t->mirror->grad->device : t->grad;
}

/* ---- the step, with its lock held where t is a tensor that becomes ready ------------------------- */
static inline bool mirror_has_grad(const pen_tensor *t)
{
    return t->mirror != NULL && t->mirror->grad != NULL;
}

/* Adds the gradient to the sum on the device. */
pen_status mirror_accumulate(pen_tensor *t, pen_error *why);

/* The gradient (with_grad), with the sum of earlier micro-batches, is on its way to deliver(). */
pen_status mirror_copy(pen_tensor *t, bool with_grad, pen_error *why);

/* Until everything was handed over.  Without the step's lock.  Each copy has the deadline of the setting deadline_ms. */
void mirror_drain(pen_ctx *ctx);

/* ---- values --------------------------------------------------------------------------------------- */
/* A unit is used: its values are seen by what is enqueued on `stream` from here on. */
pen_status mirror_use(pen_ctx *ctx, const pen_unit *handle, void *stream, pen_error *why);
pen_status mirror_release(pen_ctx *ctx, const pen_unit *handle, void *stream, pen_error *why);

/* A step has ended: the host has newer values of what is trained.  waits: the device has them when this returns. */
pen_status mirror_stepped(pen_ctx *ctx, bool waits, pen_error *why);
/* The host has newer values of all tensors, or of one: they are on the device when this returns. */
pen_status mirror_changed(pen_ctx *ctx, pen_error *why);
pen_status mirror_changed_one(pen_tensor *t, pen_error *why);

/* An explicit push or pull: host memory for `data` of a device, with what is there if it is read; NULL and why->status PEN_OK:
 * it is host memory already.  mirror_unlend() writes back what is new, and waits. */
twin *mirror_lend(pen_tensor *t, void *data, size_t bytes, bool is_read, void *stream,
                  pen_error *why);
pen_status mirror_unlend(pen_tensor *t, twin *lent, bool is_written, pen_error *why);

/* The gradient, as the device has it, in t->grad; waits. */
pen_status mirror_fetch_grad(pen_tensor *t, void *stream, pen_error *why);

#endif
