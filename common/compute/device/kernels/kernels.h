/* kernels.h - kernel arguments; included by C and by CUDA C++.
 *
 * Kernels are found by name: "fold_f32_0" and so on for every type, "fold_f32_2" (f16, bf16) for exactly two inputs,
 * "copy_bytes", "accumulate_f32" (f16, bf16), "narrow_f16" (bf16), "flag_set", "flag_wait".  Each takes one struct by
 * value.
 */
#ifndef COMMON_DEVICE_KERNELS_KERNELS_H
#define COMMON_DEVICE_KERNELS_KERNELS_H

#include <stdint.h>

enum {
    KERNEL_ARRAYS_MAX = 64, /* inputs of a fold, outputs of a fold, members of a flag kernel */
    KERNEL_THREADS    = 512,
    KERNEL_FLAG_BYTES = 64 /* from one flag to the next */
};

/* Alignment of a fold's or sum's arrays: equal within 16 bytes; on whole elements; arbitrary. */
enum { KERNEL_WIDE, KERNEL_ELEMENTS, KERNEL_BYTES };

/* Operations have the numbers of pen_op. */
typedef struct {
    const void *in[KERNEL_ARRAYS_MAX];
    void *out[KERNEL_ARRAYS_MAX];
    double scale[KERNEL_ARRAYS_MAX]; /* read if has_scale is set */
    uint64_t count;                  /* elements */
    uint64_t head;                   /* WIDE: elements before the first whole 16 bytes */
    int32_t n_in, n_out, op, divide_by, has_scale, lie;
} kernel_fold;

typedef struct {
    const void *in;
    void *out;
    uint64_t bytes;
} kernel_copy;

/* numbers: f32, f16 or bf16; accumulate_* adds them to the sum, narrow_* writes the rounded sum there. */
typedef struct {
    float *sum;
    void *numbers;
    uint64_t count;        /* elements */
    uint64_t head;         /* WIDE: elements before both arrays reach whole 16 bytes */
    int32_t is_first, lie; /* is_first: the sum starts with these numbers */
} kernel_sum;

/* Flags are 64-bit numbers that only grow. */
typedef struct {
    void *flag[KERNEL_ARRAYS_MAX]; /* where to write */
    uint64_t value;
    int32_t n;
} kernel_flag_set;

enum { KERNEL_WAITED, KERNEL_ABORTED, KERNEL_LATE };

typedef struct {
    const void *flags; /* [n], KERNEL_FLAG_BYTES apart */
    const void *abort; /* host memory, 64 bits: nonzero ends the wait */
    void *result; /* host memory, 32 bits: KERNEL_ABORTED, KERNEL_LATE; unchanged if all came */
    uint64_t value, timeout_ns;
    int32_t n;
} kernel_flag_wait;

#endif
