/* simd.h - the inner loops: sums, conversions, norms and update rules over arrays of numbers.
 *
 * One source (simd_kernels.inc) is compiled once per level (scalar, avx2, avx512) with that level's
 * instructions and -ffp-contract=off; the best level the processor has is chosen at run time, or
 * the one the setting `simd` names.  All levels give the same bits: no FMA, no approximate
 * reciprocals, no reassociation; the norm has a fixed tree of 16 lanes.  So a primary and its backup
 * may be different machines.
 *
 * Every function takes unaligned pointers, any n including 0, and is pure.  Arrays may not overlap
 * unless a line says so.  Thread: any.  Nothing allocates.
 */
#ifndef COMMON_SIMD_H
#define COMMON_SIMD_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SIMD_BLOCK = 4096 }; /* elements per sum of squares; every cut lies on such a border */

/* What an element-wise update rule gets; arrays are float32[n].  All scalars were computed in double
 * and rounded once by the rule (common/optim/), so that every level sees the same floats. */
typedef struct {
    float *param;
    const float *grad;  /* may be unaligned inside a received message */
    float *slot[3];
    size_t n;
    float gscale;       /* every gradient element is multiplied by this first */
    float a[10];        /* the rule's scalars; meaning in simd_kernels.inc beside each kernel */
} simd_update;

typedef struct {
    const char *name; /* "scalar", "avx2", "avx512" */
    bool (*usable)(void);

    /* Wire formats.  dtype is PEN_F32, PEN_F16 or PEN_BF16; rounding is to nearest even, NaN stays NaN,
     * overflow of f16 gives infinity. */
    void (*decode)(float *out, const void *in, pen_dtype dtype, size_t n);
    void (*encode)(void *out, const float *in, pen_dtype dtype, size_t n);

    /* acc[i] = weight * in[i].  Returns whether every result is finite. */
    bool (*fold_set)(float *acc, const void *in, pen_dtype dtype, float weight, size_t n);
    /* acc[i] = base[i] + weight * in[i]; base may be acc.  Returns whether every result is finite. */
    bool (*fold_add)(float *acc, const float *base, const void *in, pen_dtype dtype, float weight, size_t n);

    /* sums[b] = sum of squares, in double, of elements [b*4096, (b+1)*4096) of x, for ceil(n/4096)
     * blocks.  Element j of a block goes to lane j % 16; lanes are added as ((0+1)+(2+3))+... pairwise.
     * Returns whether every element is finite. */
    bool (*norm)(const float *x, size_t n, double *sums);
    bool (*finite)(const void *x, pen_dtype dtype, size_t n);

    /* Element-wise updates; one per kernel an update rule needs (see the list in simd_kernels.inc). */
    void (*sgd)(const simd_update *u);          /* no momentum                      */
    void (*sgd_momentum)(const simd_update *u); /* slot 0; a[] selects Nesterov     */
    void (*adam)(const simd_update *u);         /* adam and adamw; slots 0, 1       */
    void (*adagrad)(const simd_update *u);
    void (*rmsprop)(const simd_update *u);
    void (*adadelta)(const simd_update *u);
    void (*adamax)(const simd_update *u);
    void (*ftrl)(const simd_update *u);
    void (*lion)(const simd_update *u);
    void (*lamb_moments)(const simd_update *u);                         /* slots 0, 1 only      */
    void (*lamb_norms)(const simd_update *u, double *p_sums, double *u_sums); /* per block, as norm */
    void (*lamb_apply)(const simd_update *u);
    void (*sum)(const simd_update *u); /* param += gscale * grad */
} simd_level;

extern const simd_level *const simd_all[]; /* NULL-terminated, best first, scalar last */

/* The level in use: the best usable one, unless simd_choose() named another. */
const simd_level *simd(void);

/* "auto" or a level's name.  UNSUPPORTED with a sentence when this processor lacks it. */
pen_status simd_choose(const char *name, pen_error *why);

#endif
