/* rows.cu - GPT-2 on the GPU: everything except matrix products and attention.
 *
 * A thread reads and writes 16 bytes of a row; a warp has one row of the residual stream.  Sums over rows, for
 * gradients of biases and norms, are computed in parts that are added in order: the same bits every time.  T is float or
 * bf16; arithmetic is float32.
 */
#include "launch.h"
#include "device.h"

enum { THREADS = 256, WARPS = THREADS / WARP, PARTS = GPT2_CUDA_PARTS };

static unsigned blocks_for(size_t n, size_t per_block)
{
    return (unsigned)((n + per_block - 1) / per_block);
}

/* ---- embeddings -------------------------------------------------------------------------------- */
template <typename T>
__global__ void embed_kernel(T *out, const int32_t *tokens, const T *wte, const T *wpe, size_t rows,
                             int length, int C)
{
    const size_t packs = (size_t)C / pack<T>::N;
    const size_t i     = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * packs) return;
    const size_t row = i / packs, c = i % packs * pack<T>::N;
    const pack<T> token = load(wte + (size_t)tokens[row] * C + c);
    const pack<T> place = load(wpe + row % length * C + c);
    pack<T> sum;
    for (int j = 0; j < pack<T>::N; j++) narrow(widen(token.x[j]) + widen(place.x[j]), &sum.x[j]);
    store(out + row * C + c, sum);
}

/* One block per distinct token: rows[first[b] .. first[b + 1]) of the batch hold it. */
template <typename T>
__global__ void tokens_back_kernel(T *grad, const T *dx, const int32_t *token, const int32_t *first,
                                   const int32_t *row, int C)
{
    const int b = (int)blockIdx.x;
    for (int c = (int)threadIdx.x; c < C; c += (int)blockDim.x) {
        float sum = 0.0f;
        for (int i = first[b]; i < first[b + 1]; i++) sum += widen(dx[(size_t)row[i] * C + c]);
        T *at = grad + (size_t)token[b] * C + c;
        narrow(widen(*at) + sum, at);
    }
}

template <typename T>
__global__ void places_back_kernel(T *grad, const T *dx, int batch, int length, int block, int C,
                                   int add)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (size_t)block * C) return;
    const size_t t = i / C, c = i % C;
    float sum = 0.0f;
    for (int b = 0; b < batch && t < (size_t)length; b++)
        sum += widen(dx[((size_t)b * length + t) * C + c]);
    narrow(add ? widen(grad[i]) + sum : sum, grad + i);
}

/* ---- layer norm -------------------------------------------------------------------------------- */
/* sum = x + d if d is given, and the norm of it. */
template <typename T>
__global__ void norm_kernel(T *out, T *sum, float *mean, float *rstd, const T *x, const T *d,
                            const T *w, const T *b, size_t rows, int C)
{
    const int lane = (int)threadIdx.x % WARP, N = pack<T>::N;
    const size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= rows) return;
    const T *in = x + row * C;
    float all = 0.0f, squares = 0.0f;
    for (int c = lane * N; c < C; c += WARP * N) {
        pack<T> p = load(in + c);
        if (d) {
            const pack<T> q = load(d + row * C + c);
            for (int j = 0; j < N; j++) narrow(widen(p.x[j]) + widen(q.x[j]), &p.x[j]);
            store(sum + row * C + c, p);
        }
        for (int j = 0; j < N; j++) all += widen(p.x[j]);
    }
    if (d) in = sum + row * C; /* each lane reads what it wrote */
    const float m = warp_sum(all) / C;
    for (int c = lane * N; c < C; c += WARP * N) {
        const pack<T> p = load(in + c);
        for (int j = 0; j < N; j++) squares += (widen(p.x[j]) - m) * (widen(p.x[j]) - m);
    }
    const float s = rsqrtf(warp_sum(squares) / C + 1e-5f);
    for (int c = lane * N; c < C; c += WARP * N) {
        const pack<T> p = load(in + c), scale = load(w + c), shift = load(b + c);
        pack<T> y;
        for (int j = 0; j < N; j++)
            narrow((widen(p.x[j]) - m) * s * widen(scale.x[j]) + widen(shift.x[j]), &y.x[j]);
        store(out + row * C + c, y);
    }
    if (lane == 0) {
        mean[row] = m;
        rstd[row] = s;
    }
}

