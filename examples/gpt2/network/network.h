/* network.h - shared by the files of the network: the object behind model.h, its memory, matrix products.
 *
 *     model.c      presets, tensors, first values       network.c    memory, 16-bit values and gradients
 *     block.c      one layer, forward and backward      attention.c  its attention
 *     head.c       embeddings, logits and loss          crew.c       threads
 *     kernels.inc  everything that is not a matrix product
 *
 * A row is one token of the batch; there are batch * length of them.  A product with a weight takes a chunk of rows at
 * a time, and the operations before and after it run while these rows are in the cache.
 */
#ifndef GPT2_NETWORK_H
#define GPT2_NETWORK_H

#include "crew.h"
#include "kernels.h"
#include "model.h"

#include <cblas.h>

enum {
    CHUNK_ROWS   = 512, /* rows of one product with a weight */
    QUERY_ROWS   = 64,  /* queries of one block of attention */
    VALUES_GRAIN = 1024
};

typedef struct { /* of one layer, [rows] each: kept between forward and backward */
    float *x;    /* [C]   its input, the residual stream */
    float *qkv;  /* [3C]  */
    float *att;  /* [C]   before its projection */
    float *mid;  /* [C]   the residual stream between attention and MLP */
    float *fc;   /* [4C]  before GELU */
    float *lse;  /* [H]   log of the sum of exponentials, [batch][heads][length] */
    float *mean_1, *rstd_1, *mean_2, *rstd_2;
} layer_acts;

typedef struct {  /* of one member of the crew */
    float *y;     /* [CHUNK_ROWS, C]  */
    float *h;     /* [CHUNK_ROWS, 4C] */
    float *s, *d; /* [QUERY_ROWS, length] scores and their gradient */
    float *sum;   /* [QUERY_ROWS] */
    float *small; /* sums over rows: gradients of biases and layer norms of one layer */
} member_scratch;

struct gpt2 {
    gpt2_config config;
    gpt2_options options;
    const gpt2_kernels *k;
    crew *crew;
    int C, H, V, tensors;
    bool add;
    const void **value; /* [tensors] */
    void **grad;

    int batch, length, from; /* of the current pass */
    size_t rows, first_row;  /* all; the first to compute */
    int32_t *tokens;

    void *memory;
    size_t bytes;
    layer_acts *acts;       /* [layers] */
    float *last;            /* [C] output of the last layer */
    float *mean, *rstd;     /* of ln_f */
    float *losses;          /* [rows] */
    float *dx;              /* [C] gradient of the residual stream */
    float *dmid, *datt, *y; /* [C] */
    float *dqkv;            /* [3C] */
    float *dfc, *g;         /* [4C] gradient before GELU; GELU again */
    float *logits;          /* [logit_rows, V] */
    size_t logit_rows;
    member_scratch *scratch; /* [members] */

    float *layer_value, *layer_grad; /* 16-bit types: one layer in float32 */
    float *wte_value, *wte_grad;
    float *small_value; /* ln_f */
    float *zero;        /* for unwanted gradients: [4C] */
};

/* One region of the crew's work: the arguments of its functions. */
typedef struct {
    gpt2 *m;
    int layer;
    const float *value[GPT2_PER_LAYER]; /* the layer's tensors in float32 */
    float *grad[GPT2_PER_LAYER];        /* matrices only; NULL: not wanted */
    float beta;                         /* 1: adds products to grad */
} layer_job;

/* ---- network.c ---- */
static inline int layer_tensor(int layer, int which)
{
    return 2 + layer * GPT2_PER_LAYER + which;
}
static inline bool is_wide(const gpt2 *m)
{
    return m->options.type == GPT2_F32;
}
size_t network_tensor_values(const gpt2 *m, int index);

/* A tensor's values in float32: the caller's, or decoded into scratch. */
const float *network_value(gpt2 *m, int index, float *scratch);

/* Adds the members' sums, in order, into the gradient of a small tensor. */
void network_small_grad(gpt2 *m, int index, size_t offset);

/* Stores a gradient computed in float32 scratch as the caller's. */
void network_store_grad(gpt2 *m, int index, const float *wide);
void network_clear_small(gpt2 *m);

void layer_open(layer_job *job, gpt2 *m, int layer);
void layer_close(layer_job *job);

/* ---- attention.c: (sequence, head) pairs [begin, end) ---- */
void attention_forward(gpt2 *m, const layer_acts *a, member_scratch *s, size_t begin, size_t end);
void attention_backward(gpt2 *m, const layer_acts *a, member_scratch *s, size_t begin, size_t end);

/* ---- matrix products, row-major: out[m, n] = beta * out + ... ---- */
static inline void product_nn(size_t m, size_t n, size_t k, const float *a, size_t lda,
                              const float *b, size_t ldb, float beta, float *out, size_t ldo)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m, (int)n, (int)k, 1.0f, a,
                (int)lda, b, (int)ldb, beta, out, (int)ldo);
}
static inline void product_nt(size_t m, size_t n, size_t k, const float *a, size_t lda,
                              const float *b, size_t ldb, float beta, float *out, size_t ldo)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, 1.0f, a, (int)lda,
                b, (int)ldb, beta, out, (int)ldo);
}
static inline void product_tn(size_t m, size_t n, size_t k, const float *a, size_t lda,
                              const float *b, size_t ldb, float beta, float *out, size_t ldo)
{
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)m, (int)n, (int)k, 1.0f, a, (int)lda,
                b, (int)ldb, beta, out, (int)ldo);
}

#endif
