/* lanes.cuh - the sum of squares of a block of 4,096 elements, in the fixed tree of simd_level.norm.
 *
 * One thread adds a whole block: sixteen sums that do not depend on each other hide the adder's latency, threads need not
 * meet, and 64 bytes at a time are whole sectors of memory.
 */
#ifndef COMMON_DEVICE_KERNELS_LANES_CUH
#define COMMON_DEVICE_KERNELS_LANES_CUH

#include "common/compute/device/kernels/numbers.cuh"

enum { LANES = 16 };

struct lanes {
    double sum[LANES];

    __device__ void clear()
    {
#pragma unroll
        for (int j = 0; j < LANES; j++) sum[j] = 0;
    }

    /* The square of a float is exact in double. */
    __device__ void add(const float (&x)[LANES])
    {
#pragma unroll
        for (int j = 0; j < LANES; j++) sum[j] += (double)x[j] * (double)x[j];
    }

    /* The last elements of a block: fewer than LANES. */
    __device__ void add_some(const float (&x)[LANES], int n)
    {
#pragma unroll
        for (int j = 0; j < LANES; j++)
            if (j < n) sum[j] += (double)x[j] * (double)x[j];
    }

    template <int width> __device__ void fold()
    {
#pragma unroll
        for (int j = 0; j < width; j++) sum[j] = sum[2 * j] + sum[2 * j + 1];
    }

    __device__ double total()
    {
        fold<8>();
        fold<4>();
        fold<2>();
        fold<1>();
        return sum[0];
    }
};

/* LANES elements from the i-th on, of n. */
__device__ inline void load_lanes(const float *x, uint64_t i, uint64_t n, int lie,
                                  float (&to)[LANES])
{
    if (lie == KERNEL_WIDE && i + LANES <= n) {
#pragma unroll
        for (int q = 0; q < LANES / 4; q++) {
            vec<float, 4> word;
            word.whole = *((const uint4 *)(x + i) + q);
#pragma unroll
            for (int e = 0; e < 4; e++) to[4 * q + e] = word.element[e];
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < LANES; j++) to[j] = i + j < n ? load_at<float>(x, i + j, lie) : 0;
}

__device__ inline int lie_of(const float *x)
{
    return (uintptr_t)x % 16 == 0              ? KERNEL_WIDE
           : (uintptr_t)x % sizeof(float) == 0 ? KERNEL_ELEMENTS
                                               : KERNEL_BYTES;
}

__device__ inline double block_sum(const float *x, uint64_t n, int lie)
{
    lanes l;
    float some[LANES];
    uint64_t i = 0;
    l.clear();
#pragma unroll 4
    for (; i + LANES <= n; i += LANES) {
        load_lanes(x, i, n, lie, some);
        l.add(some);
    }
    if (i < n) {
        load_lanes(x, i, n, lie, some);
        l.add_some(some, (int)(n - i));
    }
    return l.total();
}

#endif
