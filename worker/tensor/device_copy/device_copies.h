/* device_copies.h - tensors in device memory, each paired with the host memory that strategies use.
 *
 * DESIGN.  Strategies and the wire know nothing of devices: t->param and t->grad are the host sides of pinned pairs
 * (pinned_pair.h), and t->device_copies has the device sides.
 *   Gradients.  pen_ready() enqueues a copy behind the work on the program's stream and returns.  The thread "pen-copy"
 * waits for the copies and hands each gradient to the strategy, in the order of pen_ready(), while the device computes
 * the next ones.  pen_step_end() and pen_step_micro() first wait until all are handed over.
 *   Micro-batches.  If only the last one is sent, the device adds gradients up, with the bits of grad_sum.h, and only
 * the sum is copied.  (Tensors with two names are summed on the host, in each micro-batch.)
 *   Values.  The device has old values when a step has ended.  pen_step_end() copies the new ones and waits.  With
 * step.lazy the next pen_use() enqueues the copies, its own unit first, and the program's stream waits for them instead
 * of the host.  The program's stream is that of the newest pen_use() or pen_release(); until then the default stream.
 *   Run-ahead.  A host enqueues much faster than a device computes.  With zero2 and zero3 pen_use() waits until the unit
 * before the last released one is computed; otherwise all units would be in memory at once.
 *   Work on the device.  A strategy that sums there (space_is_device(&ctx->memory.work)) gets gradients as device addresses from
 * pen_ready(), at once: nothing is copied, unless the strategy has pairs of its own.  Its stream waits for the program's
 * streams, and these for its newest values.  The host side of a tensor's values is then old until somebody asks for it.
 * Memory that comes and goes is used again in the order of the streams, so a host that runs ahead needs no more of it.
 * Memory of the SDK (param_memory.h) is on the device with device=cuda.
 * Threads: any.  Without device memory ctx->memory.device_copies is NULL, and every function here returns at once.
 */
#ifndef WORKER_DEVICE_COPIES_H
#define WORKER_DEVICE_COPIES_H

#include "worker/tensor/device_copy/pinned_pair.h"
#include "worker/tensor/model.h"

typedef struct device_copies device_copies;

struct device_copies_tensor { /* of a tensor with device memory */
    pinned_pair *values, *grad;
    float *sum;           /* on the device: of this step's earlier micro-batches */
    void *narrowed;       /* on the device: the sum in a gradient's type of 16 bits */
    device_stream stream; /* of its newest gradient, if has_stream; else the program's newest */
    bool has_stream;
};

/* ---- life ------------------------------------------------------------------------------------- */
/* Chooses the device for memory of the SDK, by the setting `device`.  UNSUPPORTED names what is missing. */
pen_status device_copies_open(pen_ctx *ctx, pen_error *why);

/* Hands over a gradient of pen_ready(): grad is in host memory, or failure is set.  In "pen-copy", without a lock. */
typedef void (*device_copies_deliver_fn)(pen_ctx *ctx, pen_tensor *t, const void *grad,
                                         const pen_error *failure);

/* For pen_commit(), before the strategy opens: copies the program's values to the host and starts the thread.
 * device_copies_changed() follows. */
pen_status device_copies_commit(pen_ctx *ctx, device_copies_deliver_fn deliver, pen_error *why);

void device_copies_stop(pen_ctx *ctx);    /* ends the thread; before the link is closed */
void device_copies_destroy(pen_ctx *ctx); /* after the model */

/* The device of a context, for pen_info; -1: none. */
int device_copies_device(const pen_ctx *ctx);

/* ---- memory ------------------------------------------------------------------------------------ */
/* Sets t->param or t->grad to `data`, in device or host memory. INVALID_ARGUMENT: a second device. */
pen_status device_copies_place(pen_tensor *t, pen_what what, void *data, pen_error *why);
void device_copies_forget(pen_tensor *t); /* at the end, after param_memory_free() */

/* Memory of the SDK is on a device: param_memory.c takes and returns pinned pairs. */
bool device_copies_holds(const pen_ctx *ctx);
pinned_pair *device_copies_take(pen_tensor *t, size_t bytes, pen_error *why);
void device_copies_put(pen_tensor *t, pinned_pair *w);
/* The same while work on t's newest gradient that is enqueued may use it: whoever takes it next follows that work. */
void device_copies_put_behind(pen_tensor *t, pinned_pair *w);
/* On the program's stream.  is_kept: w has the tensor's gradient, which work on its stream may still read. */
pen_status device_copies_zero(pen_tensor *t, pinned_pair *w, bool is_kept, pen_error *why);

/* Addresses that the program sees. */
static inline void *device_copies_param_of(const pen_tensor *t)
{
    return t->device_copies != NULL && t->device_copies->values != NULL
               ? t->device_copies->values->device
               : t->param;
}
static inline void *device_copies_grad_of(const pen_tensor *t)
{
    return t->device_copies != NULL && t->device_copies->grad != NULL
               ? t->device_copies->grad->device
               : t->grad;
}

/* ---- the step: functions of a tensor that becomes ready are called with its lock ----------------- */
/* Where a gradient is after pen_ready(). */
typedef enum {
    DEVICE_COPIES_HERE,  /* where the strategy works */
    DEVICE_COPIES_COMES, /* it is being copied to the host: deliver() follows */
    DEVICE_COPIES_ADDED  /* in the sum of the micro-batches, on its device */
} device_copies_way;

