/* numbers.cuh - shared by the kernels: 16-bit floats, and numbers at any alignment.
 *
 * A 16-bit float widens to float32 without loss and is rounded to nearest even once.
 */
#ifndef COMMON_DEVICE_KERNELS_NUMBERS_CUH
#define COMMON_DEVICE_KERNELS_NUMBERS_CUH

#include "common/compute/device/kernels/kernels.h"

#ifdef __CUDACC__ /* otherwise tests compile the kernels for the host and define these */
#define KERNEL_F32_OF_F16(y, bits) asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits))
#define KERNEL_F16_OF_F32(bits, x) asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x))
#endif

struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};

template <typename T> __device__ T widen(T x)
{
    return x;
}

__device__ inline float widen(f16 x)
{
    float y;
    KERNEL_F32_OF_F16(y, x.bits);
    return y;
}

__device__ inline float widen(bf16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}

template <typename T> __device__ void narrow(T x, T *y)
{
    *y = x;
}

__device__ inline void narrow(float x, f16 *y)
{
    KERNEL_F16_OF_F32(y->bits, x);
}

__device__ inline void narrow(float x, bf16 *y)
{
    const uint32_t bits = __float_as_uint(x), odd = bits >> 16 & 1u;
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    y->bits           = (uint16_t)(is_nan ? bits >> 16 | 0x40u : (bits + 0x7fffu + odd) >> 16);
}

template <typename T, int V> union vec {
    uint4 whole;
    T element[V];
};

/* The float32 numbers that match one whole vector of T. */
template <typename T> struct beside {
    enum { V = 16 / sizeof(T), WORDS = V / 4 };
    vec<float, 4> word[WORDS];
    __device__ float &operator[](int i)
    {
        return word[i / 4].element[i % 4];
    }
    __device__ void load(const float *from)
    {
#pragma unroll
        for (int i = 0; i < WORDS; i++) word[i].whole = __ldcs((const uint4 *)from + i);
    }
    __device__ void store(float *to)
    {
#pragma unroll
        for (int i = 0; i < WORDS; i++) __stcs((uint4 *)to + i, word[i].whole);
    }
};

template <typename T> __device__ T load_at(const void *from, uint64_t i, int lie)
{
    if (lie != KERNEL_BYTES) return ((const T *)from)[i];
    T x;
    for (unsigned b = 0; b < sizeof(T); b++)
        ((unsigned char *)&x)[b] = ((const unsigned char *)from)[i * sizeof(T) + b];
    return x;
}

template <typename T> __device__ void store_at(void *to, uint64_t i, int lie, T x)
{
    if (lie != KERNEL_BYTES) {
        ((T *)to)[i] = x;
        return;
    }
    for (unsigned b = 0; b < sizeof(T); b++)
        ((unsigned char *)to)[i * sizeof(T) + b] = ((const unsigned char *)&x)[b];
}

#endif
