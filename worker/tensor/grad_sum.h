/* grad_sum.h - sums of gradients on this worker: over the names of a tensor, and over the micro-batches of a step.
 *
 * DESIGN.  Names.  A tensor may have several: the first is the tensor, the others
 * (pen_tensor_desc.tied_to) are in model.alias[] and local to this rank.  Each has its own gradient
 * and its own pen_ready().  The last one triggers the sum, in registration order.  It has the same
 * bits in every mode, because strategies see only the sum.
 *   Micro-batches.  All but the last are added to a sum, in their order, and nothing is sent.
 *   Both are on the host, or, if the strategy works on a device, there: enqueued on device_copies_stream().
 * Both sums are float32, rounded once to the gradient's own type.  Under the step's lock.
 */
#ifndef WORKER_GRAD_SUM_H
#define WORKER_GRAD_SUM_H

#include "worker/tensor/model.h"

/* The tensor itself, whichever of its names t is. */
static inline pen_tensor *tied_base(pen_tensor *t)
{
    return t->tied_to != NULL ? t->tied_to : t;
}

/* pen_ready() was called for all its names that have a gradient. */
bool tied_is_complete(const pen_tensor *base);

/* The sum of all offered gradients, in grad_dtype; NULL: none was offered, zeros.  *sum is the only
 * gradient, or memory of base that is valid until the step has ended. */
pen_status grad_sum_names(pen_tensor *base, const void **sum, pen_error *why);

/* For all micro-batches but the last.  grad may be overwritten afterwards. */
pen_status grad_sum_add(pen_tensor *t, const void *grad, pen_error *why);

/* For the last micro-batch of a step with a sum: *sum is sent, in the gradient's type, and is valid until the next
 * step.  grad NULL: the last micro-batch has none. */
pen_status grad_sum_take(pen_tensor *t, const void *grad, const void **sum, pen_error *why);

void grad_sum_free(pen_tensor *t); /* at the end */

#endif
