/* optim_lion.c - the sign of a momentum: every parameter moves by the same amount. */
#include "common/compute/optim/optim_rule.h"

static const config_row rows[] = {
    OPTIM_LR("1e-4"),
    OPTIM_F64(beta1, "0.9", 0, OPTIM_BELOW_ONE,
              "Weight of the momentum against the gradient in the sign: higher follows the "
              "gradient less."),
    OPTIM_F64(beta2, "0.99", 0, OPTIM_BELOW_ONE,
              "Share of the momentum kept per step: higher is smoother and reacts later."),
    OPTIM_DECAY("0"),
    OPTIM_END,
};

static simd_update lion_scalars(const optim_hyper *hyper, const optim_span *span)
{
    simd_update u = optim_begin(span, SIMD_LION);
    optim_average(&u, 0, hyper->beta1);
    optim_average(&u, 1, hyper->beta2);
    u.decay = (float)(span->lr * optim_weight_decay(hyper, span));
    return u;
}

const optim_ops optim_lion = {
    .name       = "lion",
    .doc        = "Moves every parameter by the rate, in the direction of its momentum's sign.",
    .source     = "Chen et al., Symbolic Discovery of Optimization Algorithms, arXiv:2302.06675, "
                  "Alg. 2",
    .slot_count = 1,
    .slot_names = {"exp_avg"},
    .hyper_rows = rows,
    .scalars    = lion_scalars,
};
