/* calls.c - what push_pull and all_reduce cost in C; calls.py does the same:  penstock run --servers 1 calls BYTES CALLS
 * Prints the median time of a call in us, of rank 0. */
#include "penstock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define TRY(call)                                                                                  \
    if ((call) != PEN_OK) return fprintf(stderr, "%s\n", pen_last_error(NULL)), 1

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    const size_t n  = (size_t)atol(argv[1]) / 4;
    const int calls = argc > 2 ? atoi(argv[2]) : 1000;
    float *w = calloc(n, 4), *g = calloc(n, 4), *out = calloc(n, 4);
    double *took = calloc((size_t)calls, sizeof *took);
    pen_ctx *ctx;
    pen_tensor *t;
    pen_info info;
    TRY(pen_init((const char *const[]){"optim=sgd lr=0.1", NULL}, &ctx));
    TRY(pen_info_get(ctx, &info));
    const pen_tensor_desc d = {
        .name = "w", .ndim = 1, .shape = {(int64_t)n}, .param = w, .grad = g};
    TRY(pen_register(ctx, &d, &t));
    TRY(pen_commit(ctx));
    for (int i = -calls / 10; i < calls; i++) {
        const double begun = now_us();
        const pen_status s = info.servers > 0 ? pen_push_pull(ctx, t, PEN_ALL, g, out, NULL, NULL)
                                              : pen_all_reduce(pen_world(ctx), g, out, n, PEN_F32,
                                                               PEN_SUM, NULL, NULL);
        TRY(s);
        if (i >= 0) took[i] = now_us() - begun;
    }
    qsort(took, (size_t)calls, sizeof *took, compare);
    if (info.rank == 0) printf("%.1f\n", took[calls / 2]);
    TRY(pen_finalize(ctx));
    return 0;
}