/* dx = plus + the gradient; plus NULL is 0. */
template <typename T>
__global__ void norm_back_kernel(T *dx, const T *plus, const T *dy, const T *x, const float *mean,
                                 const float *rstd, const T *w, size_t rows, int C)
{
    const int lane = (int)threadIdx.x % WARP, N = pack<T>::N;
    const size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= rows) return;
    const float m = mean[row], s = rstd[row];
    float sum = 0.0f, dot = 0.0f;
    for (int c = lane * N; c < C; c += WARP * N) {
        const pack<T> p = load(x + row * C + c), g = load(dy + row * C + c), scale = load(w + c);
        for (int j = 0; j < N; j++) {
            const float d = widen(g.x[j]) * widen(scale.x[j]);
            sum += d;
            dot += d * (widen(p.x[j]) - m) * s;
        }
    }
    sum = warp_sum(sum) / C;
    dot = warp_sum(dot) / C;
    for (int c = lane * N; c < C; c += WARP * N) {
        const pack<T> p = load(x + row * C + c), g = load(dy + row * C + c), scale = load(w + c);
        pack<T> more = {}, y;
        if (plus) more = load(plus + row * C + c);
        for (int j = 0; j < N; j++) {
            const float d = widen(g.x[j]) * widen(scale.x[j]), hat = (widen(p.x[j]) - m) * s;
            narrow(widen(more.x[j]) + s * (d - sum - hat * dot), &y.x[j]);
        }
        store(dx + row * C + c, y);
    }
}

/* ---- sums over rows ---------------------------------------------------------------------------- */
/* part[blockIdx.y][column] = the sum of this part's rows of d; with x, of d * (x - mean) * rstd. */
template <typename T>
__global__ void columns_kernel(float *part, const T *d, const T *x, const float *mean,
                               const float *rstd, size_t rows, int columns, unsigned parts)
{
    __shared__ float sums[WARPS][WARP];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int c       = (int)blockIdx.x * WARP + lane;
    const size_t each = (rows + parts - 1) / parts, first = each * blockIdx.y;
    const size_t end = first + each < rows ? first + each : rows;
    float sum        = 0.0f;
    for (size_t r = first + warp; r < end && c < columns; r += WARPS) {
        const float g = widen(d[r * columns + c]);
        sum += x ? g * (widen(x[r * columns + c]) - mean[r]) * rstd[r] : g;
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || c >= columns) return;
    for (int i = 1; i < WARPS; i++) sum += sums[i][lane];
    part[(size_t)blockIdx.y * columns + c] = sum;
}

template <typename T>
__global__ void columns_end_kernel(T *grad, const float *part, int columns, unsigned parts, int add)
{
    const int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (c >= columns) return;
    float sum = 0.0f;
    for (unsigned i = 0; i < parts; i++) sum += part[(size_t)i * columns + c];
    narrow(add ? widen(grad[c]) + sum : sum, grad + c);
}

/* ---- GELU, in its tanh form -------------------------------------------------------------------- */
#define GELU_SLOPE 1.5957691216057308f /* 2 sqrt(2 / pi) */
#define GELU_CUBE  0.044715f

template <typename T> __global__ void gelu_kernel(T *out, const T *x, size_t n)
{
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * pack<T>::N;
    if (i >= n) return;
    const pack<T> p = load(x + i);
    pack<T> y;
    for (int j = 0; j < pack<T>::N; j++) {
        const float v = widen(p.x[j]);
        narrow(v / (1.0f + __expf(-GELU_SLOPE * v * (1.0f + GELU_CUBE * v * v))), &y.x[j]);
    }
    store(out + i, y);
}

