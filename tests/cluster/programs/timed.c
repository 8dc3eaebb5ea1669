/* timed.c - times what a job does over and over; rank 0 prints the median.
 *
 *   timed all_reduce BYTES TIMES    the sum of BYTES of float32 over all ranks
 *   timed calls BYTES TIMES         the same without a barrier between: the mean of TIMES calls
 *   timed step BYTES TIMES          a training step of one tensor of BYTES
 *   timed layers|whole BYTES TIMES MS
 *       a lazy step of LAYERS tensors of BYTES together, whose computing is sleep: MS forward, twice as long backward.
 *       layers: each layer is a unit, used when it is its turn; whole: the program names no units
 * Each line: the median and the smallest, in milliseconds.  Begins with TIMES / 2 that are not counted.
 */
#include "penstock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TIMES_MAX = 1000, LAYERS = 16 };

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

/* is_apart: a barrier before each call; otherwise the mean of a loop of calls. */
static int time_all_reduce(pen_ctx *ctx, size_t n, int times, int is_apart)
{
    double took[TIMES_MAX], loop_began = 0;
    float *in  = pen_alloc(ctx, n * sizeof *in, PEN_HOST);
    float *out = pen_alloc(ctx, n * sizeof *out, PEN_HOST);
    if (in == NULL || out == NULL) return fprintf(stderr, "no memory\n"), 1;
    for (size_t i = 0; i < n; i++) in[i] = (float)(i % 1000) / 1000;
    for (int i = -times / 2; i < times; i++) {
        if (is_apart || i <= 0) TRY(pen_barrier(pen_world(ctx), NULL, NULL));
        const double begun = now_ms();
        if (i == 0) loop_began = begun;
        TRY(pen_all_reduce(pen_world(ctx), in, out, n, PEN_F32, PEN_SUM, NULL, NULL));
        if (i >= 0) took[i] = now_ms() - begun;
    }
    if (!is_apart) took[0] = (now_ms() - loop_began) / times;
    print(ctx, took, is_apart ? times : 1);
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

typedef struct {
    pen_ctx *ctx;
    pen_tensor *tensor[LAYERS];
    pen_unit *unit[LAYERS]; /* NULL: the program names none */
    double forward_ms;      /* of a layer */
} layers;

static void compute(double ms)
{
    const struct timespec t = {.tv_sec  = (time_t)(ms / 1e3),
                               .tv_nsec = (long)(ms * 1e6) % 1000000000L};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

static int make_layers(layers *m, size_t n, int by_unit)
{
    float *grad = pen_alloc(m->ctx, n * sizeof *grad, PEN_HOST);
    if (grad == NULL) return fprintf(stderr, "no memory\n"), 1;
    for (size_t k = 0; k < n; k++) grad[k] = (float)(k % 1000) / 1000;
    for (int i = 0; i < LAYERS; i++) {
        char name[16], unit[16];
        snprintf(name, sizeof name, "l.%d.w", i);
        snprintf(unit, sizeof unit, "l.%d", i);
        const pen_tensor_desc desc = {.name  = name,
                                      .unit  = unit,
                                      .ndim  = 1,
                                      .shape = {(int64_t)n / LAYERS},
                                      .grad  = grad + n / LAYERS * (size_t)i,
                                      .init  = "zero"};
        TRY(pen_register(m->ctx, &desc, &m->tensor[i]));
    }
    TRY(pen_commit(m->ctx));
    for (int i = 0; i < LAYERS && by_unit; i++)
        if ((m->unit[i] = pen_unit_get(m->ctx, "l", i)) == NULL) return 1;
    return 0;
}

static int run_layers(layers *m)
{
    pen_step step = {.lazy = 1};
    TRY(pen_step_begin(m->ctx, &step));
    step.lazy = 1;
    for (int i = 0; i < LAYERS; i++) {
        if (m->unit[i] != NULL || i == 0) TRY(pen_use(m->ctx, m->unit[i], PEN_FORWARD, NULL));
        compute(m->forward_ms);
        if (m->unit[i] != NULL) TRY(pen_release(m->ctx, m->unit[i], PEN_FORWARD, NULL));
    }
    for (int i = LAYERS; i-- > 0;) {
        if (m->unit[i] != NULL) TRY(pen_use(m->ctx, m->unit[i], PEN_BACKWARD, NULL));
        compute(2 * m->forward_ms);
        if (m->unit[i] != NULL)
            TRY(pen_release(m->ctx, m->unit[i], PEN_BACKWARD, NULL));
        else
            TRY(pen_ready(m->ctx, m->tensor[i], PEN_ALL));
    }
    TRY(pen_step_end(m->ctx, &step));
    return 0;
}

/* From end to end: what a lazy step leaves to the next counts there. */
static int time_layers(pen_ctx *ctx, size_t n, int times, double ms, int by_unit)
{
    double took[TIMES_MAX];
    layers m = {.ctx = ctx, .forward_ms = ms / LAYERS};
    if (make_layers(&m, n, by_unit) != 0) return 1;
    for (int i = -times / 2; i < times; i++) {
        const double begun = now_ms();
        if (run_layers(&m) != 0) return 1;
        if (i >= 0) took[i] = now_ms() - begun;
    }
    print(ctx, took, times);
    return 0;
}

int main(int argc, char **argv)
{
    pen_ctx *ctx;
    const int by_unit   = argc == 5 && strcmp(argv[1], "layers") == 0;
    const int is_layers = by_unit || (argc == 5 && strcmp(argv[1], "whole") == 0);
    const size_t n      = argc >= 4 ? strtoull(argv[2], NULL, 10) / sizeof(float) : 0;
    const int times     = argc >= 4 ? atoi(argv[3]) : 0;
    if (n < LAYERS || times < 1 || times > TIMES_MAX || (argc != 4 && !is_layers))
        return fprintf(stderr, "usage: timed all_reduce|calls|step BYTES TIMES\n"
                               "       timed layers|whole BYTES TIMES MS\n"),
               2;
    TRY(pen_init((const char *const[]){"optim=sgd lr=0.01", NULL}, &ctx));
    const int code = is_layers ? time_layers(ctx, n, times, atof(argv[4]), by_unit)
                     : strcmp(argv[1], "step") == 0
                         ? time_steps(ctx, n, times)
                         : time_all_reduce(ctx, n, times, strcmp(argv[1], "calls") != 0);
    if (code == 0) TRY(pen_finalize(ctx));
    return code;
}
