/* tied.c - the sum of the gradients of one tensor's names. */
#include "worker/tied.h"

#include "common/simd/simd.h"
#include "common/why.h"
#include "worker/held.h"

#include <stdlib.h>
#include <string.h>

pen_tensor *tied_base(pen_tensor *t)
{
    return t->tied_to != NULL ? t->tied_to : t;
}

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

/* The rounded sum takes the place of the first half of it: piece by piece, for none may overlap. */
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

static pen_status make_sum(pen_tensor *base, pen_error *why)
{
    if (base->tied_sum == NULL) base->tied_sum = malloc(base->elements * sizeof(float));
    if (base->tied_sum != NULL) return PEN_OK;
    return why_set(why, PEN_NO_MEMORY, "no memory to add up the gradients of '%s'", base->name);
}

/* A gradient that the SDK holds takes the others; one of the program's is never written to. */
static pen_status add_up(pen_tensor *base, const pen_tensor *first, const void **sum,
                         pen_error *why)
{
    const pen_dtype as    = base->desc.grad_dtype;
    const size_t n        = base->elements;
    const bool is_in_held = first == base && base->grad == NULL && as == PEN_F32;
    float *to             = is_in_held ? held_grad_seen(base) : NULL;
    if (to == NULL) {
        if (make_sum(base, why) != PEN_OK) return why->status;
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

pen_status tied_take(pen_tensor *base, const void **sum, pen_error *why)
{
    const pen_tensor *first = next_offer(base);
    *sum                    = first != NULL ? first->slot.bytes : NULL;
    if (first == NULL || (first == base && next_offer(base->next_alias) == NULL)) return PEN_OK;
    return add_up(base, first, sum, why);
}
