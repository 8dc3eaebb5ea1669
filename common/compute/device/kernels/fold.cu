/* fold.cu - folds n arrays into m, in rank order: reduce.h on the device, with the same bits.
 *
 * DESIGN
 * One pass.  Each thread reads its elements of every input, folds them in registers in rank order and writes every
 *            output: n_in reads and n_out writes of the array, on any device's memory.  This one kernel is the one-shot
 *            fold (n inputs, one output), the two-shot fold (a slice, n outputs), the fused call of ranks on one device
 *            and the step of a ring (2 inputs, one output).
 * Width.     16 bytes at a time if all arrays have the same alignment; several in flight per thread to hide latency.
 *            Both ends go element by element, as does everything if alignments differ; memory not aligned to whole
 *            elements is read byte by byte, which is slow and right.
 * Numbers.   16-bit floats widen to float32 and are rounded once.  No fused multiply-add, no flushing to zero, exact
 *            division: the file is compiled with -fmad=false and without faster options.
 */
#include "common/compute/device/kernels/numbers.cuh"

enum fold_op { SUM, AVG, PROD, MIN, MAX, LAND, LOR, LXOR, BAND, BOR, BXOR }; /* as pen_op */

/* ---- the type a fold is done in ---------------------------------------------------------------- */
template <typename T> struct folded {
    typedef T type;
};
template <> struct folded<f16> {
    typedef float type;
};
template <> struct folded<bf16> {
    typedef float type;
};

/* ---- operations on one number ------------------------------------------------------------------ */
__device__ float scaled(float x, double by)
{
    return (float)by * x;
}

__device__ double scaled(double x, double by)
{
    return by * x;
}

/* Truncates toward zero and saturates; NaN: 0. */
template <typename T> __device__ T saturated(double y, double low, T least, double high, T most)
{
    if (y >= high) return most;
    if (y > low) return (T)y;
    return y <= low ? least : (T)0;
}

__device__ int8_t scaled(int8_t x, double by)
{
    return saturated<int8_t>(by * x, -0x1p7, INT8_MIN, 0x1p7, INT8_MAX);
}

__device__ uint8_t scaled(uint8_t x, double by)
{
    return saturated<uint8_t>(by * x, 0, 0, 0x1p8, UINT8_MAX);
}

__device__ int32_t scaled(int32_t x, double by)
{
    return saturated<int32_t>(by * x, -0x1p31, INT32_MIN, 0x1p31, INT32_MAX);
}

__device__ uint32_t scaled(uint32_t x, double by)
{
    return saturated<uint32_t>(by * x, 0, 0, 0x1p32, UINT32_MAX);
}

__device__ int64_t scaled(int64_t x, double by)
{
    return saturated<int64_t>(by * (double)x, -0x1p63, INT64_MIN, 0x1p63, INT64_MAX);
}

__device__ uint64_t scaled(uint64_t x, double by)
{
    return saturated<uint64_t>(by * (double)x, 0, 0, 0x1p64, UINT64_MAX);
}

__device__ float divided(float x, int by)
{
    return x / (float)by;
}

__device__ double divided(double x, int by)
{
    return x / (double)by;
}

/* 64 bits only for numbers that have them: their division is long. */
template <typename T> __device__ T divided(T x, int by)
{
    if (sizeof(T) < 8) return (T)-1 < (T)0 ? (T)((int)x / by) : (T)((unsigned)x / (unsigned)by);
    return (T)-1 < (T)0 ? (T)((int64_t)x / by) : (T)((uint64_t)x / (uint64_t)by);
}

/* ---- one step of a fold ------------------------------------------------------------------------ */

/* Signed sums and products wrap around: computed unsigned. */
template <typename T> struct wrapping {
    typedef T type;
};
template <> struct wrapping<int8_t> {
    typedef uint8_t type;
};
template <> struct wrapping<int32_t> {
    typedef uint32_t type;
};
template <> struct wrapping<int64_t> {
    typedef uint64_t type;
};

template <typename T> __device__ T plus(T x, T y)
{
    typedef typename wrapping<T>::type U;
    return (T)(U)((U)x + (U)y);
}

template <typename T> __device__ T times(T x, T y)
{
    typedef typename wrapping<T>::type U;
    return (T)(U)((U)x * (U)y);
}

/* Bitwise and logical operations exist for integers only; the host never requests them for floats. */
template <typename T> __device__ T logic(int op, T x, T y)
{
    switch (op) {
    case LAND: return (x != 0) & (y != 0);
    case LOR: return (x | y) != 0;
    case LXOR: return (x != 0) ^ (y != 0);
    case BAND: return x & y;
    case BOR: return x | y;
    default: return x ^ y;
    }
}

template <> __device__ float logic(int, float x, float)
{
    return x;
}

template <> __device__ double logic(int, double x, double)
{
    return x;
}

/* The branch on the operation is outside of the loop, and uniform across threads. */
template <typename W, int V> __device__ void fold_step(int op, W (&acc)[V], const W (&x)[V])
{
    switch (op) {
    case SUM:
    case AVG:
#pragma unroll
        for (int i = 0; i < V; i++) acc[i] = plus(acc[i], x[i]);
        return;
    case PROD:
#pragma unroll
        for (int i = 0; i < V; i++) acc[i] = times(acc[i], x[i]);
        return;
    case MIN:
#pragma unroll
        for (int i = 0; i < V; i++) acc[i] = acc[i] < x[i] || acc[i] != acc[i] ? acc[i] : x[i];
        return;
    case MAX:
#pragma unroll
        for (int i = 0; i < V; i++) acc[i] = acc[i] > x[i] || acc[i] != acc[i] ? acc[i] : x[i];
        return;
    default:
#pragma unroll
        for (int i = 0; i < V; i++) acc[i] = logic(op, acc[i], x[i]);
    }
}

