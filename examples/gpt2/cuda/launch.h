/* launch.h - functions of the other files that network.cu calls; T is float or bf16, all pointers are device memory. */
#ifndef GPT2_CUDA_LAUNCH_H
#define GPT2_CUDA_LAUNCH_H

#include "gpt2_cuda.h"

enum { GPT2_CUDA_PARTS = 64 }; /* maximum number of parts of sums over rows */

/* Rows of the batch sorted by token: token[i] is in row[first[i]] to row[first[i + 1] - 1]. */
typedef struct {
    int tokens; /* distinct tokens */
    const int32_t *token, *first, *row;
} rows_by_token;

template <typename T>
void rows_embed(T *out, const int32_t *tokens, const T *wte, const T *wpe, size_t rows, int length,
                int C, void *stream);
template <typename T>
void rows_tokens_back(T *grad, const T *dx, const rows_by_token &by, int C, void *stream);
template <typename T>
void rows_places_back(T *grad, const T *dx, int batch, int length, int block, int C, int add,
                      void *stream);
/* d not NULL: sum = x + d, and the norm is of sum. */
template <typename T>
void rows_norm(T *out, T *sum, float *mean, float *rstd, const T *x, const T *d, const T *w,
               const T *b, size_t rows, int C, void *stream);
template <typename T>
void rows_norm_back(T *dx, const T *plus, const T *dy, const T *x, const float *mean,
                    const float *rstd, const T *w, size_t rows, int C, void *stream);
/* Gradient of a bias: x NULL; of a norm's weight: x its input.  part[GPT2_CUDA_PARTS][columns]. */
template <typename T>
void rows_columns(T *grad, float *part, const T *d, const T *x, const float *mean,
                  const float *rstd, size_t rows, int columns, int add, void *stream);
template <typename T> void rows_gelu(T *out, const T *x, size_t n, void *stream);
template <typename T> void rows_gelu_back(T *d, T *y, const T *x, size_t n, void *stream);
template <typename T>
void rows_loss(T *z, float *loss, const int32_t *targets, size_t rows, int V, int ld, float scale,
               void *stream);
template <typename T>
void rows_adamw(T *param, float *master, float *m, float *v, const T *grad, size_t n,
                const gpt2_cuda_adamw &a, void *stream);
template <typename T> void rows_widen(float *out, const T *x, size_t n, void *stream);

/* qkv[batch, length, 3C] -> att[batch, length, C] and lse[batch, heads, length]. */
template <typename T>
void attention_forward(T *att, float *lse, const T *qkv, int batch, int length, int heads, int C,
                       void *stream);
/* dot[batch, heads, length] is scratch. */
template <typename T>
void attention_backward(T *dqkv, float *dot, const T *qkv, const T *att, const T *datt,
                        const float *lse, int batch, int length, int heads, int C, void *stream);

/* out[m, n] = beta * out + a b (+ bias[n]), row-major with rows ld elements apart; a is [m, k], or [k, m] where
 * is_turned; b is [k, n], or [n, k] where is_turned.  False: the library could not. */
template <typename T> struct matrix {
    T *at;
    int ld;
    bool is_turned;
};
typedef struct products products;
products *products_new(void);
void products_free(products *p);
template <typename T>
bool product(products *p, int m, int n, int k, matrix<const T> a, matrix<const T> b, float beta,
             matrix<T> out, const T *bias, void *stream);

#endif
