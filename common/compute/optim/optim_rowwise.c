/* optim_rowwise.c - adagrad with one rate per row of a table: one number of state instead of one per value. */
#include "common/compute/optim/optim_rule.h"

#include <assert.h>
#include <math.h>

static const config_row rows[] = {
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
    .hyper_rows = rows,
    .slot_init  = fill_row,
    .update_row = update_row,
};
