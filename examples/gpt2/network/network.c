/* network.c - the object behind model.h: its memory, and 16-bit values and gradients. */
#include "network.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN_FLOATS = 16, LOGIT_FLOATS = 4 << 20, SMALL_PER_LAYER = 13 };

size_t network_tensor_values(const gpt2 *m, int index)
{
    gpt2_tensor t;
    gpt2_tensor_get(&m->config, index, &t);
    return gpt2_tensor_values(&t);
}

/* Memory is laid out twice: first without a base, to compute its size. */
typedef struct {
    float *base;
    size_t used;
} arena;

static float *take(arena *a, size_t n)
{
    float *p = a->base ? a->base + a->used : NULL;
    a->used += (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    return p;
}

static void lay_acts(gpt2 *m, arena *a, layer_acts *acts, size_t rows)
{
    const size_t C = (size_t)m->C;
    acts->qkv      = take(a, rows * 3 * C);
    acts->att      = take(a, rows * C);
    acts->mid      = take(a, rows * C);
    acts->fc       = m->options.forward_only ? NULL : take(a, rows * 4 * C);
    acts->lse      = take(a, rows * (size_t)m->H);
    acts->mean_1   = take(a, rows);
    acts->rstd_1   = take(a, rows);
    acts->mean_2   = take(a, rows);
    acts->rstd_2   = take(a, rows);
}

/* forward_only: the layers share everything but qkv, which later calls with `from` use. recompute: they share
 * everything but x. */
static void lay_layers(gpt2 *m, arena *a, size_t rows)
{
    const size_t C     = (size_t)m->C;
    const bool forward = m->options.forward_only, share = forward || m->options.recompute;
    for (int l = 0; l < m->config.layers; l++) {
        layer_acts *acts = &m->acts[l];
        if (l == 0 || !share)
            lay_acts(m, a, acts, rows);
        else
            *acts = m->acts[0];
        acts->x = l == 0 || !forward ? take(a, rows * C) : m->acts[0].x;
        if (forward && l > 0) acts->qkv = take(a, rows * 3 * C);
    }
    m->last = forward ? m->acts[0].x : take(a, rows * C);
}

static void lay_backward(gpt2 *m, arena *a, size_t rows)
{
    const size_t C = (size_t)m->C;
    m->dx          = take(a, rows * C);
    m->dmid        = take(a, rows * C);
    m->datt        = take(a, rows * C);
    m->y           = take(a, rows * C);
    m->dqkv        = take(a, rows * 3 * C);
    m->dfc         = take(a, rows * 4 * C);
    m->g           = take(a, rows * 4 * C);
}

static void lay_16_bit(gpt2 *m, arena *a)
{
    const size_t C = (size_t)m->C, layer = 12 * C * C + SMALL_PER_LAYER * C;
    const size_t wte = network_tensor_values(m, 0);
    m->small_value   = take(a, 2 * C);
    m->wte_value     = take(a, wte);
    m->layer_value   = take(a, layer);
    if (m->options.forward_only) return;
    m->layer_grad = take(a, layer);
    m->wte_grad   = take(a, wte);
}

static void lay_out(gpt2 *m, arena *a)
{
    const size_t C = (size_t)m->C, T = (size_t)m->options.length;
    const size_t rows = (size_t)m->options.batch * T;
    lay_layers(m, a, rows);
    m->mean   = take(a, rows);
    m->rstd   = take(a, rows);
    m->losses = take(a, rows);
    m->logits = take(a, m->logit_rows * (size_t)m->V);
    if (!m->options.forward_only) lay_backward(m, a, rows);
    if (!is_wide(m)) lay_16_bit(m, a);
    for (int i = 0; i < crew_members(m->crew); i++) {
        member_scratch *s = &m->scratch[i];
        s->y              = take(a, CHUNK_ROWS * C);
        s->h              = take(a, CHUNK_ROWS * 4 * C);
        s->s              = take(a, QUERY_ROWS * T);
        s->d              = take(a, QUERY_ROWS * T);
        s->sum            = take(a, QUERY_ROWS);
        s->small          = take(a, SMALL_PER_LAYER * C);
    }
}

static bool reserve(gpt2 *m)
{
    arena a = {0};
    lay_out(m, &a);
    m->bytes = a.used * sizeof(float);
    if (posix_memalign(&m->memory, 64, m->bytes) != 0) return false;
    memset(m->memory, 0, m->bytes);
    a = (arena){.base = m->memory};
    lay_out(m, &a);
    return true;
}

/* Few enough rows of logits to stay small, but enough for an efficient product with wte. */
static size_t rows_of_logits(const gpt2 *m)
{
    const size_t rows = (size_t)m->options.batch * (size_t)m->options.length;
    const size_t most = LOGIT_FLOATS / (size_t)m->V, least = 256;
    const size_t want = most > least ? most : least;
    return want < rows ? want : rows;
}

static const char *open_network(gpt2 *m)
{
    const gpt2_options *o = &m->options;
    m->C                  = m->config.channels;
    m->H                  = m->config.heads;
    m->V                  = m->config.vocab;
    m->tensors            = gpt2_tensors(&m->config);
    m->k                  = gpt2_kernels_best();
    m->logit_rows         = rows_of_logits(m);
    m->crew               = crew_new(o->threads < 1 ? 1 : o->threads);
    if (!m->crew) return "the threads of the network could not be started";
    m->value   = calloc((size_t)m->tensors, sizeof *m->value);
    m->grad    = calloc((size_t)m->tensors, sizeof *m->grad);
    m->acts    = calloc((size_t)m->config.layers, sizeof *m->acts);
    m->scratch = calloc((size_t)crew_members(m->crew), sizeof *m->scratch);
    m->tokens  = calloc((size_t)o->batch * (size_t)o->length, sizeof *m->tokens);
    if (!m->value || !m->grad || !m->acts || !m->scratch || !m->tokens || !reserve(m))
        return "there is not enough memory for the network's activations";
    openblas_set_num_threads(1);
    return NULL;
}

gpt2 *gpt2_new(const gpt2_config *config, const gpt2_options *options, const char **why)
{
    *why = gpt2_config_wrong(config);
    if (!*why && (options->length < 1 || options->length > config->block))
        *why = "the length of a sequence must be 1 to the positions of the model";
    if (!*why && (options->batch < 1 || options->batch > 1 << 16))
        *why = "the batch must have 1 to 65536 sequences";
    if (!*why && (options->threads < 0 || options->threads > 1024))
        *why = "the network takes at most 1024 threads";
    gpt2 *m = *why ? NULL : calloc(1, sizeof *m);
    if (!m) {
        if (!*why) *why = "there is not enough memory for the network";
        return NULL;
    }
    m->config  = *config;
    m->options = *options;
    *why       = open_network(m);
    if (!*why) return m;
    gpt2_free(m);
    return NULL;
}

void gpt2_free(gpt2 *m)
{
    if (!m) return;
    crew_free(m->crew);
    free(m->memory);
    free(m->value);
    free(m->grad);
    free(m->acts);
    free(m->scratch);
    free(m->tokens);
    free(m);
}

size_t gpt2_bytes(const gpt2 *m)
{
    return m->bytes;
}

void gpt2_place(gpt2 *m, int index, const void *value, void *grad)
{
    m->value[index] = value;
    m->grad[index]  = grad;
}

void gpt2_add_gradients(gpt2 *m, bool add)
{
    m->add = add;
}

/* ---- values ---- */
typedef struct {
    gpt2 *m;
    void *out;
    const void *in;
    size_t n;
} convert_job;

static void decode_part(void *arg, int member, int members)
{
    const convert_job *job  = arg;
    const crew_part p       = crew_share(job->n, VALUES_GRAIN, member, members);
    const gpt2_kernels *k   = job->m->k;
    const uint16_t *const x = (const uint16_t *)job->in + p.begin;
    float *const out        = (float *)job->out + p.begin;
    if (job->m->options.type == GPT2_BF16)
        k->from_bf16(out, x, p.end - p.begin);
    else
        k->from_f16(out, x, p.end - p.begin);
}

static void encode_part(void *arg, int member, int members)
{
    const convert_job *job = arg;
    const crew_part p      = crew_share(job->n, VALUES_GRAIN, member, members);
    const gpt2_kernels *k  = job->m->k;
    const float *const x   = (const float *)job->in + p.begin;
    uint16_t *const out    = (uint16_t *)job->out + p.begin;
    if (job->m->options.type == GPT2_BF16)
        k->to_bf16(out, x, p.end - p.begin, job->m->add);
    else
        k->to_f16(out, x, p.end - p.begin, job->m->add);
}

const float *network_value(gpt2 *m, int index, float *scratch)
{
    if (is_wide(m)) return m->value[index];
    convert_job job = {m, scratch, m->value[index], network_tensor_values(m, index)};
    crew_run(m->crew, decode_part, &job);
    return scratch;
}

/* ---- gradients ---- */
void network_store_grad(gpt2 *m, int index, const float *wide)
{
    if (!m->grad[index]) return;
    convert_job job = {m, m->grad[index], wide, network_tensor_values(m, index)};
    crew_run(m->crew, encode_part, &job);
}

void network_clear_small(gpt2 *m)
{
    for (int i = 0; i < crew_members(m->crew); i++)
        memset(m->scratch[i].small, 0, SMALL_PER_LAYER * (size_t)m->C * sizeof(float));
}

void network_small_grad(gpt2 *m, int index, size_t offset)
{
    const size_t n = network_tensor_values(m, index);
    float *sum     = m->scratch[0].small + offset;
    for (int i = 1; i < crew_members(m->crew); i++) m->k->add(sum, m->scratch[i].small + offset, n);
    if (!m->grad[index]) return;
    if (!is_wide(m))
        network_store_grad(m, index, sum);
    else if (m->add)
        m->k->add(m->grad[index], sum, n);
    else
        memcpy(m->grad[index], sum, n * sizeof *sum);
}

/* ---- one layer's tensors ---- */
void layer_open(layer_job *job, gpt2 *m, int layer)
{
    float *value = m->layer_value, *grad = m->layer_grad;
    *job = (layer_job){.m = m, .layer = layer, .beta = m->add && is_wide(m) ? 1.0f : 0.0f};
    for (int i = 0; i < GPT2_PER_LAYER; i++) {
        const int index = layer_tensor(layer, i);
        job->value[i]   = network_value(m, index, value);
        if (m->grad[index]) job->grad[i] = is_wide(m) ? m->grad[index] : grad;
        if (is_wide(m)) continue;
        value += network_tensor_values(m, index);
        if (grad) grad += network_tensor_values(m, index);
    }
}

void layer_close(layer_job *job)
{
    static const int matrices[] = {GPT2_ATTN_W, GPT2_ATTN_PROJ_W, GPT2_FC_W, GPT2_PROJ_W};
    if (is_wide(job->m)) return;
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        network_store_grad(job->m, layer_tensor(job->layer, matrices[i]), job->grad[matrices[i]]);
}
