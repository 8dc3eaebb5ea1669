/* network.cu - GPT-2 on the GPU: memory, and the order of kernels and products.
 *
 * A layer stores its input, both norms, qkv, the result of attention, the stream between attention and MLP, and the MLP
 * before GELU.  The projection that ends a layer stays in `d` and is added by the next norm, which reads it anyway.
 * forward_only: all layers share their rows; recompute: they share all but their input, and rows are recomputed.
 *
 * The host runs ahead of the GPU.  Its data is sent from pinned memory at the beginning of a pass.  Losses return right
 * after the head, so the backward pass is already enqueued when the host reads them.
 */
#include "launch.h"
#include "device.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WTE = 0, WPE = 1, ALIGN = 256 };
static const size_t logit_values = (size_t)1 << 30; /* maximum number of logits at a time */

typedef struct {
    void *x, *y_1, *qkv, *att, *mid, *y_2,
        *fc; /* of options.type, [rows, C] [C] [3C] [C] [C] [C] [4C] */
    float *mean_1, *rstd_1, *mean_2, *rstd_2, *lse;
} layer_rows;

struct gpt2_cuda {
    gpt2_config config;
    gpt2_options options;
    int C, H, V, ld; /* ld: stride between rows of logits */
    bool add;
    const void **value;
    void **grad;
    cudaStream_t stream;
    bool owns_stream;
    cudaEvent_t read; /* the GPU has finished with `pinned` */
    products *multiplier;
    const char *wrong; /* the first failure */

    int batch, length, given; /* of the current pass; given: targets that count */
    size_t rows, logit_rows;
    void *memory;
    layer_rows *layer;
    void *last, *y, *d, *h; /* h [4C] */
    void *dx, *dmid, *dy, *datt, *dqkv, *dfc;
    void *logits;
    float *mean, *rstd, *losses, *part, *dot, *wide; /* wide [V] */
    rows_by_token by;
    int32_t *tokens, *targets, *sorted; /* sorted: distinct tokens, their offsets, rows */
    struct {
        int32_t *tokens, *targets, *sorted;
        float *losses;
    } pinned;
    int32_t *count; /* [V + 1] counters */
};

/* ---- memory ------------------------------------------------------------------------------------ */
typedef struct {
    char *base;
    size_t used;
} arena;

