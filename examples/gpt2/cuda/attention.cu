/* attention.cu - causal attention on the GPU; no matrix of length x length is stored.
 *
 * DESIGN
 * bf16, heads of 32, 64 or 128: on tensor cores.  A block of four warps holds 64 queries (or keys, for their
 *            gradients), each warp 16 of them in registers, and walks over tiles of 64 of the other kind in shared memory.
 *            Forward is FlashAttention-2 (Dao, arXiv:2307.08691): running maximum and sum, one number per query kept.
 * Backward.  Two kernels: gradients of queries walk over keys, those of keys and values over queries.  Scores are made
 *            twice, and in return nothing is added by atomics: the same bits every time.
 * Else.      attention_plain.cu.
 *
 * Layout of mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"): with g = lane / 4 and t = lane % 4, A has rows
 * g, g + 8 and columns 2t, 2t + 1, then those + 8; B has column g and rows 2t, 2t + 1, then + 8; C has rows g, g + 8 and
 * columns 2t, 2t + 1.  So the C of one product, rounded, is the A of the next.
 */
#include "attention.h"

enum {
    TILE    = 64,
    WARPS   = ATTENTION_WARPS,
    THREADS = ATTENTION_THREADS,
    GAP     = 8 /* keeps rows in different banks */
};

/* ---- tensor cores ------------------------------------------------------------------------------ */
__device__ inline uint32_t two(float low, float high)
{
    bf16 a, b;
    narrow(low, &a);
    narrow(high, &b);
    return (uint32_t)b.bits << 16 | a.bits;
}

__device__ inline uint32_t pair_at(const bf16 *at)
{
    return *(const uint32_t *)at;
}

/* c += a b */
__device__ inline void mma(float c[4], const uint32_t a[4], const uint32_t b[2])
{
#ifdef __CUDACC__
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    mma_on_host(c, a, b);
#endif
}

/* B of 16 rows from `at` on and 8 columns, of a matrix stored by rows. */
__device__ inline void load_b_rows(uint32_t b[2], const bf16 *at, int ld)
{
    const int lane = (int)threadIdx.x % WARP;
#ifdef __CUDACC__
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(at + lane % 16 * ld);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(b[0]), "=r"(b[1])
                 : "r"(address));
#else
    const bf16 *row = at + lane % 4 * 2 * ld + lane / 4;
    b[0]            = (uint32_t)row[ld].bits << 16 | row[0].bits;
    b[1]            = (uint32_t)row[9 * ld].bits << 16 | row[8 * ld].bits;
#endif
}

/* B of 16 rows and 8 columns, of a matrix stored by columns: column n begins at at + n * ld. */
__device__ inline void load_b_columns(uint32_t b[2], const bf16 *at, int ld)
{
    const int lane   = (int)threadIdx.x % WARP;
    const bf16 *here = at + lane / 4 * ld + lane % 4 * 2;
    b[0]             = pair_at(here);
    b[1]             = pair_at(here + 8);
}

/* A of 16 rows and SIZE columns; zeros from row `rows` on. */
template <int SIZE>
__device__ inline void load_a(uint32_t a[SIZE / 16][4], const bf16 *at, size_t ld, int rows)
{
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4 * 2;
    for (int s = 0; s < SIZE / 16; s++) {
        const bf16 *low = at + g * ld + s * 16 + t, *high = low + 8 * ld;
        a[s][0] = g < rows ? pair_at(low) : 0;
        a[s][1] = g + 8 < rows ? pair_at(high) : 0;
        a[s][2] = g < rows ? pair_at(low + 8) : 0;
        a[s][3] = g + 8 < rows ? pair_at(high + 8) : 0;
    }
}

/* The C of two products beside each other becomes the A of 16 columns. */
__device__ inline void a_of_c(uint32_t a[4], const float left[4], const float right[4])
{
    a[0] = two(left[0], left[1]);
    a[1] = two(left[2], left[3]);
    a[2] = two(right[0], right[1]);
    a[3] = two(right[2], right[3]);
}

/* Loads a tile of rows into shared memory; rows from `rows` on are zero. */
template <int SIZE>
__device__ inline void load_tile(bf16 (*tile)[SIZE + GAP], const bf16 *at, size_t ld, int rows)
{
    const int per_row = SIZE / 8;
    for (int i = (int)threadIdx.x; i < TILE * per_row; i += THREADS) {
        const int row = i / per_row, c = i % per_row * 8;
        pack<bf16> p = {};
        if (row < rows) p = load(at + row * ld + c);
        store(&tile[row][c], p);
    }
}

