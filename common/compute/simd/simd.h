/* simd.h - the inner loops: sums, conversions, norms and update rules over arrays of numbers.
 *
 * DESIGN.  One source (simd_kernels.inc) is compiled once per level (scalar, avx2, avx512) with that level's
 * instructions and -ffp-contract=off.  The best level of the processor is chosen at run time, unless the setting `simd`
 * names one.  "scalar" is plain C for the architecture's baseline.
 *
 * All levels give the same bits, so that a primary and its backup may be different machines: no FMA, no approximate
 * reciprocals, no reassociation, no libm function that is not correctly rounded; the norm has a fixed tree of 16 lanes.
 * One exception: if arithmetic meets a NaN the result is a NaN on every level, but its sign and payload may differ.
 * Conversions are exact, NaN included.
 *
 * Every function takes pointers of any alignment, any n including 0, and is pure.  Arrays may not overlap unless a line
 * says so.  Thread: any.  Nothing allocates; at most 20 KiB of stack.
 */
#ifndef COMMON_SIMD_H
#define COMMON_SIMD_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of the kernels' numbers, which may lie anywhere.  With the thread sanitizer, unaligned types double the time of the
 * tests that compute; it does not mind if aligned ones are not. */
#if defined(__SANITIZE_THREAD__)
#define SIMD_ANY __attribute__((may_alias))
#else
#define SIMD_ANY __attribute__((aligned(1), may_alias))
#endif

enum { SIMD_BLOCK = 4096 }; /* elements per sum of squares; partition boundaries are multiples */

/* The formulas of update rules; simd_kernels.inc has them in numbers.  Each is one pass: it reads grad once, reads and
 * writes param and every slot of the formula once. */
typedef enum {
    SIMD_SUM,          /* param += gscale * grad */
    SIMD_SGD,          /* no slot */
    SIMD_SGD_MOMENTUM, /* slot 0 */
    SIMD_ADAM,         /* adam (l2) and adamw (decay); slots 0, 1 */
    SIMD_ADAGRAD,      /* slot 0 */
    SIMD_RMSPROP,      /* slot 0; 1 if momentum; 2 if centered */
    SIMD_ADADELTA,     /* slots 0, 1 */
    SIMD_ADAMAX,       /* slots 0, 1 */
    SIMD_FTRL,         /* slots 0, 1; nothing at a rate of 0, by which it divides */
    SIMD_LION,         /* slot 0 */
    SIMD_LAMB,         /* slots 0, 1, advanced by lamb_norms(); this pass applies */
    SIMD_FORMULAS
} simd_formula;

/* The arguments of an element-wise update; arrays are float32[n].  The rule (common/compute/optim/) computes the
 * scalars in double and rounds them once, so that every level sees the same floats.  Each kernel reads only those in
 * its formula. */
typedef struct {
    float *param;
    const float *grad;
    float *slot[3];
    size_t n;
    float gscale;           /* multiplies every gradient element first */
    float rate;             /* of this step; adam, adamax: bias correction of slot 0 included */
    float l2;               /* coupled weight decay: g += l2 * p */
    float decay;            /* decoupled weight decay: p -= decay * p */
    float keep[2], take[2]; /* moving averages: x = keep * x + take * new; 0 = first, 1 = second */
    float debias;           /* lamb: bias correction of the first moment */
    float root_scale;       /* bias correction of the second moment, after its square root */
    float eps;
    float momentum;
    bool nesterov;       /* sgd_momentum: look ahead */
    bool centered;       /* rmsprop: divide by the deviation, with slot 2 as the mean */
    float l1, quadratic; /* ftrl: threshold, twice the l2 strength */
    float power;         /* ftrl: minus lr_power */
    simd_formula formula;
} simd_update;

/* The slots that an update reads and writes: bit i is slot i. */
unsigned simd_slots(const simd_update *u);

typedef struct {
    const char *name; /* "scalar", "avx2", "avx512" */
    bool (*usable)(void);

    /* Wire formats.  dtype is PEN_F32, PEN_F16 or PEN_BF16.  encode rounds to nearest even; overflow gives infinity.  A
     * NaN keeps its sign and the upper bits of its payload and becomes quiet (bf16 -> f32 and f32 -> f32 only move
     * bits). */
    void (*decode)(float *out, const void *in, pen_dtype dtype, size_t n);
    void (*encode)(void *out, const float *in, pen_dtype dtype, size_t n);

    /* acc[i] = weight * in[i].  Returns whether every result is finite. */
    bool (*fold_set)(float *acc, const void *in, pen_dtype dtype, float weight, size_t n);
    /* acc[i] = base[i] + weight * in[i]; base may be acc.  Returns whether every result is
     * finite. */
    bool (*fold_add)(float *acc, const float *base, const void *in, pen_dtype dtype, float weight,
                     size_t n);

    /* sums[b] = sum of squares, in double, of elements [b*4096, (b+1)*4096) of x, for ceil(n/4096)
     * blocks.  Element j of a block goes to lane j % 16, in order of j; lanes are added pairwise:
     * ((0+1)+(2+3))+((4+5)+(6+7)) and so on.  Returns whether every element is finite. */
    bool (*norm)(const float *x, size_t n, double *sums);
    bool (*finite)(const void *x, pen_dtype dtype, size_t n);

    void (*update[SIMD_FORMULAS])(const simd_update *u); /* by formula */
    /* The first pass of LAMB: advances slots 0 and 1, leaves param alone and writes the sums of squares of param and of
     * the raw update, per block, as norm() does. */
    void (*lamb_norms)(const simd_update *u, double *param_sums, double *update_sums);
} simd_level;

extern const simd_level *const simd_all[]; /* NULL-terminated, best first, scalar last */

/* The level in use: the best usable one, unless simd_choose() set another. */
const simd_level *simd(void);

/* A rank's share of a sum: its gradient, rounded as on the wire (`as`), times its weight, in float32.  grad is of `as`,
 * or float32; NULL: zeros.  Weight 0 gives minus zeros for any grad: adding them changes no float.  Returns whether every
 * result is finite. */
bool simd_weigh(float *to, const void *grad, pen_dtype grad_dtype, pen_dtype as, double weight,
                size_t n);

/* Sets "auto" or a level by name, for the whole process.  BAD_SETTING: not a level; UNSUPPORTED: this processor lacks
 * it; on errors the level stays. */
pen_status simd_choose(const char *name, pen_error *why);

#endif
