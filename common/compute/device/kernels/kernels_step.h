/* kernels_step.h - arguments of the kernels of a step (step.cu, update.cu); included by C and by CUDA C++.
 *
 * Kernels are found by name: "weigh_f32_f32" (grad's type, then `as`) and so on, "weigh_none", "norm_blocks", "decide", "roots",
 * "update_" and a formula ("update_adam"), "update_lamb_norms".  Each takes one struct of at most 4 KiB by value.
 */
#ifndef COMMON_DEVICE_KERNELS_KERNELS_STEP_H
#define COMMON_DEVICE_KERNELS_KERNELS_STEP_H

#include "common/compute/device/device_step.h"
#include "common/compute/device/kernels/kernels.h"

enum {
    KERNEL_NORMS          = 96, /* spans of one launch */
    KERNEL_UPDATES        = 30,
    KERNEL_UPDATE_THREADS = 256,
    KERNEL_NORM_THREADS =
        32, /* each takes a whole block: few of them in a thread block use more processors */
    KERNEL_TILE = SIMD_BLOCK /* elements of an update that a thread block takes at a time */
};

typedef struct {
    device_weigh w;
    uint64_t head; /* WIDE: elements before both arrays reach whole 16 bytes */
    int32_t lie;
} kernel_weigh;

typedef struct {
    device_norm_span span[KERNEL_NORMS];
    uint64_t first[KERNEL_NORMS]; /* its first block among those of all spans */
    uint64_t blocks;
    uint32_t *bad;
    int32_t n;
} kernel_norm;

typedef struct {
    const double *sums[2];
    uint64_t n;
    double *norms;
} kernel_roots;

typedef struct {
    device_update_span s; /* slots that the formula does not use are NULL */
    uint32_t first;       /* its first tile, or block, among those of all spans */
    uint8_t head;         /* WIDE: elements before all arrays reach whole 16 bytes */
    uint8_t lie;          /* of param, grad and slots */
    uint8_t values_lie;   /* WIDE: from the head on, four values have their whole alignment */
} kernel_update_span;

typedef struct {
    simd_update row[DEVICE_ROWS_MAX];
    double lr[DEVICE_ROWS_MAX];
    kernel_update_span span[KERNEL_UPDATES];
    const device_verdict *verdict;
    int64_t base;
    uint32_t tiles;
    int32_t n_rows, n;
} kernel_update;

#endif
