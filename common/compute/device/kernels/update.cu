/* update.cu - one step of an update rule over many spans in one pass: a kernel for each formula.
 *
 * DESIGN
 * Count.     The device selects the scalars by its own count of updates, and reads the gradient's multiplier, from the
 *            verdict: the host enqueues this before it knows whether the step is applied.
 * Traffic.   16 bytes at a time of parameter, gradient and the slots in use, where all of them reach whole 16 bytes
 *            together; else element by element.  The new values are rounded to 16 bits in the same pass.
 * Numbers.   The formulas are those of the host's levels (formulas.inc), compiled with -fmad=false, and with exact
 *            division and square roots.
 */
#include "common/compute/arithmetic.h"
#include "common/compute/device/kernels/kernels_step.h"
#include "common/compute/device/kernels/lanes.cuh"

#define FORMULA static __device__ inline
#define POWER   static __device__ __attribute__((noinline))
#include "common/compute/simd/formulas.inc"

typedef void formula(const simd_update *k, unsigned how, float grad, float *p, float *a, float *b,
                     float *c);

/* What one step does to one span. */
struct step {
    simd_update k;
    double lr;
    unsigned how;
    bool is_still; /* ftrl divides by its rate: at 0 it changes nothing */
};

/* ---- the scalars --------------------------------------------------------------------------------- */

static __device__ unsigned how_of(const simd_update &k)
{
    unsigned how = 0;
    if (k.formula == SIMD_SGD_MOMENTUM && k.nesterov) how |= HOW_NESTEROV;
    if (k.formula == SIMD_RMSPROP && k.momentum != 0.0f) how |= HOW_MOMENTUM;
    if (k.formula == SIMD_RMSPROP && k.centered) how |= HOW_CENTERED;
    if (k.formula == SIMD_FTRL && k.power == 0.5f) how |= HOW_ROOT;
    return how;
}

/* False: this step changes nothing.  A count without scalars is the host's error, which ends all work. */
static __device__ bool begin(const kernel_update &k, step *t)
{
    if (k.verdict->outcome != PEN_APPLIED) return false;
    const int64_t row = k.verdict->applied - k.base - 1;
    if (row < 0 || row >= k.n_rows) __trap();
    t->k        = k.row[row];
    t->lr       = k.lr[row];
    t->k.gscale = (float)k.verdict->gscale;
    t->how      = how_of(t->k);
    t->is_still = t->k.formula == SIMD_FTRL && t->k.rate == 0.0f;
    return true;
}

/* Also the rate of LAMB, which depends on the tensor. */
static __device__ const kernel_update_span &find(const kernel_update &k, uint64_t tile, int *at,
                                                 step *t)
{
    while (*at + 1 < k.n && k.span[*at + 1].first <= tile) ++*at;
    const kernel_update_span &s = k.span[*at];
    if (s.s.norms != nullptr)
        t->k.rate = (float)(t->lr * step_trust_ratio(s.s.norms[0], s.s.norms[1]));
    return s;
}

/* ---- values --------------------------------------------------------------------------------------- */

template <typename T>
static __device__ void store_as(const kernel_update_span &s, uint64_t i, float p)
{
    T value;
    narrow(p, &value);
    store_at<T>(s.s.values, i, s.values_lie, value);
}

static __device__ void store_value(const kernel_update_span &s, uint64_t i, float p)
{
    if (s.s.values_dtype == PEN_F32) store_as<float>(s, i, p);
    if (s.s.values_dtype == PEN_F16) store_as<f16>(s, i, p);
    if (s.s.values_dtype == PEN_BF16) store_as<bf16>(s, i, p);
}

template <typename T>
static __device__ void store_two(const kernel_update_span &s, uint64_t i, const vec<float, 4> &p)
{
    union {
        uint2 whole;
        T element[4];
    } four;
#pragma unroll
    for (int e = 0; e < 4; e++) narrow(p.element[e], &four.element[e]);
    *(uint2 *)((T *)s.s.values + i) = four.whole;
}

