/* grad_sum.c - adds up a tensor's gradients before the sum is sent. */
#include "worker/tensor/grad_sum.h"

#include "common/base/why.h"
#include "worker/context.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/tensor/param_memory.h"

#include <stdlib.h>

/* ---- where the strategy works ----------------------------------------------------------------- */
static const device_ops *ops_of(const pen_tensor *t)
{
    return t->ctx->memory.work.ops;
}

static pen_status make_sum(const pen_tensor *t, void **sum, size_t bytes, pen_error *why)
{
    if (*sum == NULL) *sum = space_alloc(&t->ctx->memory.work, bytes, false, why);
    if (*sum != NULL) return PEN_OK;
    return why_set(why, PEN_NO_MEMORY, "no memory to add up the gradients of '%s'", t->name);
}

static void drop(const pen_tensor *t, void **sum)
{
    space_free(&t->ctx->memory.work, *sum, false);
    *sum = NULL;
}

/* Counted in mem.grad.bytes. */
static pen_status make_counted(const pen_tensor *t, void **sum, size_t bytes, pen_error *why)
{
    if (*sum != NULL) return PEN_OK;
    const pen_status status = make_sum(t, sum, bytes, why);
    if (status == PEN_OK) stat_hold(&t->ctx->stats, STAT_GRAD_BYTES, (int64_t)bytes);
    return status;
}

static pen_status add(const pen_tensor *t, float *sum, const void *grad, bool is_first,
                      pen_error *why)
{
    return ops_of(t)->accumulate(sum, grad, t->desc.grad_dtype, t->elements, is_first,
                                 device_copies_stream(t), why);
}

/* *sum: in the gradient's own type. */
static pen_status round_to(pen_tensor *t, float *from, void **rounded, const void **sum,
                           pen_error *why)
{
    *sum = from;
    if (t->desc.grad_dtype == PEN_F32) return PEN_OK;
    *sum = *rounded;
    return ops_of(t)->narrow(*rounded, from, t->desc.grad_dtype, t->elements,
                             device_copies_stream(t), why);
}

/* ---- of names ------------------------------------------------------------------------------------ */
bool tied_is_complete(const pen_tensor *base)
{
    for (const pen_tensor *t = base; t != NULL; t = t->next_alias)
        if (t->trained && grad_slot_state(&t->slot) < GRAD_OFFERED) return false;
    return true;
}

static const pen_tensor *next_offer(const pen_tensor *t)
{
    while (t != NULL && t->slot.bytes == NULL) t = t->next_alias;
    return t;
}

pen_status grad_sum_names(pen_tensor *base, const void **sum, pen_error *why)
{
    const pen_tensor *first = next_offer(base);
    *sum                    = first != NULL ? first->slot.bytes : NULL;
    if (first == NULL || (first == base && next_offer(base->next_alias) == NULL)) return PEN_OK;
    /* Adds into a gradient of the SDK on the host, but never into one of the program. */
    const bool is_float           = base->desc.grad_dtype == PEN_F32;
    const bool is_in_param_memory = first == base && base->grad == NULL && is_float;
    float *to                     = is_in_param_memory && !space_is_device(&base->ctx->memory.work)
                                        ? param_grad_seen(base)
                                        : NULL;
    pen_status status             = PEN_OK;
    if (!is_float) status = make_sum(base, &base->tied_rounded, base->grad_bytes, why);
    if (status == PEN_OK && to == NULL) {
        status = make_sum(base, &base->tied_sum, base->elements * sizeof(float), why);
        to     = base->tied_sum;
        if (status == PEN_OK) status = add(base, to, first->slot.bytes, true, why);
    }
    for (const pen_tensor *t = next_offer(first->next_alias); t != NULL && status == PEN_OK;
         t                   = next_offer(t->next_alias))
        status = add(base, to, t->slot.bytes, false, why);
    return status == PEN_OK ? round_to(base, to, &base->tied_rounded, sum, why) : status;
}

/* ---- of micro-batches ---------------------------------------------------------------------------- */
pen_status grad_sum_add(pen_tensor *t, const void *grad, pen_error *why)
{
    if (make_counted(t, &t->accumulated, t->elements * sizeof(float), why) != PEN_OK)
        return why->status;
    const bool is_first     = (t->slot.sums & GRAD_SUM_KEPT) == 0;
    const pen_status status = add(t, t->accumulated, grad, is_first, why);
    if (status == PEN_OK) t->slot.sums |= GRAD_SUM_KEPT;
    return status;
}

pen_status grad_sum_take(pen_tensor *t, const void *grad, const void **sum, pen_error *why)
{
    if (grad != NULL && grad_sum_add(t, grad, why) != PEN_OK) return why->status;
    if (t->desc.grad_dtype != PEN_F32 && make_counted(t, &t->rounded, t->grad_bytes, why) != PEN_OK)
        return why->status;
    return round_to(t, t->accumulated, &t->rounded, sum, why);
}

void grad_sum_free(pen_tensor *t)
{
    drop(t, &t->tied_sum);
    drop(t, &t->tied_rounded);
    drop(t, &t->accumulated);
    drop(t, &t->rounded);
}