static void *take(arena *a, size_t bytes)
{
    void *p = a->base ? a->base + a->used : NULL;
    a->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static void lay_layer(gpt2_cuda *m, arena *a, layer_rows *r, size_t rows, size_t row)
{
    r->x        = take(a, rows * row);
    r->y_1      = take(a, rows * row);
    r->qkv      = take(a, rows * 3 * row);
    r->att      = take(a, rows * row);
    r->mid      = take(a, rows * row);
    r->y_2      = take(a, rows * row);
    r->fc       = take(a, rows * 4 * row);
    float **f[] = {&r->mean_1, &r->rstd_1, &r->mean_2, &r->rstd_2};
    for (float **one : f) *one = (float *)take(a, rows * sizeof(float));
    r->lse = (float *)take(a, rows * m->H * sizeof(float));
}

static void lay_layers(gpt2_cuda *m, arena *a, size_t rows, size_t row)
{
    const bool share = m->options.forward_only || m->options.recompute;
    lay_layer(m, a, &m->layer[0], rows, row);
    for (int l = 1; l < m->config.layers; l++) {
        m->layer[l] = m->layer[0];
        if (!share) lay_layer(m, a, &m->layer[l], rows, row);
        if (!m->options.forward_only && share) m->layer[l].x = take(a, rows * row);
    }
}

static void lay_backward(gpt2_cuda *m, arena *a, size_t rows, size_t row)
{
    void **one[] = {&m->dx, &m->dmid, &m->dy, &m->datt};
    for (void **p : one) *p = take(a, rows * row);
    m->dfc    = take(a, rows * 4 * row);
    m->dqkv   = take(a, rows * 3 * row);
    m->dot    = (float *)take(a, rows * m->H * sizeof(float));
    m->part   = (float *)take(a, sizeof(float) * GPT2_CUDA_PARTS * 4 * m->C);
    m->sorted = (int32_t *)take(a, (3 * rows + 1) * sizeof(int32_t));
}

static void lay_out(gpt2_cuda *m, arena *a)
{
    const size_t rows = (size_t)m->options.batch * m->options.length;
    const size_t wide = m->options.type == GPT2_F32 ? sizeof(float) : sizeof(bf16);
    const size_t row  = m->C * wide;
    lay_layers(m, a, rows, row);
    if (!m->options.forward_only) lay_backward(m, a, rows, row);
    void **one[] = {&m->last, &m->y, &m->d};
    for (void **p : one) *p = take(a, rows * row);
    m->h       = take(a, rows * 4 * row);
    m->logits  = take(a, m->logit_rows * m->ld * wide);
    m->mean    = (float *)take(a, rows * sizeof(float));
    m->rstd    = (float *)take(a, rows * sizeof(float));
    m->losses  = (float *)take(a, rows * sizeof(float));
    m->wide    = (float *)take(a, m->V * sizeof(float));
    m->tokens  = (int32_t *)take(a, rows * sizeof(int32_t));
    m->targets = (int32_t *)take(a, rows * sizeof(int32_t));
}

static const char *wrong_for_cuda(const gpt2_config *c, const gpt2_options *o)
{
    const char *why = gpt2_config_wrong(c);
    if (why) return why;
    if (c->channels % 8 != 0) return "on a GPU the channels must be a multiple of 8";
    if (c->channels / c->heads > 256) return "on a GPU a head has at most 256 channels";
    if (o->type == GPT2_F16) return "on a GPU precision is fp32 or bf16";
    if (o->length < 1 || o->length > c->block)
        return "the length of a sequence must be 1 to the positions of the model";
    if (o->batch < 1 || (size_t)o->batch * o->length > (size_t)1 << 24)
        return "the batch must have 1 to 16777216 tokens";
    if ((size_t)o->batch * c->heads > 65535)
        return "sequences times heads must be at most 65535: more micro-batches";
    return NULL;
}

static const char *open_lists(gpt2_cuda *m)
{
    m->value = (const void **)calloc(gpt2_tensors(&m->config), sizeof *m->value);
    m->grad  = (void **)calloc(gpt2_tensors(&m->config), sizeof *m->grad);
    m->layer = (layer_rows *)calloc(m->config.layers, sizeof *m->layer);
    m->count = (int32_t *)calloc(m->V + 1, sizeof *m->count);
    return m->value && m->grad && m->layer && m->count
               ? NULL
               : "there is not enough memory for the network";
}

static const char *open_stream(gpt2_cuda *m, const gpt2_cuda *beside)
{
    m->owns_stream = beside == NULL;
    if (beside)
        m->stream = beside->stream;
    else if (cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking) != cudaSuccess)
        return "there is no CUDA device";
    /* waiting yields the core to others: a server may be on this host */
    return cudaEventCreateWithFlags(&m->read, cudaEventDisableTiming | cudaEventBlockingSync) ==
                   cudaSuccess
               ? NULL
               : "CUDA made no event";
}

static const char *open_rows(gpt2_cuda *m)
{
    const size_t rows = (size_t)m->options.batch * m->options.length;
    arena a           = {NULL, 0};
    lay_out(m, &a);
    if (cudaMalloc(&m->memory, a.used) != cudaSuccess)
        return "the GPU has not enough memory for the network's activations";
    a = {(char *)m->memory, 0};
    lay_out(m, &a);
    if (cudaMallocHost((void **)&m->pinned.tokens, (6 * rows + 1) * sizeof(int32_t)) != cudaSuccess)
        return "there is not enough pinned memory for a batch";
    m->pinned.targets = m->pinned.tokens + rows;
    m->pinned.losses  = (float *)(m->pinned.targets + rows);
    m->pinned.sorted  = m->pinned.targets + 2 * rows;
    return NULL;
}

