/* grad_sum.h - gradients that are added up on this worker before they travel: those of a tensor's names, and those of a
 * step's micro-batches.
 *
 * DESIGN.  Names.  A tensor may have several: the first is the tensor, the others (pen_tensor_desc.tied_to) are in
 * model.alias[] and are this rank's own affair.  Each has a gradient of its own, which is made ready by itself.  With the
 * last of them the sum is made, in registration order: it is then the tensor's gradient, and the same bits in every mode,
 * because no strategy sees the parts.
 *   Micro-batches.  All but the last are added to a sum, in their order, and nothing travels.
 * Both in float32, rounded once to the gradient's own type.  Under the step's lock.
 */
#ifndef WORKER_GRAD_SUM_H
#define WORKER_GRAD_SUM_H

#include "worker/tensor/model.h"

/* The tensor itself, whichever of its names t is. */
static inline pen_tensor *tied_base(pen_tensor *t)
{
    return t->tied_to != NULL ? t->tied_to : t;
}

/* All its names with a gradient have said pen_ready(). */
bool tied_is_complete(const pen_tensor *base);

/* The sum of what was offered, in grad_dtype; NULL: nobody offered anything, zeros.  What is left in *sum is a gradient
 * where there is only that one, or memory of base until the step has ended. */
pen_status grad_sum_names(pen_tensor *base, const void **sum, pen_error *why);

/* A micro-batch that is not the last: grad may be overwritten when this returns. */
pen_status grad_sum_add(pen_tensor *t, const void *grad, pen_error *why);

/* The last, where the step has a sum: *sum is what travels, of the gradient's type, valid until the next step.  grad
 * NULL: there was none in the last micro-batch. */
pen_status grad_sum_take(pen_tensor *t, const void *grad, const void **sum, pen_error *why);

#endif
