/* update.c - the bandwidth of a fused AdamW step beside that of a copy kernel:  update [MIN_SHARE [ELEMENTS]]
 *
 * Traffic  of an element: parameter, gradient and two moments are read, all but the gradient are written, and the new
 *          value in bf16: 30 bytes.
 * B        bytes read plus bytes written of the copy kernel of 16-byte words, on the same arrays in the same run.
 * Time     from the first enqueued call to the end of the last, launches included.  The median of 15.
 */
#include "members.h"

#include "common/base/clock.h"
#include "common/compute/optim/optim.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 15, SPANS = 100, BYTES = 30 };

typedef struct {
    size_t n; /* elements of all spans */
    float *param, *grad, *slot[2];
    uint16_t *values;
    device_verdict *verdict;
} model;

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double now_s(void)
{
    return (double)clock_ns(&clock_real) / 1e9;
}

static bool make(model *m)
{
    const device_verdict v = {.outcome = PEN_APPLIED, .clip = 1, .gscale = 0.5, .applied = 3};
    float **arrays[]       = {&m->param, &m->grad, &m->slot[0], &m->slot[1]};
    for (int i = 0; i < 4; i++)
        if ((*arrays[i] = device_cuda.alloc(m->n * sizeof(float), 0, NULL)) == NULL) return false;
    m->values  = device_cuda.alloc(m->n * sizeof *m->values, 0, NULL);
    m->verdict = device_cuda.alloc(sizeof v, 0, NULL);
    return m->values != NULL && m->verdict != NULL && members_copy(m->verdict, &v, sizeof v);
}

static pen_status step(const model *m, pen_error *why)
{
    device_update_span spans[SPANS];
    const optim_ops *ops;
    optim_hyper hyper;
    if (optim_parse("adamw", &ops, &hyper, why) != PEN_OK) return why->status;
    const simd_update row = optim_scalars(ops, &hyper, hyper.lr, 3, false);
    const size_t each     = m->n / SPANS;
    for (size_t i = 0; i < SPANS; i++)
        spans[i] = (device_update_span){.param        = m->param + i * each,
                                        .values       = m->values + i * each,
                                        .values_dtype = PEN_BF16,
                                        .grad         = m->grad + i * each,
                                        .slot = {m->slot[0] + i * each, m->slot[1] + i * each},
                                        .n    = each};
    const device_update u = {.formula = (int)row.formula,
                             .row     = &row,
                             .n_rows  = 1,
                             .base    = 2,
                             .verdict = m->verdict,
                             .spans   = spans,
                             .n       = SPANS};
    return device_cuda.update(&u, NULL, why);
}

static pen_status copy(const model *m, pen_error *why)
{
    return device_cuda.copy(m->slot[0], m->grad, m->n * sizeof(float), NULL, why);
}

/* Seconds of one call; 0: it failed. */
static double time_of(pen_status (*call)(const model *m, pen_error *why), const model *m)
{
    double seconds[ROUNDS];
    pen_error why = {0};
    for (int i = -2; i < ROUNDS; i++) {
        const double begun = now_s();
        if (call(m, &why) != PEN_OK || !members_drain()) return printf("%s\n", why.text), 0;
        if (i >= 0) seconds[i] = now_s() - begun;
    }
    qsort(seconds, ROUNDS, sizeof *seconds, compare);
    return seconds[ROUNDS / 2];
}

typedef struct {
    double share;
    size_t elements;
} goal;

static int measure(member *self, const void *arg)
{
    const goal *g = arg;
    model m       = {.n = g->elements / SPANS * SPANS};
    (void)self;
    if (m.n == 0 || !make(&m)) return printf("no memory for %zu elements\n", g->elements), 1;
    const double copied = time_of(copy, &m), updated = time_of(step, &m);
    if (!(copied > 0) || !(updated > 0)) return 1;
    const double bound = 8.0 * (double)m.n / copied, got = BYTES * (double)m.n / updated;
    printf("copy kernel %.0f GB/s, fused AdamW of %zu elements %.0f GB/s in %.3f ms: %.2f\n",
           bound / 1e9, m.n, got / 1e9, updated * 1e3, got / bound);
    return got / bound < g->share ? 1 : 0;
}

int main(int argc, char **argv)
{
    const goal g = {argc > 1 ? atof(argv[1]) : 0,
                    argc > 2 ? (size_t)strtoull(argv[2], NULL, 10) : (size_t)64 << 20};
    return members_run(1, 120, measure, &g);
}
