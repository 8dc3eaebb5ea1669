/* attention_plain.cu - causal attention on the GPU by plain arithmetic: float32, and unusual head sizes.
 *
 * One warp per query (or per key, for its gradient) walks over the keys (queries): correct and slow.  Also selects
 * which of the two files handles a call.
 */
#include "attention.h"

enum { WARPS = ATTENTION_WARPS, THREADS = ATTENTION_THREADS };

template <typename T> __device__ inline float warp_dot(const T *a, const T *b, int n)
{
    float sum = 0.0f;
    for (int i = (int)threadIdx.x % WARP; i < n; i += WARP) sum += widen(a[i]) * widen(b[i]);
    return warp_sum(sum);
}

/* The gradient of attention's result times that result: the term softmax's backward pass subtracts. */
template <typename T>
__global__ void dot_kernel(float *dot, const T *att, const T *datt, int length, int heads, int C)
{
    const int query   = (int)blockIdx.x * WARPS + (int)threadIdx.x / WARP;
    const head_view v = view_of((int)blockIdx.y, length, heads, C);
    if (query >= length) return;
    const size_t at = v.att + (size_t)query * C;
    const float sum = warp_dot(att + at, datt + at, v.size);
    if (threadIdx.x % WARP == 0) dot[v.pair + query] = sum;
}

enum { PLAIN_MAX = 8 }; /* values of a head a lane has: heads of at most 256 */

template <typename T>
__global__ void forward_plain_kernel(T *att, float *lse, const T *qkv, int length, int heads, int C)
{
    const int query   = (int)blockIdx.x * WARPS + (int)threadIdx.x / WARP;
    const int lane    = (int)threadIdx.x % WARP;
    const head_view v = view_of((int)blockIdx.y, length, heads, C);
    if (query >= length) return;
    const T *base = qkv + v.qkv, *q = base + (size_t)query * v.ld;
    float out[PLAIN_MAX] = {}, top = -1e30f, sum = 0.0f;
    for (int key = 0; key <= query; key++) {
        const T *k = base + C + (size_t)key * v.ld, *value = k + C;
        const float s = warp_dot(q, k, v.size) * v.scale, most = fmaxf(top, s);
        const float shrink = expf(top - most), p = expf(s - most);
        sum = sum * shrink + p;
        top = most;
        for (int i = 0; i < PLAIN_MAX && i * WARP + lane < v.size; i++)
            out[i] = out[i] * shrink + p * widen(value[i * WARP + lane]);
    }
    for (int i = 0; i < PLAIN_MAX && i * WARP + lane < v.size; i++)
        narrow(out[i] / sum, att + v.att + (size_t)query * C + i * WARP + lane);
    if (lane == 0) lse[v.pair + query] = top + logf(sum);
}

template <typename T>
__global__ void queries_back_plain_kernel(T *dqkv, const float *dot, const T *qkv, const T *datt,
                                          const float *lse, int length, int heads, int C)
{
    const int query   = (int)blockIdx.x * WARPS + (int)threadIdx.x / WARP;
    const int lane    = (int)threadIdx.x % WARP;
    const head_view v = view_of((int)blockIdx.y, length, heads, C);
    if (query >= length) return;
    const T *base = qkv + v.qkv, *q = base + (size_t)query * v.ld;
    const T *dout       = datt + v.att + (size_t)query * C;
    float dq[PLAIN_MAX] = {};
    for (int key = 0; key <= query; key++) {
        const T *k = base + C + (size_t)key * v.ld, *value = k + C;
        const float p = expf(warp_dot(q, k, v.size) * v.scale - lse[v.pair + query]);
        const float d = p * (warp_dot(dout, value, v.size) - dot[v.pair + query]) * v.scale;
        for (int i = 0; i < PLAIN_MAX && i * WARP + lane < v.size; i++)
            dq[i] += d * widen(k[i * WARP + lane]);
    }
    for (int i = 0; i < PLAIN_MAX && i * WARP + lane < v.size; i++)
        narrow(dq[i], dqkv + v.qkv + (size_t)query * v.ld + i * WARP + lane);
}

