/* scalars.c - numbers that are summed with the step, in any mode:  scalars STEPS [RANK AT WHEN]
 * Every rank gives "loss" with each step, odd ranks give "odd" in even steps, no rank gives "none".
 * Prints the results:
 *   rank R step S of N: loss SUM MEAN odd SUM|none
 * RANK kills itself in step AT: WHEN is "before" or "after" its gradients left.
 * Ends with 1 if the sum is not that of the live ranks, in their order; with ssp and async it only
 * has to exist.
 */
#include "penstock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ELEMENTS = 300000, RANKS_MAX = 128 };

static int fail(const char *what)
{
    fprintf(stderr, "scalars: %s: %s\n", what, pen_last_error(NULL));
    return 1;
}

static double loss_of(int rank, int64_t step)
{
    return 0.1 * (rank + 1) + (double)step / 3;
}

/* The sum over the current members is one of two: with or without the killed rank. */
static int is_right(pen_ctx *ctx, int64_t step, double sum, int killed)
{
    int ranks[RANKS_MAX];
    const int n    = pen_group_ranks(pen_world(ctx), ranks, RANKS_MAX);
    double without = 0, all = 0;
    for (int i = 0; i < n; i++) {
        all += loss_of(ranks[i], step);
        if (ranks[i] != killed) without += loss_of(ranks[i], step);
    }
    return sum == all || sum == without;
}

static int show(pen_ctx *ctx, const pen_info *info, int64_t step)
{
    double sum, mean, odd, none;
    if (pen_step_total(ctx, "loss", PEN_SUM, &sum) != PEN_OK ||
        pen_step_total(ctx, "loss", PEN_AVG, &mean) != PEN_OK)
        return fail("loss");
    if (pen_step_total(ctx, "none", PEN_SUM, &none) != PEN_NOT_FOUND)
        return fail("a number that nobody gave");
    printf("rank %d step %d of %d: loss %.17g %.17g odd ", info->rank, (int)step,
           pen_size(pen_world(ctx)), sum, mean);
    if (pen_step_total(ctx, "odd", PEN_AVG, &odd) == PEN_OK)
        printf("%g\n", odd);
    else
        printf("none\n");
    return 0;
}

int main(int argc, char **argv)
{
    const char *const settings[] = {"optim=sgd lr=0.1", NULL};
    const long steps             = argc > 1 ? atol(argv[1]) : 10;
    const int killed             = argc > 4 ? atoi(argv[2]) : -1;
    const long at                = argc > 4 ? atol(argv[3]) : -1;
    const int is_after           = argc > 4 && strcmp(argv[4], "after") == 0;
    pen_tensor *t;
    pen_info info;
    pen_step step;
    pen_ctx *ctx;
    if (pen_init(settings, &ctx) != PEN_OK) return fail("pen_init");
    float *w                = pen_alloc(ctx, ELEMENTS * sizeof *w, PEN_HOST),
          *g                = pen_alloc(ctx, ELEMENTS * sizeof *g, PEN_HOST);
    const pen_tensor_desc d = {
        .name = "w", .ndim = 1, .shape = {ELEMENTS}, .param = w, .grad = g, .init = "zero"};
    pen_register(ctx, &d, &t);
    if (pen_commit(ctx) != PEN_OK || pen_info_get(ctx, &info) != PEN_OK) return fail("pen_commit");
    const int is_together = strcmp(info.mode, "ps-ssp") != 0 && strcmp(info.mode, "ps-async") != 0;
    for (long i = 0; i < steps; i++) {
        if (pen_step_begin(ctx, &step) != PEN_OK) return fail("pen_step_begin");
        for (int m = 0; m < step.accum; m++) {
            pen_step_micro(ctx, m);
            for (int e = 0; e < ELEMENTS; e++) g[e] = (float)(info.rank + 1);
            pen_step_scalar(ctx, "loss",
                            1e9); /* a partial value of this step: replaced by the next */
            pen_step_scalar(ctx, "loss", loss_of(info.rank, step.index));
            if (info.rank % 2 == 1 && step.index % 2 == 0) pen_step_scalar(ctx, "odd", info.rank);
            if (info.rank == killed && step.index == at && !is_after) raise(SIGKILL);
            pen_ready(ctx, t, PEN_ALL);
        }
        if (info.rank == killed && step.index == at) raise(SIGKILL);
        if (pen_step_end(ctx, &step) != PEN_OK) return fail("pen_step_end");
        double sum;
        if (pen_step_total(ctx, "loss", PEN_SUM, &sum) != PEN_OK) return fail("pen_step_total");
        if (is_together && !is_right(ctx, step.index, sum, killed)) {
            printf("%.17g\n", sum);
            return fail("another sum");
        }
        if (show(ctx, &info, step.index) != 0) return 1;
    }
    pen_free(w);
    pen_free(g);
    return pen_finalize(ctx) == PEN_OK ? 0 : fail("pen_finalize");
}
