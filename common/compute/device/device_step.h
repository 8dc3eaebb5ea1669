/* device_step.h - the arithmetic of a training step on a device: arguments of device_ops, and of CUDA kernels.
 *
 * DESIGN.  A step is enqueued without waiting for any of it: gradients are weighed into a sum, the sum is measured, the
 * decision writes a verdict into device memory, and the updates read it there.  The bits are those of the host's
 * functions that each line names; a NaN may have another payload.
 *   Arrays lie in memory of the device unless a line says so; those of float32 may start at any address.  Lists of spans
 * are host memory, which is read before the call returns.
 */
#ifndef COMMON_DEVICE_STEP_H
#define COMMON_DEVICE_STEP_H

#include "common/compute/simd/simd.h"

#define DEVICE_ALL_FINITE UINT32_MAX /* no chunk is bad */

/* to[i] = weight * grad[i], rounded as on the wire: simd_weigh().  *bad becomes the lowest chunk + i / chunk_elements
 * whose result is not finite, if that is lower. */
typedef struct {
    float *to;
    const void *grad; /* NULL: zeros */
    pen_dtype grad_dtype, as;
    double weight;
    size_t n;
    uint32_t *bad;
    uint32_t chunk;
    uint64_t chunk_elements; /* 0: all are of one chunk */
} device_weigh;

/* sums[b]: the sum of squares of block b, simd_level.norm.  The chunk is bad if an element is not finite. */
typedef struct {
    const float *x;
    size_t n;
    double *sums; /* one per 4,096 elements */
    uint32_t chunk;
} device_norm_span;

enum { DEVICE_ABANDONED = -1 }; /* an outcome beside those of pen_outcome: the step was stopped */

typedef struct {
    int32_t outcome;    /* pen_outcome, or DEVICE_ABANDONED */
    uint32_t bad_chunk; /* of the sum; DEVICE_ALL_FINITE: none */
    uint32_t own_bad;   /* of this member's gradients */
    uint32_t reserved;
    double norm, clip, gscale;
    int64_t applied; /* updates so far, with this one */
} device_verdict;

/* *verdict = the decision of this step: step_decide() of the sums, added as arithmetic.h says. */
typedef struct {
    const double *sums; /* in registration order */
    uint64_t n_sums;
    const uint32_t *bad, *own_bad;
    const uint32_t *stop; /* of host_alloc(): nonzero abandons the step; NULL: nothing does */
    double weight_sum, loss_scale, clip;
    bool skip;                  /* a step whose sum is not finite */
    const device_verdict *last; /* its count of updates goes on; NULL: from 0; may be verdict */
    device_verdict *verdict;
} device_decide;

typedef struct {
    float *param;
    void *values;           /* the new values in this type; NULL: not wanted */
    pen_dtype values_dtype; /* f32, f16 or bf16 */
    const float *grad;
    float *slot[3];
    size_t n;                         /* a span starts on a block border of its tensor */
    double *param_sums, *update_sums; /* DEVICE_UPDATE_NORMS: one per block */
    const double *norms;              /* SIMD_LAMB: of parameters and update */
} device_update_span;

enum { DEVICE_UPDATE_APPLY, DEVICE_UPDATE_NORMS /* the first pass of SIMD_LAMB */ };
enum { DEVICE_ROWS_MAX = 8 };

/* One pass of a formula over spans, by the scalars of the device's own count of updates; nothing if the verdict is not
 * PEN_APPLIED.  The count must have a row. */
typedef struct {
    int formula; /* simd_formula */
    int pass;    /* DEVICE_UPDATE_ */
    const simd_update
        *row;         /* [n_rows] of optim_scalars(), for applied == base + 1, base + 2, ... */
    const double *lr; /* [n_rows] their rates; read by SIMD_LAMB */
    int n_rows;       /* at most DEVICE_ROWS_MAX */
    int64_t base;
    const device_verdict *verdict;
    const device_update_span *spans;
    size_t n;
} device_update;

#endif
