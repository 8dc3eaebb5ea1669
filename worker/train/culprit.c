/* culprit.c - each rank checks its own gradient; the lowest position that failed is the result. */
#include "worker/train/culprit.h"

#include "common/compute/simd/simd.h"
#include "proto/plan.h"

enum { TILE = 1024 };

static bool own_is_finite(const group_calls *t, const pen_tensor *x, uint64_t start, uint64_t count,
                          double weight)
{
    float scratch[TILE];
    const size_t width = plan_dtype_bytes(x->desc.grad_dtype);
    const pen_dtype as = model_push_dtype(&t->ctx->model, x);
    bool is_finite     = true;
    for (uint64_t i = start; x->pushed != NULL && i < start + count; i += TILE) {
        const size_t n = start + count - i < TILE ? start + count - i : TILE;
        is_finite &= simd_weigh(scratch, (const char *)x->pushed + i * width, x->desc.grad_dtype,
                                as, weight, n);
    }
    return is_finite;
}

pen_status culprit_find(group_calls *t, const pen_tensor *x, uint64_t start, uint64_t count,
                        double weight, int32_t *rank, pen_error *why)
{
    int32_t lowest       = 0;
    const bool is_finite = own_is_finite(t, x, start, count, weight);
    const int32_t own    = is_finite ? t->group->size : t->group->rank;
    if (group_calls_lowest(t, own, &lowest, "whose gradient is not finite", why) != PEN_OK)
        return why->status;
    if (lowest < t->group->size) *rank = lowest;
    return PEN_OK;
}