static const char *open_network(gpt2_cuda *m, const gpt2_cuda *beside)
{
    const size_t rows = (size_t)m->options.batch * m->options.length;
    m->C              = m->config.channels;
    m->H              = m->config.heads;
    m->V              = m->config.vocab;
    m->ld             = (m->V + 63) / 64 * 64;
    m->logit_rows     = logit_values / m->ld < rows ? logit_values / m->ld : rows;
    const char *why   = open_lists(m);
    if (!why) why = open_stream(m, beside);
    if (!why) why = open_rows(m);
    if (why) return why;
    m->multiplier = products_new();
    return m->multiplier ? NULL : "cuBLASLt could not be opened";
}

extern "C" const char *gpt2_cuda_device(int device)
{
    return cudaSetDevice(device) == cudaSuccess ? NULL
                                                : "there is no such CUDA device, or no driver";
}

extern "C" gpt2_cuda *gpt2_cuda_new(const gpt2_config *config, const gpt2_options *options,
                                    gpt2_cuda *beside, const char **why)
{
    *why         = wrong_for_cuda(config, options);
    gpt2_cuda *m = *why ? NULL : (gpt2_cuda *)calloc(1, sizeof *m);
    if (!m) {
        if (!*why) *why = "there is not enough memory for the network";
        return NULL;
    }
    m->config  = *config;
    m->options = *options;
    *why       = open_network(m, beside);
    if (!*why) return m;
    gpt2_cuda_free(m);
    return NULL;
}

extern "C" void gpt2_cuda_free(gpt2_cuda *m)
{
    if (!m) return;
    if (m->stream) cudaStreamSynchronize(m->stream);
    products_free(m->multiplier);
    cudaFree(m->memory);
    cudaFreeHost(m->pinned.tokens);
    if (m->read) cudaEventDestroy(m->read);
    if (m->stream && m->owns_stream) cudaStreamDestroy(m->stream);
    free(m->value);
    free(m->grad);
    free(m->layer);
    free(m->count);
    free(m);
}

extern "C" void *gpt2_cuda_stream(gpt2_cuda *m)
{
    return m->stream;
}

extern "C" void *gpt2_cuda_memory(size_t bytes)
{
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes) != cudaSuccess) return NULL;
    cudaMemset(memory, 0, bytes);
    cudaStreamSynchronize(NULL); /* networks do not wait for the default stream */
    return memory;
}

extern "C" void gpt2_cuda_memory_free(void *memory)
{
    cudaFree(memory);
}

static void note(gpt2_cuda *m, bool ok, const char *what)
{
    if (!ok && !m->wrong) m->wrong = what;
}

static void copy(gpt2_cuda *m, void *to, const void *from, size_t bytes, cudaMemcpyKind way)
{
    note(m, cudaMemcpyAsync(to, from, bytes, way, m->stream) == cudaSuccess,
         "a copy to or from the GPU failed");
}

extern "C" void gpt2_cuda_wait(gpt2_cuda *m)
{
    note(m, cudaStreamSynchronize(m->stream) == cudaSuccess, "a kernel failed on the GPU");
}

extern "C" void gpt2_cuda_upload(gpt2_cuda *m, void *to, const void *from, size_t bytes)
{
    copy(m, to, from, bytes, cudaMemcpyHostToDevice);
    gpt2_cuda_wait(m);
}

extern "C" void gpt2_cuda_download(gpt2_cuda *m, void *to, const void *from, size_t bytes)
{
    copy(m, to, from, bytes, cudaMemcpyDeviceToHost);
    gpt2_cuda_wait(m);
}

/* Rows are accessed 16 bytes at a time, also by cuBLASLt (products.cu). */
extern "C" void gpt2_cuda_place(gpt2_cuda *m, int index, const void *value, void *grad)
{
    note(m, ((uintptr_t)value | (uintptr_t)grad) % 16 == 0, "a tensor does not begin at 16 bytes");
    m->value[index] = value;
    m->grad[index]  = grad;
}

extern "C" void gpt2_cuda_add_gradients(gpt2_cuda *m, bool add)
{
    m->add = add;
}