static __device__ void store_values(const kernel_update_span &s, uint64_t i, const vec<float, 4> &p)
{
    if (s.values_lie != KERNEL_WIDE) {
        for (int e = 0; e < 4; e++) store_value(s, i + e, p.element[e]);
        return;
    }
    if (s.s.values_dtype == PEN_F32) *(uint4 *)((float *)s.s.values + i) = p.whole;
    if (s.s.values_dtype == PEN_F16) store_two<f16>(s, i, p);
    if (s.s.values_dtype == PEN_BF16) store_two<bf16>(s, i, p);
}

/* ---- elements ------------------------------------------------------------------------------------- */

template <formula *one>
static __device__ void update_one(const kernel_update_span &s, const step &t, uint64_t i)
{
    float p = load_at<float>(s.s.param, i, s.lie), slot[3] = {0, 0, 0};
#pragma unroll
    for (int k = 0; k < 3; k++)
        if (s.s.slot[k] != nullptr) slot[k] = load_at<float>(s.s.slot[k], i, s.lie);
    if (!t.is_still)
        one(&t.k, t.how, load_at<float>(s.s.grad, i, s.lie), &p, &slot[0], &slot[1], &slot[2]);
#pragma unroll
    for (int k = 0; k < 3; k++)
        if (s.s.slot[k] != nullptr) store_at<float>(s.s.slot[k], i, s.lie, slot[k]);
    store_at<float>(s.s.param, i, s.lie, p);
    if (s.s.values != nullptr) store_value(s, i, p);
}

typedef vec<float, 4> word;

static __device__ word load_word(const float *from, uint64_t i)
{
    word w;
    w.whole = __ldcs((const uint4 *)(from + i));
    return w;
}

/* U times four elements, `stride` apart from the i-th on.  All are loaded before the first is used. */
template <formula *one, int U>
static __device__ void update_words(const kernel_update_span &s, const step &t, uint64_t i,
                                    uint64_t stride)
{
    word p[U], grad[U], slot[3][U] = {};
#pragma unroll
    for (int u = 0; u < U; u++) {
        grad[u] = load_word(s.s.grad, i + u * stride);
        p[u]    = load_word(s.s.param, i + u * stride);
    }
#pragma unroll
    for (int k = 0; k < 3; k++)
        if (s.s.slot[k] != nullptr)
#pragma unroll
            for (int u = 0; u < U; u++) slot[k][u] = load_word(s.s.slot[k], i + u * stride);
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (!t.is_still)
                one(&t.k, t.how, grad[u].element[e], &p[u].element[e], &slot[0][u].element[e],
                    &slot[1][u].element[e], &slot[2][u].element[e]);
#pragma unroll
    for (int k = 0; k < 3; k++)
        if (s.s.slot[k] != nullptr)
#pragma unroll
            for (int u = 0; u < U; u++)
                __stcs((uint4 *)(s.s.slot[k] + i + u * stride), slot[k][u].whole);
#pragma unroll
    for (int u = 0; u < U; u++) {
        __stcs((uint4 *)(s.s.param + i + u * stride), p[u].whole);
        if (s.s.values != nullptr) store_values(s, i + u * stride, p[u]);
    }
}

/* ---- tiles ---------------------------------------------------------------------------------------- */

/* Two ranges of elements of a span. */
struct ranges {
    uint64_t at[2], n[2];
};

template <formula *one>
static __device__ void update_ranges(const kernel_update_span &s, const step &t, const ranges &r)
{
    for (uint64_t j = threadIdx.x; j < r.n[0] + r.n[1]; j += blockDim.x)
        update_one<one>(s, t, j < r.n[0] ? r.at[0] + j : r.at[1] + (j - r.n[0]));
}

