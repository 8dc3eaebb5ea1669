/* attention.c - causal attention, a block of queries at a time.
 *
 * No matrix of length x length is ever stored: the forward pass stores one number per query, the log of its sum of
 * exponentials, and the backward pass recomputes the probabilities from it (Dao et al., "FlashAttention",
 * arXiv:2205.14135).  A block of queries uses the keys up to its last query, so that about half of the square is
 * computed.
 */
#include "network.h"

#include <math.h>

/* The location of one head of one sequence. */
typedef struct {
    size_t T, C, ld, size; /* length, channels, 3 C, channels of the head */
    size_t row, column;    /* its first row and first channel */
    float scale;
} head_view;

static head_view view_of(const gpt2 *m, size_t pair)
{
    const size_t T = (size_t)m->length, C = (size_t)m->C, H = (size_t)m->H;
    return (head_view){.T      = T,
                       .C      = C,
                       .ld     = 3 * C,
                       .size   = C / H,
                       .row    = pair / H * T,
                       .column = pair % H * (C / H),
                       .scale  = 1.0f / sqrtf((float)(C / H))};
}

static void forward_block(const gpt2 *m, const layer_acts *a, member_scratch *s, const head_view *v,
                          float *lse, size_t first, size_t rows)
{
    const float *q = a->qkv + (v->row + first) * v->ld + v->column;
    const float *k = a->qkv + v->row * v->ld + v->column + v->C, *values = k + v->C;
    float *out         = a->att + (v->row + first) * v->C + v->column;
    const size_t width = first + rows;
    product_nt(rows, width, v->size, q, v->ld, k, v->ld, 0.0f, s->s, width);
    m->k->softmax(s->s, s->sum, lse + first, v->scale, rows, width, first, width);
    product_nn(rows, v->size, width, s->s, width, values, v->ld, 0.0f, out, v->C);
    for (size_t r = 0; r < rows; r++)
        m->k->scale(out + r * v->C, out + r * v->C, 1.0f / s->sum[r], v->size);
}

void attention_forward(gpt2 *m, const layer_acts *a, member_scratch *s, size_t begin, size_t end)
{
    for (size_t pair = begin; pair < end; pair++) {
        const head_view v = view_of(m, pair);
        for (size_t first = (size_t)m->from; first < v.T; first += QUERY_ROWS) {
            const size_t rows = v.T - first < QUERY_ROWS ? v.T - first : QUERY_ROWS;
            forward_block(m, a, s, &v, a->lse + pair * v.T, first, rows);
        }
    }
}

/* The last block covers all keys and writes their gradients; earlier blocks add to them. */
static void backward_block(const gpt2 *m, const layer_acts *a, member_scratch *s,
                           const head_view *v, const float *lse, size_t first, size_t rows)
{
    const size_t at   = (v->row + first) * v->ld + v->column,
                 keys = v->row * v->ld + v->column + v->C;
    const float *q = a->qkv + at, *k = a->qkv + keys, *values = k + v->C;
    const float *out   = a->att + (v->row + first) * v->C + v->column;
    const float *dout  = m->datt + (v->row + first) * v->C + v->column;
    const size_t width = first + rows;
    const float beta   = width == v->T ? 0.0f : 1.0f;
    product_nt(rows, width, v->size, q, v->ld, k, v->ld, 0.0f, s->s, width);
    m->k->softmax_again(s->s, lse + first, v->scale, rows, width, first, width);
    product_nt(rows, width, v->size, dout, v->C, values, v->ld, 0.0f, s->d, width);
    for (size_t r = 0; r < rows; r++)
        s->sum[r] = m->k->dot(out + r * v->C, dout + r * v->C, v->size);
    m->k->softmax_back(s->d, s->s, s->sum, v->scale, rows, width, width);
    product_tn(width, v->size, rows, s->s, width, dout, v->C, beta, m->dqkv + keys + v->C, v->ld);
    product_nn(rows, v->size, width, s->d, width, k, v->ld, 0.0f, m->dqkv + at, v->ld);
    product_tn(width, v->size, rows, s->d, width, q, v->ld, beta, m->dqkv + keys, v->ld);
}

void attention_backward(gpt2 *m, const layer_acts *a, member_scratch *s, size_t begin, size_t end)
{
    for (size_t pair = begin; pair < end; pair++) {
        const head_view v = view_of(m, pair);
        for (size_t first = (v.T - 1) / QUERY_ROWS * QUERY_ROWS;; first -= QUERY_ROWS) {
            const size_t rows = v.T - first < QUERY_ROWS ? v.T - first : QUERY_ROWS;
            backward_block(m, a, s, &v, a->lse + pair * v.T, first, rows);
            if (first == 0) break;
        }
    }
}
