/* timed.c - times what a job does over and over; rank 0 prints the median.
 *
 *   timed all_reduce BYTES TIMES    the sum of BYTES of float32 over all ranks
 *   timed step BYTES TIMES          a training step of one tensor of BYTES
 * Each line: the median and the smallest, in milliseconds.  Begins with TIMES / 2 that are not counted.
 */
#include "penstock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TIMES_MAX = 1000 };

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != PEN_OK) return fprintf(stderr, "%s\n", pen_last_error(NULL)), 1;             \
    } while (0)

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(pen_ctx *ctx, double *took, int n)
{
    qsort(took, (size_t)n, sizeof *took, by_size);
    if (pen_rank(pen_world(ctx)) == 0)
        printf("timed median_ms %.3f least_ms %.3f\n", took[n / 2], took[0]);
}

static int time_all_reduce(pen_ctx *ctx, size_t n, int times)
{
    double took[TIMES_MAX];
    float *in  = pen_alloc(ctx, n * sizeof *in, PEN_HOST);
    float *out = pen_alloc(ctx, n * sizeof *out, PEN_HOST);
    if (in == NULL || out == NULL) return fprintf(stderr, "no memory\n"), 1;
    for (size_t i = 0; i < n; i++) in[i] = (float)(i % 1000) / 1000;
    for (int i = -times / 2; i < times; i++) {
        TRY(pen_barrier(pen_world(ctx), NULL, NULL));
        const double begun = now_ms();
        TRY(pen_all_reduce(pen_world(ctx), in, out, n, PEN_F32, PEN_SUM, NULL, NULL));
        if (i >= 0) took[i] = now_ms() - begun;
    }
    print(ctx, took, times);
    pen_free(in);
    pen_free(out);
    return 0;
}

static int time_steps(pen_ctx *ctx, size_t n, int times)
{
    double took[TIMES_MAX];
    float *param = pen_alloc(ctx, n * sizeof *param, PEN_HOST);
    float *grad  = pen_alloc(ctx, n * sizeof *grad, PEN_HOST);
    if (param == NULL || grad == NULL) return fprintf(stderr, "no memory\n"), 1;
    const pen_tensor_desc desc = {
        .name = "w", .ndim = 1, .shape = {(int64_t)n}, .param = param, .grad = grad};
    pen_tensor *t;
    TRY(pen_register(ctx, &desc, &t));
    TRY(pen_commit(ctx));
    for (int i = -times / 2; i < times; i++) {
        pen_step step;
        TRY(pen_step_begin(ctx, &step));
        for (size_t k = 0; k < n; k++) grad[k] = (float)(k % 1000) / 1000;
        TRY(pen_barrier(pen_world(ctx), NULL, NULL));
        const double begun = now_ms();
        TRY(pen_ready(ctx, t, PEN_ALL));
        TRY(pen_step_end(ctx, &step));
        if (i >= 0) took[i] = now_ms() - begun;
    }
    print(ctx, took, times);
    return 0;
}

int main(int argc, char **argv)
{
    pen_ctx *ctx;
    const size_t n  = argc == 4 ? strtoull(argv[2], NULL, 10) / sizeof(float) : 0;
    const int times = argc == 4 ? atoi(argv[3]) : 0;
    if (n == 0 || times < 1 || times > TIMES_MAX)
        return fprintf(stderr, "usage: timed all_reduce|step BYTES TIMES\n"), 2;
    TRY(pen_init((const char *const[]){"optim=sgd lr=0.01", NULL}, &ctx));
    const int code =
        strcmp(argv[1], "step") == 0 ? time_steps(ctx, n, times) : time_all_reduce(ctx, n, times);
    if (code == 0) TRY(pen_finalize(ctx));
    return code;
}