/* pen_ready(): brings a gradient, made by work enqueued on *stream (NULL: on the program's newest), to where the strategy
 * works.  goes: it is sent in this micro-batch.  *grad: its host side, or NULL; then its address there, if it is HERE.
 * UNSUPPORTED: the strategy works on a device, and the gradient is in host memory. */
pen_status device_copies_bring(pen_tensor *t, const device_stream *stream, bool goes,
                               const void **grad, device_copies_way *way, pen_error *why);

/* The stream of a tensor's newest gradient, of any of its names.  NULL on the host. */
device_stream device_copies_stream(const pen_tensor *t);

/* Starts copying the sum of earlier micro-batches, plus the gradient (with_grad); deliver() follows. */
pen_status device_copies_copy(pen_tensor *t, bool with_grad, pen_error *why);

/* Waits until everything is handed over.  Without the step's lock.  deadline_ms limits each copy. */
void device_copies_drain(pen_ctx *ctx);

/* ---- a strategy that works on the device -------------------------------------------------------- */
/* Its stream.  NULL: none, it works on the host. */
void device_copies_work_on(pen_ctx *ctx, device_stream work);

/* Work of the strategy from here on runs after the work enqueued on `stream`. */
pen_status device_copies_precede(pen_ctx *ctx, device_stream stream, pen_error *why);

/* Around the update: it begins when the program's work has read the old values; later uses see the new ones. */
pen_status device_copies_begin_update(pen_ctx *ctx, pen_error *why);
pen_status device_copies_updated(pen_ctx *ctx, pen_error *why);

/* Around work on `stream` that writes values which come and go: it follows the work that had their memory before; uses
 * follow it.  Without the step's lock. */
pen_status device_copies_begin_values(pen_tensor *t, device_stream stream, pen_error *why);
pen_status device_copies_made_values(pen_tensor *t, device_stream stream, pen_error *why);

/* Brings the host side of a tensor's values up to date, and waits. */
pen_status device_copies_fetch_values(pen_tensor *t, pen_error *why);

/* After the strategy has made new values of all tensors outside of a step. */
pen_status device_copies_fetch_all(pen_ctx *ctx, pen_error *why);

/* A wait for the device failed: *why names the first gradient that is not computed, if there is one. */
void device_copies_blame(pen_ctx *ctx, pen_error *why);

/* For space.h. */
const pinned_pair_set *device_copies_set(const pen_ctx *ctx);

/* The host's waits for the device end with a failure that fn returns: streams may wait for members that are gone.  Before
 * the first step. */
void device_copies_fail_by(pen_ctx *ctx, pinned_pairs_failure_fn fn, void *user);
pen_status device_copies_failure(pen_ctx *ctx, pen_error *why); /* fn's; PEN_OK: none, or no fn */

/* Pairs of the strategy's own.  device: its memory, BORROWED. */
pinned_pair *device_copies_pair(pen_ctx *ctx, void *device, size_t bytes, pen_error *why);
void device_copies_drop_pair(pen_ctx *ctx, pinned_pair *w); /* NULL is fine */

typedef void (*device_copies_done_fn)(void *user, const pen_error *failure); /* NULL: none */

/* Copies a part of t's sum, which work on the strategy's stream makes, from w->device to the host beside that stream.  done
 * follows once, in "pen-copy", unless this fails. */
pen_status device_copies_take_sum(pen_tensor *t, pinned_pair *w, device_copies_done_fn done,
                                  void *user, pen_error *why);
/* Values from the host to w->device, in parts: after the work on the strategy's stream before expect_values(), before the
 * work there after take_values().  give_part: any thread, one at a time; it only enqueues. */
pen_status device_copies_expect_values(pen_ctx *ctx, pinned_pair *w, pen_error *why);
pen_status device_copies_give_part(pen_ctx *ctx, pinned_pair *w, size_t from, size_t bytes,
                                   pen_error *why);
pen_status device_copies_take_values(pen_ctx *ctx, pinned_pair *w, pen_error *why);

/* ---- values --------------------------------------------------------------------------------------- */
/* A use of a unit: work enqueued on `stream` from here on sees its values. */
pen_status device_copies_use(pen_ctx *ctx, const pen_unit *handle, void *stream, pen_error *why);
pen_status device_copies_release(pen_ctx *ctx, const pen_unit *handle, void *stream,
                                 pen_error *why);

/* A step has ended: the host has new values.  waits: the device has them on return. */
pen_status device_copies_stepped(pen_ctx *ctx, bool waits, pen_error *why);
/* The host has new values of all tensors, or of one: the device has them on return. */
pen_status device_copies_changed(pen_ctx *ctx, pen_error *why);
pen_status device_copies_changed_one(pen_tensor *t, pen_error *why);

/* For an explicit push or pull: host memory for `data` on a device, with its contents if is_read.
 * NULL and why->status PEN_OK: `data` is host memory.  device_copies_unlend() writes back if
 * is_written, and waits. */
pinned_pair *device_copies_lend(pen_tensor *t, void *data, size_t bytes, bool is_read, void *stream,
                                pen_error *why);
pen_status device_copies_unlend(pen_tensor *t, pinned_pair *lent, bool is_written, pen_error *why);

/* Copies the gradient from the device to t->grad, and waits. */
pen_status device_copies_fetch_grad(pen_tensor *t, void *stream, pen_error *why);

#endif
