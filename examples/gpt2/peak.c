/* peak.c - times a matrix product. */
#include "peak.h"

#include <cblas.h>
#include <stdlib.h>
#include <time.h>

enum { SIDE = 768 };

double peak_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double peak_flops(int threads)
{
    float *m = calloc((size_t)3 * SIDE * SIDE, sizeof *m);
    if (!m) return 0;
    for (int i = 0; i < 2 * SIDE * SIDE; i++) m[i] = (float)(i % 7) - 3;
    openblas_set_num_threads(threads);
    double best        = 1e30;
    const double begun = peak_clock();
    for (double now = begun; now - begun < 0.1;) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, SIDE, SIDE, SIDE, 1, m, SIDE,
                    m + SIDE * SIDE, SIDE, 0, m + 2 * SIDE * SIDE, SIDE);
        const double then = now;
        now               = peak_clock();
        if (now - then < best) best = now - then;
    }
    openblas_set_num_threads(1);
    free(m);
    return 2.0 * SIDE * SIDE * SIDE / best;
}
