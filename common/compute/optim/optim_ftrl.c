/* optim_ftrl.c - follow the regularised leader: sparse weights from sparse gradients. */
#include "common/compute/optim/optim_rule.h"

static const config_row rows[] = {
    OPTIM_LR("1e-3"),
    OPTIM_F64(lr_power, "-0.5", -1, 0,
              "Power of the sum of squares in the rate: lower makes rates fall faster, 0 is one "
              "rate for all."),
    OPTIM_ACCUMULATOR("0.1"),
    OPTIM_F64(l1, "0", 0, 1e6, "Strength of the pull to exactly 0: higher gives fewer weights."),
    OPTIM_F64(l2, "0", 0, 1e6, "Strength of the pull towards 0: higher holds weights smaller."),
    OPTIM_END,
};

static simd_update ftrl_scalars(const optim_hyper *hyper, const optim_span *span)
{
    simd_update u = optim_begin(span, SIMD_FTRL);
    u.l1          = span->no_decay ? 0.0f : (float)hyper->l1;
    u.quadratic   = span->no_decay ? 0.0f : (float)(2.0 * hyper->l2);
    u.power       = (float)-hyper->lr_power;
    return u;
}

const optim_ops optim_ftrl = {
    .name   = "ftrl",
    .doc    = "Follows the proximally regularised leader: weights that do not pay stay exactly 0, "
              "and start values of parameters count little after the first step.",
    .source = "McMahan et al., Ad Click Prediction, KDD 2013, Alg. 1, with lr_power as in "
              "TensorFlow's ApplyFtrl",
    .slot_count = 2,
    .slot_names = {"accumulator", "linear"},
    .hyper_rows = rows,
    .slot_init  = optim_fill_accumulator,
    .scalars    = ftrl_scalars,
};
