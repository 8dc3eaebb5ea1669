/* optim_sum.c - accumulation: for counters and tables, and for servers that only add. */
#include "common/compute/optim/optim_rule.h"

static const config_row rows[] = {OPTIM_END};

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
    .hyper_rows = rows,
    .scalars    = sum_scalars,
};