/* c[16][TILE] = a times the rows of the tile, each a column. */
template <int SIZE>
__device__ inline void scores_of(float c[TILE / 8][4], const uint32_t a[SIZE / 16][4],
                                 const bf16 (*tile)[SIZE + GAP])
{
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
        c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
#pragma unroll
        for (int s = 0; s < SIZE / 16; s++) {
            uint32_t b[2];
            load_b_columns(b, &tile[n * 8][s * 16], SIZE + GAP);
            mma(c[n], a[s], b);
        }
    }
}

/* out[16][SIZE] += p[16][TILE] times the tile. */
template <int SIZE>
__device__ inline void add_weighted(float out[SIZE / 8][4], const float p[TILE / 8][4],
                                    const bf16 (*tile)[SIZE + GAP])
{
#pragma unroll
    for (int s = 0; s < TILE / 16; s++) {
        uint32_t a[4];
        a_of_c(a, p[2 * s], p[2 * s + 1]);
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++) {
            uint32_t b[2];
            load_b_rows(b, &tile[s * 16][n * 8], SIZE + GAP);
            mma(out[n], a, b);
        }
    }
}

/* Two neighbouring columns of rows g and g + 8, if these rows exist. */
template <int SIZE>
__device__ inline void store_rows(bf16 *at, size_t ld, int rows, const float c[SIZE / 8][4],
                                  float low, float high)
{
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4 * 2;
    for (int n = 0; n < SIZE / 8; n++) {
        if (g < rows) *(uint32_t *)(at + g * ld + n * 8 + t) = two(c[n][0] * low, c[n][1] * low);
        if (g + 8 < rows)
            *(uint32_t *)(at + (g + 8) * ld + n * 8 + t) = two(c[n][2] * high, c[n][3] * high);
    }
}

/* Over the four lanes that share rows g and g + 8. */
__device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

__device__ inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* One more tile of keys: scores become exponentials, and the sums are rescaled to the new maximum. */
template <int SIZE>
__device__ inline void soften(float p[TILE / 8][4], float out[SIZE / 8][4], float top[2],
                              float sum[2], int query, int key, float scale)
{
    const int t = (int)threadIdx.x % 4 * 2;
    for (int half = 0; half < 2; half++) {
        float most = top[half], all = 0.0f;
        for (int n = 0; n < TILE / 8; n++)
            for (int j = 0; j < 2; j++) {
                float *s = &p[n][half * 2 + j];
                *s       = key + n * 8 + t + j <= query + half * 8 ? *s * scale : -1e30f;
                most     = fmaxf(most, *s);
            }
        most               = quad_max(most);
        const float shrink = __expf(top[half] - most);
        for (int n = 0; n < TILE / 8; n++)
            for (int j = 0; j < 2; j++) {
                float *s = &p[n][half * 2 + j];
                *s       = __expf(*s - most);
                all += *s;
            }
        sum[half] = sum[half] * shrink + quad_sum(all);
        top[half] = most;
        for (int n = 0; n < SIZE / 8; n++) {
            out[n][half * 2] *= shrink;
            out[n][half * 2 + 1] *= shrink;
        }
    }
}

/* grid: tiles of queries, pairs. */
template <int SIZE>
__global__ void __launch_bounds__(THREADS)
    forward_kernel(bf16 *att, float *lse, const bf16 *qkv, int T, int heads, int C)
{
    __shared__ __align__(16) bf16 keys[TILE][SIZE + GAP];
    __shared__ __align__(16) bf16 values[TILE][SIZE + GAP];
    const head_view v = view_of((int)blockIdx.y, T, heads, C);
    const int lane = (int)threadIdx.x % WARP, first = (int)blockIdx.x * TILE;
    const int mine = first + (int)threadIdx.x / WARP * 16, rows = T - mine;
    uint32_t q[SIZE / 16][4];
    float out[SIZE / 8][4] = {}, p[TILE / 8][4], top[2] = {-1e30f, -1e30f}, sum[2] = {0, 0};
    load_a<SIZE>(q, qkv + v.qkv + (size_t)mine * v.ld, v.ld, rows);
    for (int key = 0; key <= first; key += TILE) {
        __syncthreads();
        load_tile<SIZE>(keys, qkv + v.qkv + C + (size_t)key * v.ld, v.ld, T - key);
        load_tile<SIZE>(values, qkv + v.qkv + 2 * C + (size_t)key * v.ld, v.ld, T - key);
        __syncthreads();
        scores_of<SIZE>(p, q, keys);
        soften<SIZE>(p, out, top, sum, mine + lane / 4, key, v.scale);
        add_weighted<SIZE>(out, p, values);
    }
    store_rows<SIZE>(att + v.att + (size_t)mine * C, C, rows, out, 1.0f / sum[0], 1.0f / sum[1]);
    for (int half = 0; half < 2; half++)
        if (lane % 4 == 0 && lane / 4 + half * 8 < rows)
            lse[v.pair + mine + lane / 4 + half * 8] = top[half] + logf(sum[half]);
}

