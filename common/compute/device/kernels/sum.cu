/* sum.cu - adds gradients of micro-batches in float32, and rounds the sum to 16 bits once.
 *
 * Eight (float32: four) elements at a time where both arrays reach whole 16 bytes together; both ends go element by
 * element.  Compiled with -fmad=false: the bits are those of simd.h.
 */
#include "common/compute/device/kernels/numbers.cuh"

template <typename T> __device__ void accumulate_wide(const kernel_sum &k, uint64_t at)
{
    enum { V = 16 / sizeof(T) };
    vec<T, V> in;
    beside<T> sum;
    in.whole = __ldcs((const uint4 *)((const T *)k.numbers + at));
    if (!k.is_first) sum.load(k.sum + at);
#pragma unroll
    for (int i = 0; i < V; i++)
        sum[i] = k.is_first ? widen(in.element[i]) : sum[i] + widen(in.element[i]);
    sum.store(k.sum + at);
}

template <typename T> __device__ void accumulate_one(const kernel_sum &k, uint64_t i)
{
    const float x = widen(load_at<T>(k.numbers, i, k.lie));
    store_at<float>(k.sum, i, k.lie, k.is_first ? x : load_at<float>(k.sum, i, k.lie) + x);
}

template <typename T> __device__ void narrow_wide(const kernel_sum &k, uint64_t at)
{
    enum { V = 16 / sizeof(T) };
    vec<T, V> out;
    beside<T> sum;
    sum.load(k.sum + at);
#pragma unroll
    for (int i = 0; i < V; i++) narrow(sum[i], &out.element[i]);
    __stcs((uint4 *)((T *)k.numbers + at), out.whole);
}

template <typename T> __device__ void narrow_one(const kernel_sum &k, uint64_t i)
{
    T y;
    narrow(load_at<float>(k.sum, i, k.lie), &y);
    store_at<T>(k.numbers, i, k.lie, y);
}

#define SUM_KERNEL(what, name, T)                                                                  \
    extern "C" __global__ void __launch_bounds__(KERNEL_THREADS)                                   \
        what##_##name(const __grid_constant__ kernel_sum k)                                        \
    {                                                                                              \
        const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;                                 \
        const uint64_t self = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, V = 16 / sizeof(T); \
        const uint64_t head  = k.lie == KERNEL_WIDE ? k.head : k.count;                            \
        const uint64_t words = (k.count - head) / V, tail = head + words * V;                      \
        for (uint64_t i = self; i < words; i += threads) what##_wide<T>(k, head + i * V);          \
        for (uint64_t i = self; i < head; i += threads) what##_one<T>(k, i);                       \
        for (uint64_t i = tail + self; i < k.count; i += threads) what##_one<T>(k, i);             \
    }
/* clang-format off */
SUM_KERNEL(accumulate, f32, float) SUM_KERNEL(accumulate, f16, f16) SUM_KERNEL(accumulate, bf16, bf16)
SUM_KERNEL(narrow, f16, f16) SUM_KERNEL(narrow, bf16, bf16)
    /* clang-format on */