/* ---- one layer, with explicit types ------------------------------------------------------------ */
template <typename T> struct network {
    gpt2_cuda *m;
    int C;
    size_t rows;

    explicit network(gpt2_cuda *of) : m(of), C(of->C), rows(of->rows) {}

    const T *value(int index) const
    {
        return (const T *)m->value[index];
    }
    T *grad(int index) const
    {
        return (T *)m->grad[index];
    }
    int of_layer(int l, int which) const
    {
        return 2 + l * GPT2_PER_LAYER + which;
    }
    int ln_f() const
    {
        return 2 + m->config.layers * GPT2_PER_LAYER;
    }

    void multiply(int p, int n, int k, const T *a, bool a_turned, int lda, const T *b,
                  bool b_turned, int ldb, float beta, T *out, int ldo, const T *bias)
    {
        const matrix<const T> first = {a, lda, a_turned}, second = {b, ldb, b_turned};
        const matrix<T> to = {out, ldo, false};
        note(m, product<T>(m->multiplier, p, n, k, first, second, beta, to, bias, m->stream),
             "cuBLASLt could not do a product");
    }

    /* out[rows, n] = x[rows, k] w[k, n] + bias */
    void linear(const T *x, int k, int weight, int n, T *out)
    {
        multiply((int)rows, n, k, x, false, k, value(weight), false, n, 0.0f, out, n,
                 value(weight + 1));
    }

    /* dx[rows, k] = d[rows, n] w^T; gradients of w and bias */
    void linear_back(const T *x, int k, int weight, int n, const T *d, T *dx)
    {
        multiply((int)rows, k, n, d, false, n, value(weight), true, n, 0.0f, dx, k, NULL);
        if (grad(weight))
            multiply(k, n, (int)rows, x, true, k, d, false, n, m->add ? 1.0f : 0.0f, grad(weight),
                     n, NULL);
        sum_rows(weight + 1, d, n);
    }

    void sum_rows(int index, const T *d, int n)
    {
        if (grad(index))
            rows_columns<T>(grad(index), m->part, d, NULL, NULL, NULL, rows, n, m->add, m->stream);
    }

    void norm(int weight, T *y, T *sum, float *mean, float *rstd, const T *x, const T *d)
    {
        rows_norm<T>(y, sum, mean, rstd, x, d, value(weight), value(weight + 1), rows, C,
                     m->stream);
    }

    /* dx = plus + the gradient of x */
    void norm_back(int weight, T *dx, const T *plus, const T *dy, const T *x, const float *mean,
                   const float *rstd)
    {
        rows_norm_back<T>(dx, plus, dy, x, mean, rstd, value(weight), rows, C, m->stream);
        if (grad(weight))
            rows_columns<T>(grad(weight), m->part, dy, x, mean, rstd, rows, C, m->add, m->stream);
        sum_rows(weight + 1, dy, C);
    }

    void block(int l)
    {
        const layer_rows *r = &m->layer[l];
        const T *before = (const T *)(l ? m->layer[l - 1].mid : r->x), *d = (const T *)m->d;
        norm(of_layer(l, GPT2_LN_1_W), (T *)r->y_1, (T *)r->x, r->mean_1, r->rstd_1, before,
             l ? d : NULL);
        block_normed(l);
    }

    void block_normed(int l)
    {
        const layer_rows *r = &m->layer[l];
        const T *d          = (const T *)m->d;
        linear((const T *)r->y_1, C, of_layer(l, GPT2_ATTN_W), 3 * C, (T *)r->qkv);
        attention_forward<T>((T *)r->att, r->lse, (const T *)r->qkv, m->batch, m->length, m->H, C,
                             m->stream);
        linear((const T *)r->att, C, of_layer(l, GPT2_ATTN_PROJ_W), C, (T *)m->d);
        norm(of_layer(l, GPT2_LN_2_W), (T *)r->y_2, (T *)r->mid, r->mean_2, r->rstd_2,
             (const T *)r->x, d);
        linear((const T *)r->y_2, C, of_layer(l, GPT2_FC_W), 4 * C, (T *)r->fc);
        rows_gelu<T>((T *)m->h, (const T *)r->fc, rows * 4 * C, m->stream);
        linear((const T *)m->h, 4 * C, of_layer(l, GPT2_PROJ_W), C, (T *)m->d);
    }

    /* The last layer's rows are still there. */
    void block_again(int l)
    {
        const layer_rows *r = &m->layer[l];
        if (!m->options.recompute || l == m->config.layers - 1) return;
        norm(of_layer(l, GPT2_LN_1_W), (T *)r->y_1, NULL, r->mean_1, r->rstd_1, (const T *)r->x,
             NULL);
        block_normed(l);
    }

    void block_back(int l)
    {
        block_again(l);
        const layer_rows *r = &m->layer[l];
        T *dx = (T *)m->dx, *dmid = (T *)m->dmid, *dy = (T *)m->dy, *dfc = (T *)m->dfc;
        const int proj = of_layer(l, GPT2_PROJ_W);
        multiply((int)rows, 4 * C, C, dx, false, C, value(proj), true, C, 0.0f, dfc, 4 * C, NULL);
        rows_gelu_back<T>(dfc, (T *)m->h, (const T *)r->fc, rows * 4 * C, m->stream);
        if (grad(proj))
            multiply(4 * C, C, (int)rows, (const T *)m->h, true, 4 * C, dx, false, C,
                     m->add ? 1.0f : 0.0f, grad(proj), C, NULL);
        sum_rows(proj + 1, dx, C);
        linear_back((const T *)r->y_2, C, of_layer(l, GPT2_FC_W), 4 * C, dfc, dy);
        norm_back(of_layer(l, GPT2_LN_2_W), dmid, dx, dy, (const T *)r->mid, r->mean_2, r->rstd_2);
        linear_back((const T *)r->att, C, of_layer(l, GPT2_ATTN_PROJ_W), C, dmid, (T *)m->datt);
        attention_backward<T>((T *)m->dqkv, m->dot, (const T *)r->qkv, (const T *)r->att,
                              (const T *)m->datt, r->lse, m->batch, m->length, m->H, C, m->stream);
        linear_back((const T *)r->y_1, C, of_layer(l, GPT2_ATTN_W), 3 * C, (const T *)m->dqkv, dy);
        norm_back(of_layer(l, GPT2_LN_1_W), dx, dmid, dy, (const T *)r->x, r->mean_1, r->rstd_1);
    }

    /* Logits of a part of the rows, which are also the second factor of wte's gradient. */
    void head_part(size_t first, int n, float scale, float beta)
    {
        T *z = (T *)m->logits, *y = (T *)m->y + first * C;
        multiply(n, m->V, C, y, false, C, value(WTE), true, C, 0.0f, z, m->ld, NULL);
        rows_loss<T>(z, m->losses + first, m->targets + first, n, m->V, m->ld, scale, m->stream);
        if (scale == 0.0f) return;
        multiply(n, C, m->V, z, false, m->ld, value(WTE), false, C, 0.0f, (T *)m->dy + first * C, C,
                 NULL);
        if (grad(WTE)) multiply(m->V, C, n, z, true, m->ld, y, false, C, beta, grad(WTE), C, NULL);
    }

    void head(float scale)
    {
        const layer_rows *r = &m->layer[m->config.layers - 1];
        norm(ln_f(), (T *)m->y, (T *)m->last, m->mean, m->rstd, (const T *)r->mid, (const T *)m->d);
        const size_t unused = (size_t)(m->config.vocab_padded - m->V) * C;
        if (scale != 0.0f && grad(WTE) && !m->add && m->config.vocab_padded)
            cudaMemsetAsync(grad(WTE) + (size_t)m->V * C, 0, unused * sizeof(T), m->stream);
        for (size_t first = 0; first < rows; first += m->logit_rows) {
            const size_t left = rows - first;
            head_part(first, (int)(left < m->logit_rows ? left : m->logit_rows), scale,
                      m->add || first ? 1.0f : 0.0f);
        }
        if (scale == 0.0f) return;
        norm_back(ln_f(), (T *)m->dx, NULL, (const T *)m->dy, (const T *)m->last, m->mean, m->rstd);
    }

    void logits_of(size_t row)
    {
        const layer_rows *r = &m->layer[m->config.layers - 1];
        norm(ln_f(), (T *)m->y, (T *)m->last, m->mean, m->rstd, (const T *)r->mid, (const T *)m->d);
        multiply(1, m->V, C, (const T *)m->y + row * C, false, C, value(WTE), true, C, 0.0f,
                 (T *)m->logits, m->ld, NULL);
        rows_widen<T>(m->wide, (const T *)m->logits, m->V, m->stream);
    }

    void embed()
    {
        rows_embed<T>((T *)m->layer[0].x, m->tokens, value(WTE), value(WPE), rows, m->length, C,
                      m->stream);
    }

    void embed_back(const rows_by_token &by)
    {
        if (grad(WTE)) rows_tokens_back<T>(grad(WTE), (const T *)m->dx, by, C, m->stream);
        if (grad(WPE))
            rows_places_back<T>(grad(WPE), (const T *)m->dx, m->batch, m->length, m->config.block,
                                C, m->add, m->stream);
    }
};

