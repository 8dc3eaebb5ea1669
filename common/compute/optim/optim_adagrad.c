/* optim_adagrad.c - a rate for each parameter, by its squared gradients: adagrad and what came from it. */
#include "common/compute/optim/optim_rule.h"

#include <assert.h>
#include <math.h>

/* ---- adagrad --------------------------------------------------------------------------------- */
/* A rate per parameter that only falls, by the sum of its squared gradients. */

static const config_row adagrad_rows[] = {
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
    .hyper_rows = adagrad_rows,
    .slot_init  = optim_fill_accumulator,
    .scalars    = adagrad_scalars,
};

/* ---- rowwise adagrad ------------------------------------------------------------------------- */
/* Adagrad with one rate per row of a table: one number of state instead of one per value. */

static const config_row rowwise_rows[] = {
    OPTIM_LR("0.01"),
    OPTIM_ACCUMULATOR("0"),
    OPTIM_EPS("1e-8"),
    OPTIM_END,
};

static double mean_square(const optim_span *span)
{
    double sum = 0, block = 0;
    for (size_t at = 0; at < span->n; at += SIMD_BLOCK) {
        const size_t n = span->n - at < SIMD_BLOCK ? span->n - at : SIMD_BLOCK;
        (void)simd()->norm(span->grad + at, n, &block);
        sum += block;
    }
    return sum / (double)span->n * span->gscale * span->gscale;
}

static void fill_row(const optim_hyper *hyper, const optim_span *span)
{
    span->slot[0][0] = (float)hyper->initial_accumulator;
}

static void update_row(const optim_hyper *hyper, const optim_span *span)
{
    assert(span->step >= 1);
    span->slot[0][0] = (float)(span->slot[0][0] + mean_square(span));
    simd_update u    = optim_begin(span, SIMD_SGD);
    u.rate           = (float)(span->lr / (sqrt((double)span->slot[0][0]) + hyper->eps));
    simd()->update[SIMD_SGD](&u);
}

const optim_ops optim_rowwise_adagrad = {
    .name = "rowwise_adagrad",
    .doc  = "Divides each step of a row by the root of the sum of its mean squared gradients.",
    .source =
        "EXACT_ROWWISE_ADAGRAD of FBGEMM and TorchRec; Duchi, Hazan and Singer, JMLR 12 (2011)",
    .slot_count = 1,
    .slot_names = {"momentum1"},
    .hyper_rows = rowwise_rows,
    .slot_init  = fill_row,
    .update_row = update_row,
};

/* ---- adadelta -------------------------------------------------------------------------------- */
/* Steps in the unit of the parameter: past steps over past gradients. */

static const config_row adadelta_rows[] = {
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
    .hyper_rows = adadelta_rows,
    .scalars    = adadelta_scalars,
};

/* ---- rmsprop --------------------------------------------------------------------------------- */
/* A rate per parameter by a moving average of its squared gradients. */

static const config_row rmsprop_rows[] = {
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
    .hyper_rows = rmsprop_rows,
    .scalars    = rmsprop_scalars,
};

/* ---- ftrl ------------------------------------------------------------------------------------ */
/* Follow the regularised leader: sparse weights from sparse gradients. */

static const config_row ftrl_rows[] = {
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
    .hyper_rows = ftrl_rows,
    .slot_init  = optim_fill_accumulator,
    .scalars    = ftrl_scalars,
};
