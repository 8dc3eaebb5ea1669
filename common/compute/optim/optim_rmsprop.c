/* optim_rmsprop.c - a rate per parameter by a moving average of its squared gradients. */
#include "common/compute/optim/optim_rule.h"

static const config_row rows[] = {
    OPTIM_LR("0.01"),
    OPTIM_F64(
        alpha, "0.99", 0, OPTIM_BELOW_ONE,
        "Share of the average of squares kept per step: higher is steadier and reacts later."),
    OPTIM_EPS("1e-8"),
    OPTIM_F64(momentum, "0", 0, 1, "Share of the last step kept: higher is faster and overshoots."),
    OPTIM_BOOL(
        centered, "no",
        "Whether the mean gradient is taken out, so that steps are divided by the deviation."),
    OPTIM_L2,
    OPTIM_END,
};

static simd_update rmsprop_scalars(const optim_hyper *hyper, const optim_span *span)
{
    simd_update u = optim_begin(span, SIMD_RMSPROP);
    optim_average(&u, 0, hyper->alpha);
    u.eps      = (float)hyper->eps;
    u.momentum = (float)hyper->momentum;
    u.centered = hyper->centered;
    u.l2       = (float)optim_weight_decay(hyper, span);
    return u;
}

const optim_ops optim_rmsprop = {
    .name       = "rmsprop",
    .doc        = "Divides each step by the root of a moving average of squared gradients.",
    .source     = "Hinton's lecture 6; Graves, arXiv:1308.0850, eq. 38-45 (centered); "
                  "torch.optim.RMSprop, with a variance below 0 taken as 0",
    .slot_count = 3,
    .slot_names = {"square_avg", "momentum_buffer", "grad_avg"},
    .hyper_rows = rows,
    .scalars    = rmsprop_scalars,
};
