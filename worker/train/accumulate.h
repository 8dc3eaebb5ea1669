/* accumulate.h - gradients of several micro-batches, added up on this worker before they travel.
 *
 * In float32, in the order of the micro-batches, and rounded to the gradient's own type once.  The
 * caller holds the step's lock.
 */
#ifndef WORKER_TRAIN_ACCUMULATE_H
#define WORKER_TRAIN_ACCUMULATE_H

#include "worker/model.h"

/* One that is not the last: grad may be overwritten when this returns. */
pen_status accumulate_add(pen_tensor *t, const void *grad, pen_error *why);

/* The last, where the step has a sum: *sum is what travels, of the gradient's type, valid until the next step.  grad
 * NULL: there was none in the last micro-batch. */
pen_status accumulate_take(pen_tensor *t, const void *grad, const void **sum, pen_error *why);

#endif
