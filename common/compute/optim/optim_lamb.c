/* optim_lamb.c - Adam with a step length, per tensor, of the tensor's norm times the rate.
 *
 * DESIGN.  The length of a step depends on the whole tensor, which may lie in several spans.  The first pass advances
 * the moments and measures; the second recomputes the same raw update from the moments and applies it.  Computing it
 * twice gives the same bits and costs less than storing it in a fourth vector.
 */
#include "common/compute/arithmetic.h"
#include "common/compute/optim/optim_rule.h"

#include <assert.h>
#include <math.h>

static const config_row rows[] = {
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
    .hyper_rows   = rows,
    .whole_tensor = true,
    .scalars      = lamb_scalars,
};
