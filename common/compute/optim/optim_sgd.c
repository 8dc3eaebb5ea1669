/* optim_sgd.c - stochastic gradient descent, plain or with momentum. */
#include "common/compute/optim/optim_rule.h"

#include "common/base/why.h"

static const config_row rows[] = {
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
    .hyper_rows = rows,
    .check      = sgd_check,
    .scalars    = sgd_scalars,
};