/* ---- elements from and to memory ----------------------------------------------------------------- */
template <typename T, int V, typename W>
__device__ void take(const kernel_fold &k, int r, const T (&from)[V], W (&x)[V])
{
    const bool has_scale = k.has_scale && k.scale[r] != 1.0;
#pragma unroll
    for (int i = 0; i < V; i++) x[i] = widen(from[i]);
    if (!has_scale) return;
#pragma unroll
    for (int i = 0; i < V; i++) x[i] = scaled(x[i], k.scale[r]);
}

template <typename T, int V, typename W>
__device__ void finish(const kernel_fold &k, W (&acc)[V], T (&to)[V])
{
    if (k.op == AVG && k.divide_by > 1) {
#pragma unroll
        for (int i = 0; i < V; i++) acc[i] = divided(acc[i], k.divide_by);
    }
    if (k.n_in == 1 && k.op >= LAND && k.op <= LXOR) {
#pragma unroll
        for (int i = 0; i < V; i++) acc[i] = acc[i] != 0;
    }
#pragma unroll
    for (int i = 0; i < V; i++) narrow(acc[i], &to[i]);
}

template <typename T> __device__ void fold_one(const kernel_fold &k, uint64_t i)
{
    typedef typename folded<T>::type W;
    W acc[1], x[1];
    T element[1];
    for (int r = 0; r < k.n_in; r++) {
        element[0] = load_at<T>(k.in[r], i, k.lie);
        take<T, 1, W>(k, r, element, x);
        if (r == 0)
            acc[0] = x[0];
        else
            fold_step<W, 1>(k.op, acc, x);
    }
    finish<T, 1, W>(k, acc, element);
    for (int o = 0; o < k.n_out; o++) store_at<T>(k.out[o], i, k.lie, element[0]);
}

template <typename T, int V, int U>
__device__ void load_wide(const kernel_fold &k, int r, uint64_t first, uint64_t stride,
                          vec<T, V> (&word)[U])
{
    const uint4 *in = (const uint4 *)((const T *)k.in[r] + k.head) + first;
#pragma unroll
    for (int u = 0; u < U; u++) word[u].whole = __ldcs(in + u * stride);
}

/* Folds U wide words of every input, `stride` apart.  N: number of inputs, 0: k.n_in.  All U loads of an input are
 * issued before the first is used; with N known, those of the next inputs too. */
template <typename T, int N, int U>
__device__ void fold_wide(const kernel_fold &k, uint64_t first, uint64_t stride)
{
    typedef typename folded<T>::type W;
    enum { V = 16 / sizeof(T) };
    W acc[U][V], x[V];
    vec<T, V> word[U];
    const int n = N > 0 ? N : k.n_in;
    load_wide<T, V, U>(k, 0, first, stride, word);
#pragma unroll
    for (int u = 0; u < U; u++) take<T, V, W>(k, 0, word[u].element, acc[u]);
#pragma unroll(N > 0 ? N : 1)
    for (int r = 1; r < n; r++) {
        load_wide<T, V, U>(k, r, first, stride, word);
#pragma unroll
        for (int u = 0; u < U; u++) {
            take<T, V, W>(k, r, word[u].element, x);
            fold_step<W, V>(k.op, acc[u], x);
        }
    }
#pragma unroll
    for (int u = 0; u < U; u++) finish<T, V, W>(k, acc[u], word[u].element);
    for (int o = 0; o < k.n_out; o++) {
        uint4 *out = (uint4 *)((T *)k.out[o] + k.head) + first;
#pragma unroll
        for (int u = 0; u < U; u++) __stcs(out + u * stride, word[u].whole);
    }
}

template <typename T, int N> __device__ void fold_all(const kernel_fold &k)
{
    enum { V = 16 / sizeof(T), U = V > 8 ? 1 : V > 4 ? 2 : 4 };
    const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    const uint64_t self    = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const uint64_t words   = k.lie == KERNEL_WIDE ? (k.count - k.head) / V : 0;
    uint64_t i             = self;
    for (; i + (U - 1) * threads < words; i += U * threads) fold_wide<T, N, U>(k, i, threads);
    if (U > 1)
        for (; i < words; i += threads) fold_wide<T, N, 1>(k, i, threads);
    for (i = self; i < k.count - words * V; i += threads)
        fold_one<T>(k, i < k.head ? i : i + words * V);
}

#define FOLD_KERNEL(name, T, N)                                                                    \
    extern "C" __global__ void __launch_bounds__(KERNEL_THREADS)                                   \
        fold_##name##_##N(const __grid_constant__ kernel_fold k)                                   \
    {                                                                                              \
        fold_all<T, N>(k);                                                                         \
    }
/* clang-format off */
FOLD_KERNEL(f32, float, 2) FOLD_KERNEL(f16, f16, 2) FOLD_KERNEL(bf16, bf16, 2)
FOLD_KERNEL(f32, float, 0) FOLD_KERNEL(f16, f16, 0) FOLD_KERNEL(bf16, bf16, 0) FOLD_KERNEL(f64, double, 0)
FOLD_KERNEL(i8, int8_t, 0) FOLD_KERNEL(u8, uint8_t, 0)
FOLD_KERNEL(i32, int32_t, 0) FOLD_KERNEL(u32, uint32_t, 0)
FOLD_KERNEL(i64, int64_t, 0) FOLD_KERNEL(u64, uint64_t, 0)
    /* clang-format on */