/* p: scores become probabilities; d: their gradients become those of the scores. */
__device__ inline void backward_scores(float p[TILE / 8][4], float d[TILE / 8][4],
                                       const float lse[4], const float dot[4], int n, int query[4],
                                       int key[4], float scale)
{
    for (int j = 0; j < 4; j++) {
        p[n][j] = key[j] <= query[j] ? __expf(p[n][j] * scale - lse[j]) : 0.0f;
        d[n][j] = p[n][j] * (d[n][j] - dot[j]) * scale;
    }
}

template <int SIZE>
__global__ void __launch_bounds__(THREADS)
    queries_back_kernel(bf16 *dqkv, const float *dot, const bf16 *qkv, const bf16 *datt,
                        const float *lse, int T, int heads, int C)
{
    __shared__ __align__(16) bf16 keys[TILE][SIZE + GAP];
    __shared__ __align__(16) bf16 values[TILE][SIZE + GAP];
    const head_view v = view_of((int)blockIdx.y, T, heads, C);
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4 * 2;
    const int first = (int)blockIdx.x * TILE, mine = first + (int)threadIdx.x / WARP * 16;
    const int rows = T - mine;
    uint32_t q[SIZE / 16][4], dout[SIZE / 16][4];
    float dq[SIZE / 8][4] = {}, p[TILE / 8][4], d[TILE / 8][4], of[2] = {0, 0}, minus[2] = {0, 0};
    load_a<SIZE>(q, qkv + v.qkv + (size_t)mine * v.ld, v.ld, rows);
    load_a<SIZE>(dout, datt + v.att + (size_t)mine * C, C, rows);
    for (int half = 0; half < 2; half++)
        if (g + half * 8 < rows) {
            of[half]    = lse[v.pair + mine + g + half * 8];
            minus[half] = dot[v.pair + mine + g + half * 8];
        }
    for (int key = 0; key <= first; key += TILE) {
        __syncthreads();
        load_tile<SIZE>(keys, qkv + v.qkv + C + (size_t)key * v.ld, v.ld, T - key);
        load_tile<SIZE>(values, qkv + v.qkv + 2 * C + (size_t)key * v.ld, v.ld, T - key);
        __syncthreads();
        scores_of<SIZE>(p, q, keys);
        scores_of<SIZE>(d, dout, values);
        for (int n = 0; n < TILE / 8; n++) {
            const int k = key + n * 8 + t, low = mine + g, high = low + 8;
            int query[] = {low, low, high, high}, at[] = {k, k + 1, k, k + 1};
            const float l[] = {of[0], of[0], of[1], of[1]};
            const float m[] = {minus[0], minus[0], minus[1], minus[1]};
            backward_scores(p, d, l, m, n, query, at, v.scale);
        }
        add_weighted<SIZE>(dq, d, keys);
    }
    store_rows<SIZE>(dqkv + v.qkv + (size_t)mine * v.ld, v.ld, rows, dq, 1.0f, 1.0f);
}