/* ---- the interface ----------------------------------------------------------------------------- */
#define BY_TYPE(m, call)                                                                           \
    do {                                                                                           \
        if ((m)->options.type == GPT2_F32)                                                         \
            network<float>(m).call;                                                                \
        else                                                                                       \
            network<bf16>(m).call;                                                                 \
    } while (0)

/* Counting sort of rows by token: [distinct tokens, their offsets, rows], as rows_by_token. */
static void sort_tokens(gpt2_cuda *m)
{
    const int rows       = (int)m->rows;
    const int32_t *given = m->pinned.tokens;
    int32_t *token = m->pinned.sorted, *first = token + rows, *row = first + rows + 1;
    int32_t *count = m->count;
    memset(count, 0, ((size_t)m->V + 1) * sizeof *count);
    for (int i = 0; i < rows; i++) count[given[i] + 1]++;
    int different = 0, at = 0;
    for (int v = 0; v < m->V; v++) {
        const int here = count[v + 1];
        if (here) token[different] = v, first[different++] = at;
        count[v] = at;
        at += here;
    }
    first[different] = at;
    for (int i = 0; i < rows; i++) row[count[given[i]]++] = i;
    m->by = {different, m->sorted, m->sorted + rows, m->sorted + 2 * rows + 1};
    copy(m, m->sorted, token, (size_t)(3 * rows + 1) * sizeof *token, cudaMemcpyHostToDevice);
}

