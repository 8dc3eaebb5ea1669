/* grad_sum.c - adds up a tensor's gradients before the sum is sent. */
#include "worker/tensor/grad_sum.h"

#include "common/base/why.h"
#include "common/compute/simd/simd.h"
#include "worker/context.h"
#include "worker/tensor/param_memory.h"

#include <stdlib.h>
#include <string.h>

static pen_status make(const pen_tensor *t, void **sum, size_t bytes, pen_error *why)
{
    if (*sum == NULL) *sum = malloc(bytes);
    if (*sum != NULL) return PEN_OK;
    return why_set(why, PEN_NO_MEMORY, "no memory to add up the gradients of '%s'", t->name);
}

/* Counted in mem.grad.bytes. */
static pen_status make_counted(const pen_tensor *t, void **sum, size_t bytes, pen_error *why)
{
    if (*sum != NULL) return PEN_OK;
    const pen_status status = make(t, sum, bytes, why);
    if (status == PEN_OK) stat_hold(&t->ctx->stats, STAT_GRAD_BYTES, (int64_t)bytes);
    return status;
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

/* Writes the rounded sum over the first half of `sum`, piece by piece, so that nothing overlaps. */
static void round_in_place(float *sum, pen_dtype as, size_t n)
{
    enum { PIECE = 4096 };
    uint16_t piece[PIECE];
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t take = n - i < PIECE ? n - i : PIECE;
        simd()->encode(piece, sum + i, as, take);
        memcpy((uint16_t *)sum + i, piece, take * sizeof *piece);
    }
}

/* Adds into a gradient of the SDK, but never into one of the program. */
static pen_status add_names(pen_tensor *base, const pen_tensor *first, const void **sum,
                            pen_error *why)
{
    const pen_dtype as            = base->desc.grad_dtype;
    const size_t n                = base->elements;
    const bool is_in_param_memory = first == base && base->grad == NULL && as == PEN_F32;
    float *to                     = is_in_param_memory ? param_grad_seen(base) : NULL;
    if (to == NULL) {
        if (make(base, &base->tied_sum, base->elements * sizeof(float), why) != PEN_OK)
            return why->status;
        to = base->tied_sum;
        simd()->decode(to, first->slot.bytes, as, n);
    }
    for (const pen_tensor *t = next_offer(first->next_alias); t != NULL;
         t                   = next_offer(t->next_alias))
        simd()->fold_add(to, to, t->slot.bytes, as, 1, n);
    if (as != PEN_F32) round_in_place(to, as, n);
    *sum = to;
    return PEN_OK;
}

pen_status grad_sum_names(pen_tensor *base, const void **sum, pen_error *why)
{
    const pen_tensor *first = next_offer(base);
    *sum                    = first != NULL ? first->slot.bytes : NULL;
    if (first == NULL || (first == base && next_offer(base->next_alias) == NULL)) return PEN_OK;
    return add_names(base, first, sum, why);
}

/* ---- of micro-batches ---------------------------------------------------------------------------- */
pen_status grad_sum_add(pen_tensor *t, const void *grad, pen_error *why)
{
    if (make_counted(t, &t->accumulated, t->elements * sizeof(float), why) != PEN_OK)
        return why->status;
    float *sum = t->accumulated;
    if (t->slot.sums & GRAD_SUM_ON_HOST)
        simd()->fold_add(sum, sum, grad, t->desc.grad_dtype, 1, t->elements);
    else
        simd()->decode(sum, grad, t->desc.grad_dtype, t->elements);
    t->slot.sums |= GRAD_SUM_ON_HOST;
    return PEN_OK;
}

pen_status grad_sum_take(pen_tensor *t, const void *grad, const void **sum, pen_error *why)
{
    if (grad != NULL && grad_sum_add(t, grad, why) != PEN_OK) return why->status;
    *sum = t->accumulated;
    if (t->desc.grad_dtype == PEN_F32) return PEN_OK;
    if (make_counted(t, &t->rounded, t->grad_bytes, why) != PEN_OK) return why->status;
    simd()->encode(t->rounded, t->accumulated, t->desc.grad_dtype, t->elements);
    *sum = t->rounded;
    return PEN_OK;
}
