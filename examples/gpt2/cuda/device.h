/* device.h - shared by the .cu files of gpt2: 16-bit numbers, 16-byte packs, sums over a warp.
 *
 * No CUDA header is included: nvcc knows the language, and tests/gpu/cuda_on_host.h emulates it on the host, where a
 * test compiles these files with a C++ compiler.  PTX-only operations have a plain equivalent for that.
 */
#ifndef GPT2_CUDA_DEVICE_H
#define GPT2_CUDA_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define LAUNCH(kernel, grid, block, stream, ...)                                                   \
    kernel<<<grid, block, 0, (cudaStream_t)(stream)>>>(__VA_ARGS__)
#endif

enum { WARP = 32 };

struct bf16 {
    uint16_t bits;
};

__device__ inline float widen(float x)
{
    return x;
}

__device__ inline float widen(bf16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}

__device__ inline void narrow(float x, float *y)
{
    *y = x;
}

/* Rounds to nearest even; NaN stays NaN. */
__device__ inline void narrow(float x, bf16 *y)
{
#ifdef __CUDACC__
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y->bits) : "f"(x));
#else
    const uint32_t bits = __float_as_uint(x), odd = bits >> 16 & 1u;
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    y->bits           = (uint16_t)(is_nan ? bits >> 16 | 0x40u : (bits + 0x7fffu + odd) >> 16);
#endif
}

/* 16 bytes: the most a thread reads or writes at once. */
template <typename T> struct alignas(16) pack {
    enum { N = 16 / sizeof(T) };
    T x[N];
};

template <typename T> __device__ inline pack<T> load(const T *at)
{
    return *(const pack<T> *)at;
}

template <typename T> __device__ inline void store(T *at, const pack<T> &p)
{
    *(pack<T> *)at = p;
}

/* All lanes get the sum, computed in the same order. */
__device__ inline float warp_sum(float x)
{
    for (int far = WARP / 2; far > 0; far /= 2) x += __shfl_xor_sync(0xffffffffu, x, far);
    return x;
}

__device__ inline float warp_max(float x)
{
    for (int far = WARP / 2; far > 0; far /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, far));
    return x;
}

#endif
