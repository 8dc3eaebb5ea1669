/* optim_adamax.c - Adam with the largest recent gradient in place of the second moment. */
#include "common/compute/optim/optim_rule.h"

#include <assert.h>
#include <math.h>

static const config_row rows[] = {
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
    .hyper_rows = rows,
    .scalars    = adamax_scalars,
};
