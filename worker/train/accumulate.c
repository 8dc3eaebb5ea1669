/* accumulate.c - the sum over micro-batches. */
#include "worker/train/accumulate.h"

#include "common/simd/simd.h"
#include "common/why.h"
#include "worker/context.h"

#include <stdlib.h>

static pen_status no_memory(const pen_tensor *t, pen_error *why)
{
    return why_set(why, PEN_NO_MEMORY, "no memory to add up the gradients of '%s'", t->name);
}

pen_status accumulate_add(pen_tensor *t, const void *grad, pen_error *why)
{
    if (t->accumulated == NULL) {
        t->accumulated = malloc(t->elements * sizeof(float));
        if (t->accumulated == NULL) return no_memory(t, why);
        stat_hold(&t->ctx->stats, STAT_GRAD_BYTES, (int64_t)(t->elements * sizeof(float)));
    }
    if (t->slot.sums & GRAD_SUM_ON_HOST)
        simd()->fold_add(t->accumulated, t->accumulated, grad, t->desc.grad_dtype, 1, t->elements);
    else
        simd()->decode(t->accumulated, grad, t->desc.grad_dtype, t->elements);
    t->slot.sums |= GRAD_SUM_ON_HOST;
    return PEN_OK;
}

pen_status accumulate_take(pen_tensor *t, const void *grad, const void **sum, pen_error *why)
{
    if (grad != NULL && accumulate_add(t, grad, why) != PEN_OK) return why->status;
    *sum = t->accumulated;
    if (t->desc.grad_dtype == PEN_F32) return PEN_OK;
    if (t->rounded == NULL) {
        t->rounded = malloc(t->grad_bytes);
        if (t->rounded == NULL) return no_memory(t, why);
        stat_hold(&t->ctx->stats, STAT_GRAD_BYTES, (int64_t)t->grad_bytes);
    }
    simd()->encode(t->rounded, t->accumulated, t->desc.grad_dtype, t->elements);
    *sum = t->rounded;
    return PEN_OK;
}