/* Transposed: rows are keys, columns are queries. */
template <int SIZE>
__global__ void __launch_bounds__(THREADS)
    keys_back_kernel(bf16 *dqkv, const float *dot, const bf16 *qkv, const bf16 *datt,
                     const float *lse, int T, int heads, int C)
{
    __shared__ __align__(16) bf16 queries[TILE][SIZE + GAP];
    __shared__ __align__(16) bf16 douts[TILE][SIZE + GAP];
    __shared__ float of[TILE], minus[TILE];
    const head_view v = view_of((int)blockIdx.y, T, heads, C);
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4 * 2;
    const int first = (int)blockIdx.x * TILE, mine = first + (int)threadIdx.x / WARP * 16;
    const int rows  = T - mine;
    const size_t at = v.qkv + (size_t)mine * v.ld;
    uint32_t k[SIZE / 16][4], values[SIZE / 16][4];
    float dk[SIZE / 8][4] = {}, dv[SIZE / 8][4] = {}, p[TILE / 8][4], d[TILE / 8][4];
    load_a<SIZE>(k, qkv + at + C, v.ld, rows);
    load_a<SIZE>(values, qkv + at + 2 * C, v.ld, rows);
    for (int query = first; query < T; query += TILE) {
        __syncthreads();
        load_tile<SIZE>(queries, qkv + v.qkv + (size_t)query * v.ld, v.ld, T - query);
        load_tile<SIZE>(douts, datt + v.att + (size_t)query * C, C, T - query);
        const int i = (int)threadIdx.x;
        if (i < TILE) {
            of[i]    = query + i < T ? lse[v.pair + query + i] : 1e30f; /* query out of range: 0 */
            minus[i] = query + i < T ? dot[v.pair + query + i] : 0.0f;
        }
        __syncthreads();
        scores_of<SIZE>(p, k, queries);
        scores_of<SIZE>(d, values, douts);
        for (int n = 0; n < TILE / 8; n++) {
            const int c = n * 8 + t, low = mine + g, high = low + 8;
            int asks[]      = {query + c, query + c + 1, query + c, query + c + 1};
            int key[]       = {low, low, high, high};
            const float l[] = {of[c], of[c + 1], of[c], of[c + 1]};
            const float m[] = {minus[c], minus[c + 1], minus[c], minus[c + 1]};
            backward_scores(p, d, l, m, n, asks, key, v.scale);
        }
        add_weighted<SIZE>(dv, p, douts);
        add_weighted<SIZE>(dk, d, queries);
    }
    store_rows<SIZE>(dqkv + at + C, v.ld, rows, dk, 1.0f, 1.0f);
    store_rows<SIZE>(dqkv + at + 2 * C, v.ld, rows, dv, 1.0f, 1.0f);
}

/* ---- launchers --------------------------------------------------------------------------------- */
template <int SIZE>
static bool forward_of(int size, bf16 *att, float *lse, const bf16 *qkv, int batch, int length,
                       int heads, int C, void *stream)
{
    if (size != SIZE) return false;
    const dim3 grid = grid_of(length, TILE, batch * heads);
    LAUNCH(forward_kernel<SIZE>, grid, THREADS, stream, att, lse, qkv, length, heads, C);
    return true;
}

bool attention_fast(bf16 *att, float *lse, const bf16 *qkv, int batch, int length, int heads, int C,
                    void *stream)
{
    const int size = C / heads;
    return forward_of<32>(size, att, lse, qkv, batch, length, heads, C, stream) ||
           forward_of<64>(size, att, lse, qkv, batch, length, heads, C, stream) ||
           forward_of<128>(size, att, lse, qkv, batch, length, heads, C, stream);
}

template <int SIZE>
static bool backward_of(int size, bf16 *dqkv, const float *dot, const bf16 *qkv, const bf16 *datt,
                        const float *lse, int batch, int length, int heads, int C, void *stream)
{
    if (size != SIZE) return false;
    const dim3 grid = grid_of(length, TILE, batch * heads);
    LAUNCH(queries_back_kernel<SIZE>, grid, THREADS, stream, dqkv, dot, qkv, datt, lse, length,
           heads, C);
    LAUNCH(keys_back_kernel<SIZE>, grid, THREADS, stream, dqkv, dot, qkv, datt, lse, length, heads,
           C);
    return true;
}

bool attention_fast_back(bf16 *dqkv, const float *dot, const bf16 *qkv, const bf16 *datt,
                         const float *lse, int batch, int length, int heads, int C, void *stream)
{
    const int size = C / heads;
    return backward_of<32>(size, dqkv, dot, qkv, datt, lse, batch, length, heads, C, stream) ||
           backward_of<64>(size, dqkv, dot, qkv, datt, lse, batch, length, heads, C, stream) ||
           backward_of<128>(size, dqkv, dot, qkv, datt, lse, batch, length, heads, C, stream);
}