/* d becomes the gradient of x; y is GELU recomputed. */
template <typename T> __global__ void gelu_back_kernel(T *d, T *y, const T *x, size_t n)
{
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * pack<T>::N;
    if (i >= n) return;
    const pack<T> p = load(x + i);
    pack<T> g       = load(d + i), again;
    for (int j = 0; j < pack<T>::N; j++) {
        const float v = widen(p.x[j]), square = GELU_CUBE * v * v;
        const float s     = 1.0f / (1.0f + __expf(-GELU_SLOPE * v * (1.0f + square)));
        const float slope = GELU_SLOPE * (1.0f + 3.0f * square);
        narrow(v * s, &again.x[j]);
        narrow(widen(g.x[j]) * (s + v * s * (1.0f - s) * slope), &g.x[j]);
    }
    store(d + i, g);
    store(y + i, again);
}

/* ---- loss -------------------------------------------------------------------------------------- */
__device__ static float block_sum(float x, float *shared, bool is_max)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    x = is_max ? warp_max(x) : warp_sum(x);
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = shared[lane % WARPS];
    for (int far = WARPS / 2; far > 0; far /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, x, far);
        x                 = is_max ? fmaxf(x, other) : x + other;
    }
    __syncthreads();
    return x;
}

/* One block per row of z[ld], whose first V count: loss, and with scale the gradient in z's place. */
template <typename T>
__global__ void loss_kernel(T *z, float *loss, const int32_t *targets, int V, int ld, float scale)
{
    __shared__ float shared[WARPS];
    T *row           = z + (size_t)blockIdx.x * ld;
    const int target = targets[blockIdx.x];
    float top = -3.4e38f, sum = 0.0f;
    for (int i = (int)threadIdx.x; i < V; i += THREADS) top = fmaxf(top, widen(row[i]));
    top = block_sum(top, shared, true);
    for (int i = (int)threadIdx.x; i < V; i += THREADS) sum += __expf(widen(row[i]) - top);
    sum = block_sum(sum, shared, false);
    if (threadIdx.x == 0)
        loss[blockIdx.x] = target < 0 ? 0.0f : logf(sum) + top - widen(row[target]);
    if (scale == 0.0f) return;
    __syncthreads(); /* row[target] has been read */
    for (int i = (int)threadIdx.x; i < ld; i += THREADS) {
        const float p = i < V ? __expf(widen(row[i]) - top) / sum - (i == target) : 0.0f;
        narrow(target < 0 ? 0.0f : p * scale, row + i);
    }
}

/* ---- update ------------------------------------------------------------------------------------ */
/* Loshchilov, Hutter, arXiv:1711.05101, algorithm 2, decay scaled by the rate. */
template <typename T>
__global__ void adamw_kernel(T *param, float *master, float *m, float *v, const T *grad, size_t n,
                             gpt2_cuda_adamw a)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float g = widen(grad[i]) * a.grad_scale;
    const float p = master[i] * (1.0f - a.rate * a.decay);
    m[i]          = a.beta1 * m[i] + (1.0f - a.beta1) * g;
    v[i]          = a.beta2 * v[i] + (1.0f - a.beta2) * g * g;
    master[i]     = p - a.rate * (m[i] / a.correct1) / (sqrtf(v[i] / a.correct2) + a.eps);
    narrow(master[i], param + i);
}

template <typename T> __global__ void widen_kernel(float *out, const T *x, size_t n)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = widen(x[i]);
}

/* ---- launchers --------------------------------------------------------------------------------- */
template <typename T>
void rows_embed(T *out, const int32_t *tokens, const T *wte, const T *wpe, size_t rows, int length,
                int C, void *stream)
{
    LAUNCH(embed_kernel<T>, blocks_for(rows * C / pack<T>::N, THREADS), THREADS, stream, out,
           tokens, wte, wpe, rows, length, C);
}

template <typename T>
void rows_tokens_back(T *grad, const T *dx, const rows_by_token &by, int C, void *stream)
{
    LAUNCH(tokens_back_kernel<T>, (unsigned)by.tokens, THREADS, stream, grad, dx, by.token,
           by.first, by.row, C);
}

template <typename T>
void rows_places_back(T *grad, const T *dx, int batch, int length, int block, int C, int add,
                      void *stream)
{
    LAUNCH(places_back_kernel<T>, blocks_for((size_t)block * C, THREADS), THREADS, stream, grad, dx,
           batch, length, block, C, add);
}

