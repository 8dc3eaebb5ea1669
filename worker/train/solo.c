/* solo.c - weighs a gradient into a buffer, or hands it on as it is. */
#include "worker/train/solo.h"

#include "common/base/why.h"
#include "common/compute/device/device_step.h"
#include "worker/context.h"

#include <stdlib.h>

struct solo {
    const model *m;
    memory_space space;
    uint32_t *bad;
    float *sum[]; /* [n_tensors] NULL: the gradient was used in place */
};

solo *solo_create(const model *m, const memory_space *p, uint32_t *bad)
{
    solo *s = calloc(1, sizeof *s + m->n_tensors * sizeof *s->sum);
    if (s == NULL) return NULL;
    s->m     = m;
    s->space = *p;
    s->bad   = bad;
    return s;
}

static void count_bytes(const pen_tensor *t, int sign)
{
    stat_hold(&t->ctx->stats, STAT_GRAD_BYTES, sign * (int64_t)(t->elements * sizeof(float)));
}

void solo_destroy(solo *s)
{
    if (s == NULL) return;
    for (uint32_t i = 0; i < s->m->n_tensors; i++) {
        if (s->sum[i] != NULL) count_bytes(s->m->tensor[i], -1);
        space_free(&s->space, s->sum[i], false);
    }
    free(s);
}

const float *solo_weigh(solo *s, const pen_tensor *t, const void *grad, double weight,
                        pen_error *why)
{
    const pen_dtype as = model_push_dtype(s->m, t);
    float **sum        = &s->sum[t->index];
    if (grad != NULL && as == PEN_F32 && weight == 1) return grad;
    if (*sum == NULL) {
        *sum = space_alloc(&s->space, t->elements * sizeof(float), false, why);
        if (*sum == NULL) {
            why_set(why, PEN_NO_MEMORY, "no memory for the gradient of '%s'", t->name);
            return NULL;
        }
        count_bytes(t, 1);
    }
    const device_weigh w = {.to         = *sum,
                            .grad       = grad,
                            .grad_dtype = t->desc.grad_dtype,
                            .as         = as,
                            .weight     = weight,
                            .n          = t->elements,
                            .bad        = s->bad};
    return s->space.ops->weigh(&w, s->space.stream, why) == PEN_OK ? *sum : NULL;
}
