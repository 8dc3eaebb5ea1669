/* step.cu - the rest of a step on the device: weighed gradients, sums of squares, the decision, and LAMB's norms.
 *
 * The order of every sum is that of the host.
 */
#include "common/compute/arithmetic.h"
#include "common/compute/device/kernels/kernels_step.h"
#include "common/compute/device/kernels/lanes.cuh"

/* ---- a rank's share of a sum ---------------------------------------------------------------------- */

/* As on the wire: rounded to R. */
template <typename T, typename R> struct wire {
    static __device__ float of(T x)
    {
        R r;
        narrow(x, &r);
        return widen(r);
    }
};
template <typename T> struct wire<T, T> {
    static __device__ float of(T x)
    {
        return widen(x);
    }
};

static __device__ bool is_finite(float x)
{
    return (__float_as_uint(x) & 0x7fffffffu) < 0x7f800000u;
}

static __device__ void note(const kernel_weigh &k, uint64_t i, float x, uint32_t *lowest)
{
    if (is_finite(x)) return;
    const uint64_t chunk = k.w.chunk + (k.w.chunk_elements > 0 ? i / k.w.chunk_elements : 0);
    if (chunk < *lowest) *lowest = (uint32_t)chunk;
}

template <typename T, typename R>
static __device__ void weigh_wide(const kernel_weigh &k, float weight, uint64_t at,
                                  uint32_t *lowest)
{
    enum { V = 16 / sizeof(T) };
    vec<T, V> in;
    beside<T> out;
    in.whole = __ldcs((const uint4 *)((const T *)k.w.grad + at));
#pragma unroll
    for (int i = 0; i < V; i++) {
        out[i] = weight * wire<T, R>::of(in.element[i]);
        note(k, at + i, out[i], lowest);
    }
    out.store(k.w.to + at);
}

template <typename T, typename R>
static __device__ void weigh_one(const kernel_weigh &k, float weight, uint64_t i, uint32_t *lowest)
{
    const float x = weight * wire<T, R>::of(load_at<T>(k.w.grad, i, k.lie));
    note(k, i, x, lowest);
    store_at<float>(k.w.to, i, k.lie, x);
}

template <typename T, typename R> static __device__ void weigh(const kernel_weigh &k)
{
    enum { V = 16 / sizeof(T) };
    const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    const uint64_t self    = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const uint64_t head    = k.lie == KERNEL_WIDE ? k.head : k.w.n;
    const uint64_t words = (k.w.n - head) / V, tail = head + words * V;
    const float weight = (float)k.w.weight;
    uint32_t lowest    = DEVICE_ALL_FINITE;
    for (uint64_t i = self; i < words; i += threads)
        weigh_wide<T, R>(k, weight, head + i * V, &lowest);
    for (uint64_t i = self; i < head; i += threads) weigh_one<T, R>(k, weight, i, &lowest);
    for (uint64_t i = tail + self; i < k.w.n; i += threads) weigh_one<T, R>(k, weight, i, &lowest);
    if (lowest != DEVICE_ALL_FINITE) atomicMin(k.w.bad, lowest);
}

#define WEIGH_KERNEL(in, T, as, R)                                                                 \
    extern "C" __global__ void __launch_bounds__(KERNEL_THREADS)                                   \
        weigh_##in##_##as(const __grid_constant__ kernel_weigh k)                                  \
    {                                                                                              \
        weigh<T, R>(k);                                                                            \
    }
/* clang-format off */
WEIGH_KERNEL(f32, float, f32, float) WEIGH_KERNEL(f32, float, f16, f16) WEIGH_KERNEL(f32, float, bf16, bf16)
WEIGH_KERNEL(f16, f16, f16, f16) WEIGH_KERNEL(bf16, bf16, bf16, bf16)
    /* clang-format on */

    /* Without a gradient: zeros; without weight: minus zeros. */
    extern "C" __global__ void __launch_bounds__(KERNEL_THREADS)
        weigh_none(const __grid_constant__ kernel_weigh k)
{
    const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    const float x          = k.w.weight == 0 ? -0.0f : 0.0f;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < k.w.n; i += threads)
        store_at<float>(k.w.to, i, k.lie, x);
}

/* ---- sums of squares ------------------------------------------------------------------------------ */

extern "C" __global__ void __launch_bounds__(KERNEL_NORM_THREADS)
    norm_blocks(const __grid_constant__ kernel_norm k)
{
    const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    int at                 = 0;
    for (uint64_t b = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; b < k.blocks; b += threads) {
        while (at + 1 < k.n && k.first[at + 1] <= b) at++;
        const device_norm_span &s = k.span[at];
        const uint64_t block = b - k.first[at], from = block * SIMD_BLOCK;
        const uint64_t n = s.n - from < SIMD_BLOCK ? s.n - from : (uint64_t)SIMD_BLOCK;
        const double sum = block_sum(s.x + from, n, lie_of(s.x));
        s.sums[block]    = sum;
        if (!(sum - sum == 0)) atomicMin(k.bad, s.chunk);
    }
}

/* One thread of a block goes on, when all have come.  Tests run the threads one after the other: the last one. */
#ifdef __CUDACC__
#define KERNEL_GOES_ON() (__syncthreads(), threadIdx.x == 0)
#else
#define KERNEL_GOES_ON() (threadIdx.x == blockDim.x - 1)
#endif

/* The lanes of arithmetic.h, by SUM_LANES threads. */
static __device__ void sum_to_lanes(const double *x, uint64_t n, double *lane)
{
    double sum = 0;
#pragma unroll 8
    for (uint64_t i = threadIdx.x; i < n; i += SUM_LANES) sum += x[i];
    lane[threadIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(SUM_LANES)
    roots(const __grid_constant__ kernel_roots k)
{
    __shared__ double lane[SUM_LANES];
    sum_to_lanes(blockIdx.x == 0 ? k.sums[0] : k.sums[1], k.n, lane);
    if (KERNEL_GOES_ON()) k.norms[blockIdx.x] = sqrt(sum_of_lanes(lane));
}

/* ---- the decision --------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(SUM_LANES)
    decide(const __grid_constant__ device_decide d)
{
    __shared__ double lane[SUM_LANES];
    sum_to_lanes(d.sums, d.n_sums, lane);
    if (!KERNEL_GOES_ON()) return;
    device_verdict v;
    v.outcome   = DEVICE_ABANDONED;
    v.bad_chunk = *d.bad;
    v.own_bad   = *d.own_bad;
    v.reserved  = 0;
    v.norm      = 0;
    v.clip      = 1;
    v.gscale    = 0;
    v.applied   = d.last != nullptr ? d.last->applied : 0;
    if (d.stop == nullptr || *(const volatile uint32_t *)d.stop == 0) {
        const step_decision made = step_decide(sum_of_lanes(lane), v.bad_chunk != DEVICE_ALL_FINITE,
                                               d.weight_sum, d.loss_scale, d.clip, d.skip);
        v.outcome                = made.outcome;
        v.norm                   = made.norm;
        v.clip                   = made.clip;
        v.gscale                 = made.gscale;
        v.applied += made.outcome == PEN_APPLIED ? 1 : 0;
    }
    *d.verdict = v;
}
