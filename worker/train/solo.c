/* solo.c - see solo.h. */
#include "worker/train/solo.h"

#include "common/base/why.h"
#include "worker/context.h"
#include "worker/train/update_state.h"

#include <stdlib.h>

struct solo {
    const model *m;
    float *sum[]; /* [n_tensors] NULL: the gradient was used in place */
};

solo *solo_create(const model *m)
{
    solo *s = calloc(1, sizeof *s + m->n_tensors * sizeof *s->sum);
    if (s != NULL) s->m = m;
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
        free(s->sum[i]);
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
        *sum = malloc(t->elements * sizeof(float));
        if (*sum == NULL) {
            why_set(why, PEN_NO_MEMORY, "no memory for the gradient of '%s'", t->name);
            return NULL;
        }
        count_bytes(t, 1);
    }
    update_state_weigh(*sum, grad, t->desc.grad_dtype, as, weight, t->elements);
    return *sum;
}