template <typename T>
__global__ void keys_back_plain_kernel(T *dqkv, const float *dot, const T *qkv, const T *datt,
                                       const float *lse, int length, int heads, int C)
{
    const int key     = (int)blockIdx.x * WARPS + (int)threadIdx.x / WARP;
    const int lane    = (int)threadIdx.x % WARP;
    const head_view v = view_of((int)blockIdx.y, length, heads, C);
    if (key >= length) return;
    const T *base = qkv + v.qkv, *k = base + C + (size_t)key * v.ld, *value = k + C;
    float dk[PLAIN_MAX] = {}, dv[PLAIN_MAX] = {};
    for (int query = key; query < length; query++) {
        const T *q = base + (size_t)query * v.ld, *dout = datt + v.att + (size_t)query * C;
        const float p = expf(warp_dot(q, k, v.size) * v.scale - lse[v.pair + query]);
        const float d = p * (warp_dot(dout, value, v.size) - dot[v.pair + query]) * v.scale;
        for (int i = 0; i < PLAIN_MAX && i * WARP + lane < v.size; i++) {
            dk[i] += d * widen(q[i * WARP + lane]);
            dv[i] += p * widen(dout[i * WARP + lane]);
        }
    }
    T *at = dqkv + v.qkv + (size_t)key * v.ld + C;
    for (int i = 0; i < PLAIN_MAX && i * WARP + lane < v.size; i++) {
        narrow(dk[i], at + i * WARP + lane);
        narrow(dv[i], at + C + i * WARP + lane);
    }
}

/* ---- launchers --------------------------------------------------------------------------------- */
static bool forward_fast(float *, float *, const float *, int, int, int, int, void *)
{
    return false;
}

static bool forward_fast(bf16 *att, float *lse, const bf16 *qkv, int batch, int length, int heads,
                         int C, void *stream)
{
    return attention_fast(att, lse, qkv, batch, length, heads, C, stream);
}

static bool backward_fast(float *, const float *, const float *, const float *, const float *, int,
                          int, int, int, void *)
{
    return false;
}

static bool backward_fast(bf16 *dqkv, const float *dot, const bf16 *qkv, const bf16 *datt,
                          const float *lse, int batch, int length, int heads, int C, void *stream)
{
    return attention_fast_back(dqkv, dot, qkv, datt, lse, batch, length, heads, C, stream);
}

template <typename T>
void attention_forward(T *att, float *lse, const T *qkv, int batch, int length, int heads, int C,
                       void *stream)
{
    if (forward_fast(att, lse, qkv, batch, length, heads, C, stream)) return;
    LAUNCH(forward_plain_kernel<T>, grid_of(length, WARPS, batch * heads), THREADS, stream, att,
           lse, qkv, length, heads, C);
}

template <typename T>
void attention_backward(T *dqkv, float *dot, const T *qkv, const T *att, const T *datt,
                        const float *lse, int batch, int length, int heads, int C, void *stream)
{
    const dim3 grid = grid_of(length, WARPS, batch * heads);
    LAUNCH(dot_kernel<T>, grid, THREADS, stream, dot, att, datt, length, heads, C);
    if (backward_fast(dqkv, dot, qkv, datt, lse, batch, length, heads, C, stream)) return;
    LAUNCH(queries_back_plain_kernel<T>, grid, THREADS, stream, dqkv, dot, qkv, datt, lse, length,
           heads, C);
    LAUNCH(keys_back_plain_kernel<T>, grid, THREADS, stream, dqkv, dot, qkv, datt, lse, length,
           heads, C);
}

#define INSTANCES(T)                                                                               \
    template void attention_forward<T>(T *, float *, const T *, int, int, int, int, void *);       \
    template void attention_backward<T>(T *, float *, const T *, const T *, const T *,             \
                                        const float *, int, int, int, int, void *)
INSTANCES(float);
INSTANCES(bf16);
