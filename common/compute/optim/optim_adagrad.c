/* optim_adagrad.c - a rate per parameter that only falls, by the sum of its squared gradients. */
#include "common/compute/optim/optim_rule.h"

#include <assert.h>

static const config_row rows[] = {
    OPTIM_LR("0.01"),
    OPTIM_F64(lr_decay, "0", 0, 1e6,
              "Rate is divided by 1 + lr_decay times the steps done: higher slows down sooner."),
    OPTIM_ACCUMULATOR("0"),
    OPTIM_EPS("1e-10"),
    OPTIM_L2,
    OPTIM_END,
};

static simd_update adagrad_scalars(const optim_hyper *hyper, const optim_span *span)
{
    assert(span->step >= 1);
    simd_update u = optim_begin(span, SIMD_ADAGRAD);
    u.rate        = (float)(span->lr / (1.0 + (double)(span->step - 1) * hyper->lr_decay));
    u.eps         = (float)hyper->eps;
    u.l2          = (float)optim_weight_decay(hyper, span);
    return u;
}

const optim_ops optim_adagrad = {
    .name       = "adagrad",
    .doc        = "Divides each step by the root of the sum of all squared gradients.",
    .source     = "Duchi, Hazan and Singer, JMLR 12 (2011); torch.optim.Adagrad",
    .slot_count = 1,
    .slot_names = {"sum"},
    .hyper_rows = rows,
    .slot_init  = optim_fill_accumulator,
    .scalars    = adagrad_scalars,
};