static void mark_read(gpt2_cuda *m)
{
    note(m, cudaEventRecord(m->read, m->stream) == cudaSuccess, "CUDA recorded no event");
}

static void wait_until_read(gpt2_cuda *m)
{
    note(m, cudaEventSynchronize(m->read) == cudaSuccess, "a kernel failed on the GPU");
}

extern "C" void gpt2_cuda_embed(gpt2_cuda *m, const int32_t *tokens, int batch, int length)
{
    wait_until_read(m);
    m->batch  = batch;
    m->length = length;
    m->rows   = (size_t)batch * length;
    memcpy(m->pinned.tokens, tokens, m->rows * sizeof *tokens);
    copy(m, m->tokens, m->pinned.tokens, m->rows * sizeof *tokens, cudaMemcpyHostToDevice);
    if (!m->options.forward_only) sort_tokens(m);
    mark_read(m);
    BY_TYPE(m, embed());
}

extern "C" void gpt2_cuda_block(gpt2_cuda *m, int layer)
{
    BY_TYPE(m, block(layer));
}

extern "C" void gpt2_cuda_head(gpt2_cuda *m, const int32_t *targets, float scale)
{
    m->given = 0;
    for (size_t i = 0; i < m->rows; i++) m->given += targets[i] >= 0;
    memcpy(m->pinned.targets, targets, m->rows * sizeof *targets);
    copy(m, m->targets, m->pinned.targets, m->rows * sizeof *targets, cudaMemcpyHostToDevice);
    BY_TYPE(m, head(scale / (m->given ? (float)m->given : 1.0f)));
    copy(m, m->pinned.losses, m->losses, m->rows * sizeof(float), cudaMemcpyDeviceToHost);
    mark_read(m);
}

