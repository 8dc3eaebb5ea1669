/* arithmetic.h - the scalar arithmetic of a step, written once: for update rules, the decision, and CUDA kernels.
 *
 * Compiled without contraction on the host and on a device, where division and square roots of doubles are correctly
 * rounded: the bits are the same everywhere.
 */
#ifndef COMMON_COMPUTE_ARITHMETIC_H
#define COMMON_COMPUTE_ARITHMETIC_H

#include "penstock.h"
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define ARITHMETIC static __device__ inline
#else
#define ARITHMETIC static inline
#endif

typedef struct {
    double norm, clip, gscale;
    int32_t outcome; /* pen_outcome */
} step_decision;

ARITHMETIC double step_clip_factor(double bound, double norm)
{
    const double padded = norm + 1e-6;
    return bound > 0 && padded > bound ? bound / padded : 1;
}

ARITHMETIC pen_outcome step_outcome(double weight_sum, bool is_bad, bool skip, double norm)
{
    if (weight_sum == 0) return PEN_SKIPPED_EMPTY;
    if (is_bad) return skip ? PEN_SKIPPED_NONFINITE : PEN_APPLIED;
    return norm - norm == 0 ? PEN_APPLIED : PEN_SKIPPED_NORM;
}

/* Whether a step is applied, and the factor of its gradients: proto/decision.h has the formulas.  total: the sum of
 * squares; is_bad: a gradient is not finite. */
ARITHMETIC step_decision step_decide(double total, bool is_bad, double weight_sum,
                                     double loss_scale, double clip, bool skip)
{
    const double divisor = weight_sum * loss_scale;
    step_decision d      = {0, 1, 0, 0};
    if (weight_sum != 0) d.norm = sqrt(total) / divisor;
    if (d.norm != d.norm) d.norm = NAN; /* the same bits on all processors */
    d.outcome = (int32_t)step_outcome(weight_sum, is_bad, skip, d.norm);
    if (d.outcome != PEN_APPLIED) return d;
    d.clip   = step_clip_factor(clip, d.norm);
    d.gscale = d.clip / divisor;
    return d;
}

/* The sums of squares of blocks, of a model or of a tensor, are added in a fixed tree, which a device adds as fast as it
 * reads: number i to lane i % SUM_LANES, in order, then each lane of the second half to the one half the lanes before it,
 * and so on. */
enum { SUM_LANES = 256 };

ARITHMETIC double sum_of_lanes(double *lane)
{
    for (int half = SUM_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

#ifndef __cplusplus
typedef struct {
    double lane[SUM_LANES];
    uint64_t n;
} sum_tree; /* zeroed */

static inline void sum_tree_add(sum_tree *t, const double *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) t->lane[t->n++ % SUM_LANES] += x[i];
}

static inline double sum_in_tree(const double *x, uint64_t n)
{
    sum_tree t = {0};
    sum_tree_add(&t, x, n);
    return sum_of_lanes(t.lane);
}
#endif

/* LAMB's factor of the rate.  A NaN norm gives a NaN ratio, which shows in the whole tensor. */
ARITHMETIC double step_trust_ratio(double param_norm, double update_norm)
{
    return param_norm == 0 || update_norm == 0 ? 1.0 : param_norm / update_norm;
}

#endif
