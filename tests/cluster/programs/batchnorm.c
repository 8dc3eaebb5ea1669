/* batchnorm.c - BatchNorm1d(5) and Linear(5, 1), trained with a squared error, as tests/support/make_golden_batchnorm.py
 * does it under PyTorch's DDP: statistics of a batch are each rank's own, running ones are PEN_BUFFERs.
 *
 *   batchnorm NAME=VALUE ...           settings of the SDK
 */
#include "penstock.h"

#include <math.h>
#include <stdio.h>

enum { BATCH = 6, WIDTH = 5, STEPS = 20, WORDS_MAX = 16 };

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != PEN_OK) return fprintf(stderr, "batchnorm: %s\n", pen_last_error(NULL)), 1;  \
    } while (0)

typedef struct {
    float gamma[WIDTH], beta[WIDTH], w[WIDTH], b[1];
} parameters;

static parameters value = {.gamma = {1, 1, 1, 1, 1}, .w = {.1f, .2f, .3f, .4f, .5f}}, grad;
static float running_mean[WIDTH], running_var[WIDTH] = {1, 1, 1, 1, 1};
static int64_t batches;

static void make_batch(int rank, int step, float x[BATCH][WIDTH], float y[BATCH])
{
    for (int i = 0; i < BATCH; i++) {
        y[i] = (float)cos(i + rank + step);
        for (int d = 0; d < WIDTH; d++)
            x[i][d] =
                (float)(sin(0.1 * (d + 1) * (i + 7 * rank + 13 * step)) * (d + 1) + 0.05 * rank);
    }
}

/* Normalises x in place, and updates the running statistics as PyTorch does: momentum 0.1, unbiased variance. */
static void normalise(float x[BATCH][WIDTH], double spread[WIDTH])
{
    for (int d = 0; d < WIDTH; d++) {
        double mean = 0, var = 0;
        for (int i = 0; i < BATCH; i++) mean += x[i][d] / (double)BATCH;
        for (int i = 0; i < BATCH; i++) var += (x[i][d] - mean) * (x[i][d] - mean) / BATCH;
        spread[d] = sqrt(var + 1e-5);
        for (int i = 0; i < BATCH; i++) x[i][d] = (float)((x[i][d] - mean) / spread[d]);
        running_mean[d] = (float)(0.9 * running_mean[d] + 0.1 * mean);
        running_var[d]  = (float)(0.9 * running_var[d] + 0.1 * var * BATCH / (BATCH - 1));
    }
    batches++;
}

/* Loss of one batch; with its gradients. */
static double train(float x[BATCH][WIDTH], const float y[BATCH])
{
    double spread[WIDTH], loss = 0;
    grad = (parameters){{0}};
    normalise(x, spread);
    for (int i = 0; i < BATCH; i++) {
        double out = value.b[0];
        for (int d = 0; d < WIDTH; d++)
            out += (double)value.w[d] * (value.gamma[d] * x[i][d] + value.beta[d]);
        const double error = out - y[i], slope = 2 * error / BATCH;
        loss += error * error / BATCH;
        grad.b[0] += (float)slope;
        for (int d = 0; d < WIDTH; d++) {
            grad.w[d] += (float)(slope * (value.gamma[d] * x[i][d] + value.beta[d]));
            grad.gamma[d] += (float)(slope * value.w[d] * x[i][d]);
            grad.beta[d] += (float)(slope * value.w[d]);
        }
    }
    return loss;
}

static void print_row(int rank, const char *name, const float row[WIDTH])
{
    printf("rank %d %s", rank, name);
    for (int d = 0; d < WIDTH; d++) printf(" %.9g", (double)row[d]);
    printf("\n");
}

static pen_status add(pen_ctx *ctx, const char *name, float *param, float *gradient, int64_t n)
{
    const pen_tensor_desc d = {
        .name = name, .ndim = 1, .shape = {n}, .param = param, .grad = gradient};
    return pen_register(ctx, &d, NULL);
}

static pen_status add_buffer(pen_ctx *ctx, const char *name, pen_dtype dtype, int ndim, void *param)
{
    const pen_tensor_desc d = {.name  = name,
                               .dtype = dtype,
                               .ndim  = ndim,
                               .shape = {WIDTH},
                               .flags = PEN_BUFFER,
                               .param = param};
    return pen_register(ctx, &d, NULL);
}

int main(int argc, char **argv)
{
    const char *words[WORDS_MAX + 2] = {"optim=sgd lr=0.05"};
    float x[BATCH][WIDTH], y[BATCH];
    pen_ctx *ctx;
    pen_step step;
    for (int i = 1; i < argc && i <= WORDS_MAX; i++) words[i] = argv[i];
    TRY(pen_init(words, &ctx));
    const int rank = pen_rank(pen_world(ctx));
    TRY(add(ctx, "0.weight", value.gamma, grad.gamma, WIDTH));
    TRY(add(ctx, "0.bias", value.beta, grad.beta, WIDTH));
    TRY(add(ctx, "1.weight", value.w, grad.w, WIDTH));
    TRY(add(ctx, "1.bias", value.b, grad.b, 1));
    TRY(add_buffer(ctx, "0.running_mean", PEN_F32, 1, running_mean));
    TRY(add_buffer(ctx, "0.running_var", PEN_F32, 1, running_var));
    TRY(add_buffer(ctx, "0.num_batches_tracked", PEN_I64, 0, &batches));
    TRY(pen_commit(ctx));
    for (int s = 0; s < STEPS; s++) {
        TRY(pen_step_begin(ctx, &step));
        make_batch(rank, s, x, y);
        printf("rank %d step %d loss %.9g\n", rank, s, train(x, y));
        TRY(pen_ready(ctx, NULL, PEN_ALL));
        TRY(pen_step_end(ctx, &step));
    }
    make_batch(rank, STEPS, x, y);
    (void)train(x, y);
    print_row(rank, "weight", value.gamma);
    print_row(rank, "bias", value.beta);
    print_row(rank, "running_mean", running_mean);
    print_row(rank, "running_var", running_var);
    printf("rank %d batches %lld\n", rank, (long long)batches);
    TRY(pen_finalize(ctx));
    return 0;
}
