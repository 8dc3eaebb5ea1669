/* reduce.h - folds several arrays into one, in rank order: the arithmetic of every collective.
 *
 * out[i] = ((x0[i] op x1[i]) op x2[i]) op ..., with xr[i] = scale[r] * in[r][i] where scales are given.
 * Types      PEN_F16 and PEN_BF16 are folded in float32 and rounded once, to nearest even; all others in their own
 *            type.  Integers wrap around.  A scale is rounded to float32 for f32 and 16-bit types, stays double for f64;
 *            integers are multiplied in double and truncated toward zero (saturating).
 * Order      `order` replaces rank order; the parts of 16-bit types stay in float32, so they are rounded once, too.
 * AVG        the sum, divided by n once at the end: integers truncate toward zero; floats divide.
 * MIN, MAX   a NaN in any input gives NaN.
 * Logical    LAND LOR LXOR: nonzero counts as 1, the result is 0 or 1; integers only.  BAND BOR BXOR: integers only.
 * All levels of simd.h give the same bits (NaN payloads excepted); no FMA.
 * Arrays may have any alignment and n any value.  An output may be one of the inputs (exactly the same pointer).
 */
#ifndef COMMON_SIMD_REDUCE_H
#define COMMON_SIMD_REDUCE_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>

/* A fold of folds: the inputs of each part are folded, then the parts: (x0 op x1) op (x2 op x3). */
typedef struct {
    int n_parts;     /* at least 1 */
    const int *turn; /* [n_in] inputs, part by part */
    const int *end; /* [n_parts] part p is turn[end[p - 1]] up to turn[end[p] - 1]; none is empty */
} reduce_order;

typedef struct {
    pen_op op;
    pen_dtype dtype;
    int n_in, n_out;       /* at least 1 each */
    const void *const *in; /* [n_in] in rank order */
    void *const *out;      /* [n_out] all get the result */
    const double *scale;   /* [n_in], or NULL: all 1 */
    int divide_by; /* AVG divides by this; 0: by n_in.  A partial fold divides in its last part. */
    /* bypass the caches (for one of two outputs): for large outputs that are not read soon */
    bool stream;
    const reduce_order *order; /* NULL: in[0], in[1], ... in one part; host memory only */
} reduce_args;

bool reduce_is_legal(pen_op op, pen_dtype dtype);

/* Folds elements [begin, begin + count) of all arrays.  Cost: reads n_in and writes n_out arrays once, in blocks that
 * stay in the first-level cache. */
void reduce(const reduce_args *args, size_t begin, size_t count);

/* As memcpy(), and fast for all addresses.  The C library copies from 4 KiB on with "rep movsb", which AMD's Zen 3 does at
 * 2 GB/s in place of 40 where `out` lies 1 to 31 bytes after `in`, modulo 4 KiB: large blocks of malloc() begin 16 bytes
 * into a page, shared memory with one. */
void copy_near(void *out, const void *in, size_t bytes);
/* Copies past the caches where that is faster (from about half the last-level cache on), else into them. */
void copy_stream(void *out, const void *in, size_t bytes);
/* Copies past the caches: for pieces of much that is not read soon.  Complete for other cores when it returns. */
void copy_past(void *out, const void *in, size_t bytes);

#endif