/* The first tile of a span has its head, the last its tail. */
template <formula *one>
static __device__ void update_tile(const kernel_update_span &s, const step &t, uint64_t tile)
{
    const uint64_t begin = tile * KERNEL_TILE, end = begin + KERNEL_TILE;
    const uint64_t stride = 4 * (uint64_t)blockDim.x;
    ranges r              = {{begin, 0}, {(end < s.s.n ? end : s.s.n) - begin, 0}};
    if (s.lie == KERNEL_WIDE) {
        const uint64_t whole = (s.s.n - s.head) / 4 * 4, stop = end < whole ? end : whole;
        uint64_t i = begin + 4 * (uint64_t)threadIdx.x;
        for (; i + stride < stop; i += 2 * stride) update_words<one, 2>(s, t, s.head + i, stride);
        if (i < stop) update_words<one, 1>(s, t, s.head + i, stride);
        r.at[1] = s.head + whole;
        r.n[0]  = tile == 0 ? s.head : 0;
        r.n[1]  = end >= whole ? s.s.n - r.at[1] : 0;
    }
    update_ranges<one>(s, t, r);
}

template <formula *one> static __device__ void update_all(const kernel_update &k)
{
    step t;
    int at = 0;
    if (!begin(k, &t)) return;
    for (uint64_t tile = blockIdx.x; tile < k.tiles; tile += gridDim.x) {
        const kernel_update_span &s = find(k, tile, &at, &t);
        update_tile<one>(s, t, tile - s.first);
    }
}

#define UPDATE_KERNEL(name)                                                                        \
    extern "C" __global__ void __launch_bounds__(KERNEL_UPDATE_THREADS)                            \
        update_##name(const __grid_constant__ kernel_update k)                                     \
    {                                                                                              \
        update_all<name##_one>(k);                                                                 \
    }
/* clang-format off */
UPDATE_KERNEL(sum) UPDATE_KERNEL(sgd) UPDATE_KERNEL(sgd_momentum) UPDATE_KERNEL(adam) UPDATE_KERNEL(adagrad)
UPDATE_KERNEL(rmsprop) UPDATE_KERNEL(adadelta) UPDATE_KERNEL(adamax) UPDATE_KERNEL(ftrl) UPDATE_KERNEL(lion)
UPDATE_KERNEL(lamb)
    /* clang-format on */

    /* ---- the first pass of LAMB ----------------------------------------------------------------------- */

    /* At most LANES elements; the loop that calls it has a branch for fewer. */
    static __device__ void measure_lanes(const kernel_update_span &s, const step &t, uint64_t i,
                                         int n, lanes *param, lanes *update)
{
    float p[LANES], raw[LANES];
#pragma unroll
    for (int j = 0; j < LANES; j++) {
        p[j] = raw[j] = 0;
        if (j >= n) continue;
        float a = load_at<float>(s.s.slot[0], i + j, s.lie);
        float b = load_at<float>(s.s.slot[1], i + j, s.lie);
        p[j]    = load_at<float>(s.s.param, i + j, s.lie);
        raw[j]  = lamb_measure_one(&t.k, load_at<float>(s.s.grad, i + j, s.lie), p[j], &a, &b);
        store_at<float>(s.s.slot[0], i + j, s.lie, a);
        store_at<float>(s.s.slot[1], i + j, s.lie, b);
    }
    param->add_some(p, n);
    update->add_some(raw, n);
}

/* A thread takes a whole block of a span. */
extern "C" __global__ void __launch_bounds__(KERNEL_NORM_THREADS)
    update_lamb_norms(const __grid_constant__ kernel_update k)
{
    const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    step t;
    int at = 0;
    if (!begin(k, &t)) return;
    for (uint64_t b = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; b < k.tiles; b += threads) {
        const kernel_update_span &s = find(k, b, &at, &t);
        const uint64_t block = b - s.first, from = block * SIMD_BLOCK;
        const uint64_t end = s.s.n - from < SIMD_BLOCK ? s.s.n : from + SIMD_BLOCK;
        lanes param, update;
        param.clear();
        update.clear();
        for (uint64_t i = from; i < end; i += LANES)
            measure_lanes(s, t, i, end - i < LANES ? (int)(end - i) : LANES, &param, &update);
        s.s.param_sums[block]  = param.total();
        s.s.update_sums[block] = update.total();
    }
}
