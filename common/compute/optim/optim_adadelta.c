/* optim_adadelta.c - steps in the unit of the parameter: past steps over past gradients. */
#include "common/compute/optim/optim_rule.h"

static const config_row rows[] = {
    OPTIM_LR("1"),
    OPTIM_F64(rho, "0.9", 0, OPTIM_BELOW_ONE,
              "Share of both averages kept per step: higher is steadier and reacts later."),
    OPTIM_EPS("1e-6"),
    OPTIM_L2,
    OPTIM_END,
};

static simd_update adadelta_scalars(const optim_hyper *hyper, const optim_span *span)
{
    simd_update u = optim_begin(span, SIMD_ADADELTA);
    optim_average(&u, 0, hyper->rho);
    u.eps = (float)hyper->eps;
    u.l2  = (float)optim_weight_decay(hyper, span);
    return u;
}

const optim_ops optim_adadelta = {
    .name       = "adadelta",
    .doc        = "Scales each step by the root of past squared steps over past squared gradients.",
    .source     = "Zeiler, arXiv:1212.5701, Alg. 1; torch.optim.Adadelta",
    .slot_count = 2,
    .slot_names = {"square_avg", "acc_delta"},
    .hyper_rows = rows,
    .scalars    = adadelta_scalars,
};
