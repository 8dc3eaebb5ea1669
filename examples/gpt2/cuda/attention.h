/* attention.h - shared by the two files of attention. */
#ifndef GPT2_CUDA_ATTENTION_H
#define GPT2_CUDA_ATTENTION_H

#include "launch.h"
#include "device.h"

enum { ATTENTION_WARPS = 4, ATTENTION_THREADS = ATTENTION_WARPS * WARP };

/* The location of one head of one sequence. */
struct head_view {
    int T, C, ld, size;
    size_t qkv, att, pair; /* its first query; its first result; in lse */
    float scale;
};

__device__ inline head_view view_of(int pair, int T, int heads, int C)
{
    const size_t row = (size_t)(pair / heads) * T;
    const int size = C / heads, column = pair % heads * size;
    return {T,
            C,
            3 * C,
            size,
            row * 3 * C + column,
            row * C + column,
            (size_t)pair * T,
            rsqrtf((float)size)};
}

static inline dim3 grid_of(int length, int per_block, int pairs)
{
    return dim3((unsigned)((length + per_block - 1) / per_block), (unsigned)pairs);
}

/* On tensor cores; false for unsupported head sizes.  Arguments as in launch.h. */
bool attention_fast(bf16 *att, float *lse, const bf16 *qkv, int batch, int length, int heads, int C,
                    void *stream);
bool attention_fast_back(bf16 *dqkv, const float *dot, const bf16 *qkv, const bf16 *datt,
                         const float *lse, int batch, int length, int heads, int C, void *stream);

#endif
