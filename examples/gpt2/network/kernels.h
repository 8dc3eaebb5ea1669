/* kernels.h - the loops of GPT-2 that are not matrix products, once per instruction set.
 *
 * One source, kernels.inc, is compiled for the baseline of the architecture, for AVX2 with FMA and for AVX-512; the
 * best one for the processor is chosen at run time.  Each reads and writes its rows once, while they are in the nearest
 * cache.  Arrays are dense float32 and do not overlap, unless documented.
 */
#ifndef GPT2_KERNELS_H
#define GPT2_KERNELS_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name;
    int (*here)(void); /* not 0: this processor can run it */

    /* out[rows][n] = bias[n] in every row. */
    void (*fill)(float *out, const float *bias, size_t rows, size_t n);
    /* out = x + bias, so that a product can be added. */
    void (*residual)(float *out, const float *x, const float *bias, size_t rows, size_t n);
    /* sum[n] += the rows of x[rows][n]. */
    void (*columns)(float *sum, const float *x, size_t rows, size_t n);
    /* sum[n] += x[n]. */
    void (*add)(float *sum, const float *x, size_t n);

    /* out = (x - mean) * rstd * w + b for each row; stores mean and rstd for the backward pass. */
    void (*norm)(float *out, float *mean, float *rstd, const float *x, const float *w,
                 const float *b, size_t rows, size_t n);
    /* dx = plus + the gradient, plus NULL is 0; adds to dw and db; y becomes norm()'s result. */
    void (*norm_back)(float *dx, float *y, float *dw, float *db, const float *plus, const float *dy,
                      const float *x, const float *mean, const float *rstd, const float *w,
                      const float *b, size_t rows, size_t n);

    /* The tanh form of GELU (Hendrycks, Gimpel, arXiv:1606.08415), as GPT-2 has it. */
    void (*gelu)(float *out, const float *x, size_t n);
    /* d is the gradient of gelu(x) and becomes that of x; y becomes gelu(x); bias[n] += the rows of d. */
    void (*gelu_back)(float *d, float *y, float *bias, const float *x, size_t rows, size_t n);

    /* Row r of s[rows][ld] are scores against keys 0..first + r: they become exp(scale * s - max),
     * zeros up to width; sum[r] is their sum and lse[r] = max + log(sum). */
    void (*softmax)(float *s, float *sum, float *lse, float scale, size_t rows, size_t ld,
                    size_t first, size_t width);
    /* Recomputes the probabilities from the stored lse. */
    void (*softmax_again)(float *s, const float *lse, float scale, size_t rows, size_t ld,
                          size_t first, size_t width);
    /* d = p * (d - dot[r]) * scale. */
    void (*softmax_back)(float *d, const float *p, const float *dot, float scale, size_t rows,
                         size_t ld, size_t width);
    /* out[i] = x[i] * by. */
    void (*scale)(float *out, const float *x, float by, size_t n);
    float (*dot)(const float *x, const float *y, size_t n);

    /* -log softmax(z)[target]; z becomes scale * (softmax(z) - onehot(target)). */
    double (*cross_entropy)(float *z, size_t n, size_t target, float scale);
    /* The same without changing z. */
    double (*cross_entropy_only)(const float *z, size_t n, size_t target);

    /* 16-bit formats, rounded to nearest even.  add: out = round(wide(out) + x). */
    void (*from_bf16)(float *out, const uint16_t *x, size_t n);
    void (*from_f16)(float *out, const uint16_t *x, size_t n);
    void (*to_bf16)(uint16_t *out, const float *x, size_t n, int add);
    void (*to_f16)(uint16_t *out, const float *x, size_t n, int add);
} gpt2_kernels;

extern const gpt2_kernels gpt2_kernels_base, gpt2_kernels_avx2, gpt2_kernels_avx512;

/* The fastest for this processor. */
const gpt2_kernels *gpt2_kernels_best(void);

/* NULL: no such name, or not on this processor. */
const gpt2_kernels *gpt2_kernels_find(const char *name);

#endif