extern "C" void gpt2_cuda_block_backward(gpt2_cuda *m, int layer)
{
    BY_TYPE(m, block_back(layer));
}

extern "C" void gpt2_cuda_embed_backward(gpt2_cuda *m)
{
    BY_TYPE(m, embed_back(m->by));
}

extern "C" double gpt2_cuda_loss(gpt2_cuda *m)
{
    double sum = 0.0;
    wait_until_read(m);
    for (size_t i = 0; i < m->rows; i++) sum += m->pinned.losses[i];
    return m->given ? sum / m->given : 0.0;
}

extern "C" void gpt2_cuda_logits(gpt2_cuda *m, int row, float *logits)
{
    BY_TYPE(m, logits_of((size_t)row));
    gpt2_cuda_download(m, logits, m->wide, m->V * sizeof *logits);
}

extern "C" const char *gpt2_cuda_wrong(gpt2_cuda *m)
{
    note(m, cudaGetLastError() == cudaSuccess, "a kernel failed on the GPU");
    const char *wrong = m->wrong;
    m->wrong          = NULL;
    return wrong;
}

extern "C" void gpt2_cuda_update(gpt2_cuda *m, void *value, float *master, float *m1, float *m2,
                                 const void *grad, size_t n, const gpt2_cuda_adamw *rule)
{
    if (m->options.type == GPT2_F32)
        rows_adamw<float>((float *)value, master, m1, m2, (const float *)grad, n, *rule, m->stream);
    else
        rows_adamw<bf16>((bf16 *)value, master, m1, m2, (const bf16 *)grad, n, *rule, m->stream);
}

/* ---- peak performance -------------------------------------------------------------------------- */
static double seconds_now()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

template <typename T> static double square_products(gpt2_cuda *m, int n, int rounds)
{
    const size_t bytes = (size_t)n * n * sizeof(T);
    void *a = gpt2_cuda_memory(bytes), *b = gpt2_cuda_memory(bytes), *c = gpt2_cuda_memory(bytes);
    network<T> of(m);
    double begun = 0.0;
    for (int i = -3; i < rounds && a && b && c; i++) {
        if (i == 0) {
            cudaStreamSynchronize(m->stream);
            begun = seconds_now();
        }
        of.multiply(n, n, n, (const T *)a, false, n, (const T *)b, false, n, 0.0f, (T *)c, n, NULL);
    }
    cudaStreamSynchronize(m->stream);
    const double s = seconds_now() - begun;
    gpt2_cuda_memory_free(a);
    gpt2_cuda_memory_free(b);
    gpt2_cuda_memory_free(c);
    return begun > 0.0 && s > 0.0 ? 2.0 * n * n * n * rounds / s : 0.0;
}

extern "C" double gpt2_cuda_ceiling(gpt2_cuda *m, int n, int rounds)
{
    return m->options.type == GPT2_F32 ? square_products<float>(m, n, rounds)
                                       : square_products<bf16>(m, n, rounds);
}

extern "C" double gpt2_cuda_peak(gpt2_cuda *m)
{
    const double enough = 1e-3, all = 2e-2; /* seconds of one product, of those that are timed */
    double best = 0.0;
    for (int n = 64; n <= 8192; n *= 2) {
        const double one = gpt2_cuda_ceiling(m, n, 1), seconds = 2.0 * n * n * n / one;
        if (!(one > 0.0)) break;
        const int rounds  = seconds * 20 < all ? 20 : 1 + (int)(all / seconds);
        const double many = gpt2_cuda_ceiling(m, n, rounds);
        best              = many > best ? many : best;
        if (seconds > enough) break;
    }
    return best;
}
