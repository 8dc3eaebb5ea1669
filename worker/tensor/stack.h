/* stack.h - PEN_STACKED: layers that lie in one tensor, registered as their slices.
 *
 * DESIGN.  Each slice is a tensor of the model: it has a name and a unit of its own, is sent, used and placed by itself,
 * and is saved under its name.  The program holds one more pen_tensor, the stack, which has only its slices; functions
 * that take a tensor ask stack_slices() what is meant.
 *   Order.  A model registered layer by layer has the tensors of layer 0, then those of layer 1.  So at pen_commit() the
 * slices of neighbouring stacks of one height take turns: the same order, buckets, priorities and bits.
 */
#ifndef WORKER_STACK_H
#define WORKER_STACK_H

#include "worker/tensor/model.h"

/* Registers the slices of a tensor with PEN_STACKED. */
pen_status stack_add(model *m, pen_ctx *ctx, const pen_tensor_desc *d, pen_tensor **stack,
                     pen_error *why);

/* What (tensor, slice) means: [n] tensors, or with `is_whole` all slices of a stack. */
typedef struct {
    pen_tensor *const *tensor;
    uint32_t n;
    bool is_whole;
} stack_part;

/* *t is BORROWED by *part.  INVALID_ARGUMENT: there is no such slice. */
pen_status stack_slices(pen_tensor *const *t, int64_t slice, const char *call, stack_part *part,
                        pen_error *why);

/* Before the model is frozen: the order of training. */
pen_status stack_arrange(model *m, pen_error *why);

#endif