template <typename T>
void rows_norm(T *out, T *sum, float *mean, float *rstd, const T *x, const T *d, const T *w,
               const T *b, size_t rows, int C, void *stream)
{
    LAUNCH(norm_kernel<T>, blocks_for(rows, WARPS), THREADS, stream, out, sum, mean, rstd, x, d, w,
           b, rows, C);
}

template <typename T>
void rows_norm_back(T *dx, const T *plus, const T *dy, const T *x, const float *mean,
                    const float *rstd, const T *w, size_t rows, int C, void *stream)
{
    LAUNCH(norm_back_kernel<T>, blocks_for(rows, WARPS), THREADS, stream, dx, plus, dy, x, mean,
           rstd, w, rows, C);
}

template <typename T>
void rows_columns(T *grad, float *part, const T *d, const T *x, const float *mean,
                  const float *rstd, size_t rows, int columns, int add, void *stream)
{
    const unsigned most = blocks_for(rows, WARPS), parts = most < PARTS ? most : (unsigned)PARTS;
    const dim3 grid(blocks_for((size_t)columns, WARP), parts);
    LAUNCH(columns_kernel<T>, grid, THREADS, stream, part, d, x, mean, rstd, rows, columns, parts);
    LAUNCH(columns_end_kernel<T>, blocks_for((size_t)columns, THREADS), THREADS, stream, grad, part,
           columns, parts, add);
}

template <typename T> void rows_gelu(T *out, const T *x, size_t n, void *stream)
{
    LAUNCH(gelu_kernel<T>, blocks_for(n / pack<T>::N, THREADS), THREADS, stream, out, x, n);
}

template <typename T> void rows_gelu_back(T *d, T *y, const T *x, size_t n, void *stream)
{
    LAUNCH(gelu_back_kernel<T>, blocks_for(n / pack<T>::N, THREADS), THREADS, stream, d, y, x, n);
}

template <typename T>
void rows_loss(T *z, float *loss, const int32_t *targets, size_t rows, int V, int ld, float scale,
               void *stream)
{
    LAUNCH(loss_kernel<T>, (unsigned)rows, THREADS, stream, z, loss, targets, V, ld, scale);
}

template <typename T>
void rows_adamw(T *param, float *master, float *m, float *v, const T *grad, size_t n,
                const gpt2_cuda_adamw &a, void *stream)
{
    LAUNCH(adamw_kernel<T>, blocks_for(n, THREADS), THREADS, stream, param, master, m, v, grad, n,
           a);
}

template <typename T> void rows_widen(float *out, const T *x, size_t n, void *stream)
{
    LAUNCH(widen_kernel<T>, blocks_for(n, THREADS), THREADS, stream, out, x, n);
}

#define INSTANCES(T)                                                                               \
    template void rows_embed<T>(T *, const int32_t *, const T *, const T *, size_t, int, int,      \
                                void *);                                                           \
    template void rows_tokens_back<T>(T *, const T *, const rows_by_token &, int, void *);         \
    template void rows_places_back<T>(T *, const T *, int, int, int, int, int, void *);            \
    template void rows_norm<T>(T *, T *, float *, float *, const T *, const T *, const T *,        \
                               const T *, size_t, int, void *);                                    \
    template void rows_norm_back<T>(T *, const T *, const T *, const T *, const float *,           \
                                    const float *, const T *, size_t, int, void *);                \
    template void rows_columns<T>(T *, float *, const T *, const T *, const float *,               \
                                  const float *, size_t, int, int, void *);                        \
    template void rows_gelu<T>(T *, const T *, size_t, void *);                                    \
    template void rows_gelu_back<T>(T *, T *, const T *, size_t, void *);                          \
    template void rows_loss<T>(T *, float *, const int32_t *, size_t, int, int, float, void *);    \
    template void rows_adamw<T>(T *, float *, float *, float *, const T *, size_t,                 \
                                const gpt2_cuda_adamw &, void *);                                  \
    template void rows_widen<T>(float *, const T *, size_t, void *)
INSTANCES(float);
INSTANCES(bf16);
