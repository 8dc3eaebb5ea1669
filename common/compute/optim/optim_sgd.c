/* optim_sgd.c - stochastic gradient descent, plain or with momentum; its sign; and sums without a rule. */
#include "common/base/why.h"
#include "common/compute/optim/optim_rule.h"

/* ---- sgd ------------------------------------------------------------------------------------- */
/* Stochastic gradient descent, plain or with momentum. */

static const config_row sgd_rows[] = {
    OPTIM_LR("nan"),
    OPTIM_F64(momentum, "0", 0, 1,
              "Share of the last step kept: higher is faster along steady slopes and overshoots "
              "more."),
    OPTIM_F64(dampening, "0", 0, 1,
              "Share of the gradient kept out of the momentum: higher weakens new gradients."),
    OPTIM_BOOL(nesterov, "no", "Whether the step looks one momentum step ahead."),
    OPTIM_L2,
    OPTIM_END,
};

static pen_status sgd_check(const optim_hyper *hyper, pen_error *why)
{
    if (!hyper->nesterov || (hyper->momentum > 0 && hyper->dampening == 0)) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING,
                   "nesterov=yes needs momentum above 0 and dampening=0; say for instance "
                   "momentum=0.9");
}

static simd_update sgd_scalars(const optim_hyper *hyper, const optim_span *span)
{
    simd_update u = optim_begin(span, hyper->momentum == 0 ? SIMD_SGD : SIMD_SGD_MOMENTUM);
    u.l2          = (float)optim_weight_decay(hyper, span);
    u.momentum    = (float)hyper->momentum;
    u.nesterov    = hyper->nesterov;
    /* The buffer starts as the first gradient itself, undampened, as in torch. */
    u.take[0] = span->step == 1 ? 1.0f : (float)(1.0 - hyper->dampening);
    return u;
}

const optim_ops optim_sgd = {
    .name       = "sgd",
    .doc        = "Gradient descent with optional momentum, Nesterov's step and L2 decay.",
    .source     = "torch.optim.SGD",
    .slot_count = 1,
    .slot_names = {"momentum_buffer"},
    .hyper_rows = sgd_rows,
    .check      = sgd_check,
    .scalars    = sgd_scalars,
};

/* ---- lion ------------------------------------------------------------------------------------ */
/* The sign of a momentum: every parameter moves by the same amount. */

static const config_row lion_rows[] = {
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
    .hyper_rows = lion_rows,
    .scalars    = lion_scalars,
};

/* ---- sum ------------------------------------------------------------------------------------- */
/* Accumulation: for counters and tables, and for servers that only add. */

static const config_row sum_rows[] = {OPTIM_END};

static simd_update sum_scalars(const optim_hyper *hyper, const optim_span *span)
{
    (void)hyper;
    return optim_begin(span, SIMD_SUM);
}

const optim_ops optim_sum = {
    .name   = "sum",
    .doc    = "Adds the gradient to the parameter; reads no rate.",
    .source = "the accumulate operation of Li et al., Scaling Distributed Machine Learning with "
              "the Parameter Server, OSDI 2014",
    .slot_count = 0,
    .hyper_rows = sum_rows,
    .scalars    = sum_scalars,
};
