/* optim_adam.c - Adam, and AdamW, which differ only in where weight decay is applied; adamax and lamb, which follow them. */
#include "common/compute/arithmetic.h"
#include "common/compute/optim/optim_rule.h"

#include <assert.h>
#include <math.h>

static const config_row adam_rows[] = {
    OPTIM_LR("1e-3"),  OPTIM_BETA1("0.9"), OPTIM_BETA2("0.999"),
    OPTIM_EPS("1e-8"), OPTIM_L2,           OPTIM_END,
};

static const config_row adamw_rows[] = {
    OPTIM_LR("1e-3"),  OPTIM_BETA1("0.9"),  OPTIM_BETA2("0.999"),
    OPTIM_EPS("1e-8"), OPTIM_DECAY("0.01"), OPTIM_END,
};

static simd_update begin(const optim_hyper *hyper, const optim_span *span)
{
    assert(span->step >= 1); /* step 0 would divide by 1 - beta^0 = 0 */
    simd_update u = optim_begin(span, SIMD_ADAM);
    optim_average(&u, 0, hyper->beta1);
    optim_average(&u, 1, hyper->beta2);
    /* pow() at every step: a running product drifts over thousands of steps and would have to be saved. */
    const double t = (double)span->step;
    u.rate         = (float)(span->lr / (1.0 - pow(hyper->beta1, t)));
    u.root_scale   = (float)(1.0 / sqrt(1.0 - pow(hyper->beta2, t)));
    u.eps          = (float)hyper->eps;
    return u;
}

static simd_update adam_scalars(const optim_hyper *hyper, const optim_span *span)
{
    simd_update u = begin(hyper, span);
    u.l2          = (float)optim_weight_decay(hyper, span);
    return u;
}

static simd_update adamw_scalars(const optim_hyper *hyper, const optim_span *span)
{
    simd_update u = begin(hyper, span);
    u.decay       = (float)(span->lr * optim_weight_decay(hyper, span));
    return u;
}

const optim_ops optim_adam = {
    .name       = "adam",
    .doc        = "Adam; weight decay joins the gradient.",
    .source     = "Kingma and Ba, arXiv:1412.6980, Alg. 1; torch.optim.Adam",
    .slot_count = 2,
    .slot_names = {"exp_avg", "exp_avg_sq"},
    .hyper_rows = adam_rows,
    .scalars    = adam_scalars,
};

const optim_ops optim_adamw = {
    .name       = "adamw",
    .doc        = "Adam with decoupled weight decay.",
    .source     = "Loshchilov and Hutter, arXiv:1711.05101, Alg. 2, decay times the rate as in "
                  "torch.optim.AdamW",
    .slot_count = 2,
    .slot_names = {"exp_avg", "exp_avg_sq"},
    .hyper_rows = adamw_rows,
    .scalars    = adamw_scalars,
};

/* ---- adamax ---------------------------------------------------------------------------------- */
/* Adam with the largest recent gradient in place of the second moment. */

static const config_row adamax_rows[] = {
    OPTIM_LR("2e-3"),  OPTIM_BETA1("0.9"), OPTIM_BETA2("0.999"),
    OPTIM_EPS("1e-8"), OPTIM_L2,           OPTIM_END,
};

static simd_update adamax_scalars(const optim_hyper *hyper, const optim_span *span)
{
    assert(span->step >= 1); /* step 0 would divide by 1 - beta^0 = 0 */
    simd_update u = optim_begin(span, SIMD_ADAMAX);
    optim_average(&u, 0, hyper->beta1);
    optim_average(&u, 1, hyper->beta2);
    u.rate = (float)(span->lr / (1.0 - pow(hyper->beta1, (double)span->step)));
    u.eps  = (float)hyper->eps;
    u.l2   = (float)optim_weight_decay(hyper, span);
    return u;
}

const optim_ops optim_adamax = {
    .name       = "adamax",
    .doc        = "Adam with a decaying maximum of gradients in place of their mean square.",
    .source     = "Kingma and Ba, arXiv:1412.6980, Alg. 2; torch.optim.Adamax",
    .slot_count = 2,
    .slot_names = {"exp_avg", "exp_inf"},
    .hyper_rows = adamax_rows,
    .scalars    = adamax_scalars,
};

/* ---- lamb ------------------------------------------------------------------------------------ */
/* Adam with a step length, per tensor, of the tensor's norm times the rate.
 *
 * DESIGN.  The length of a step depends on the whole tensor, which may lie in several spans.  The first pass advances
 * the moments and measures; the second recomputes the same raw update from the moments and applies it.  Computing it
 * twice gives the same bits and costs less than storing it in a fourth vector. */

static const config_row lamb_rows[] = {
    OPTIM_LR("1e-3"),
    OPTIM_BETA1("0.9"),
    OPTIM_BETA2("0.999"),
    OPTIM_EPS("1e-6"),
    OPTIM_F64(weight_decay, "0.01", 0, 1e6,
              "Times the parameter, part of the update whose length is then set: higher holds "
              "weights smaller."),
    OPTIM_END,
};

static simd_update lamb_scalars(const optim_hyper *hyper, const optim_span *span)
{
    assert(span->step >= 1); /* step 0 would divide by 1 - beta^0 = 0 */
    const double t = (double)span->step;
    simd_update u  = optim_begin(span, SIMD_LAMB);
    optim_average(&u, 0, hyper->beta1);
    optim_average(&u, 1, hyper->beta2);
    u.rate       = (float)(span->lr * step_trust_ratio(span->param_norm, span->update_norm));
    u.debias     = (float)(1.0 / (1.0 - pow(hyper->beta1, t)));
    u.root_scale = (float)(1.0 / sqrt(1.0 - pow(hyper->beta2, t)));
    u.eps        = (float)hyper->eps;
    u.decay      = (float)optim_weight_decay(hyper, span);
    return u;
}

const optim_ops optim_lamb = {
    .name         = "lamb",
    .doc          = "Adam with decoupled decay, its step scaled to the norm of each tensor.",
    .source       = "You et al., arXiv:1904.00962, Alg. 2, with phi(x) = x",
    .slot_count   = 2,
    .slot_names   = {"exp_avg", "exp_avg_sq"},
    .hyper_rows   = lamb_rows,
    .whole_tensor = true,
    .scalars      = lamb_scalars,
};
