/* sum_reference.h - the sum of a list in the tree of common/compute/arithmetic.h, written from its description. */
#ifndef TESTS_SUPPORT_SUM_REFERENCE_H
#define TESTS_SUPPORT_SUM_REFERENCE_H

#include <stddef.h>

/* What ends up in lane `at` when `stride` lanes are left. */
static inline double sum_reference_lane(const double *x, size_t n, size_t at, size_t stride)
{
    double sum = 0;
    if (stride < 256)
        return sum_reference_lane(x, n, at, 2 * stride) +
               sum_reference_lane(x, n, at + stride, 2 * stride);
    for (size_t i = at; i < n; i += 256) sum += x[i];
    return sum;
}

static inline double sum_reference(const double *x, size_t n)
{
    return sum_reference_lane(x, n, 0, 1);
}

#endif
