/* head.c - outside the layers: embeddings below, logits and loss above.
 *
 * Logits exist for a few rows at a time only.  Their gradient overwrites them, and both products with it (the gradient
 * of the rows and of wte) are computed before the next rows.
 */
#include "network.h"

#include <string.h>

enum { WTE = 0, WPE = 1, AT_LN_F_W = 0, AT_LN_F_B = 1 };

/* ---- embeddings, forward ---- */
typedef struct {
    gpt2 *m;
    const void *wte, *wpe; /* of options.type */
} embed_job;

/* One row of a table of options.type, in float32. */
static const float *table_row(const gpt2 *m, const void *table, size_t row, float *scratch)
{
    const size_t C = (size_t)m->C;
    if (is_wide(m)) return (const float *)table + row * C;
    if (m->options.type == GPT2_BF16)
        m->k->from_bf16(scratch, (const uint16_t *)table + row * C, C);
    else
        m->k->from_f16(scratch, (const uint16_t *)table + row * C, C);
    return scratch;
}

static void embed_rows(void *arg, int member, int members)
{
    const embed_job *job = arg;
    gpt2 *m              = job->m;
    const size_t C = (size_t)m->C, T = (size_t)m->length;
    float *scratch = m->scratch[member].h;
    crew_part p    = crew_share(m->rows - m->first_row, 8, member, members);
    for (size_t i = p.begin + m->first_row; i < p.end + m->first_row; i++) {
        const float *token = table_row(m, job->wte, (size_t)m->tokens[i], scratch);
        const float *place = table_row(m, job->wpe, i % T, scratch + C);
        m->k->residual(m->acts[0].x + i * C, token, place, 1, C);
    }
}

void gpt2_embed(gpt2 *m, const int32_t *tokens, int batch, int length, int from)
{
    m->batch     = batch;
    m->length    = length;
    m->from      = from;
    m->rows      = (size_t)batch * (size_t)length;
    m->first_row = (size_t)from;
    memcpy(m->tokens, tokens, m->rows * sizeof *tokens);
    embed_job job = {m, m->value[WTE], m->value[WPE]};
    crew_run(m->crew, embed_rows, &job);
}

/* ---- logits and loss ---- */
typedef struct {
    gpt2 *m;
    const int32_t *targets;
    const float *wte, *w, *b;
    float *grad;       /* of wte; NULL: not wanted */
    float scale, beta; /* scale 0: no gradients */
    bool backward;
    size_t first, rows; /* of this chunk */
} head_job;

static int ln_f(const gpt2 *m)
{
    return 2 + m->config.layers * GPT2_PER_LAYER;
}

static void head_open(head_job *job, gpt2 *m, const int32_t *targets)
{
    *job   = (head_job){.m = m, .targets = targets, .wte = network_value(m, WTE, m->wte_value)};
    job->w = network_value(m, ln_f(m), m->small_value);
    job->b = network_value(m, ln_f(m) + 1, m->small_value + m->C);
}

static void loss_rows(const head_job *job, float *logits, size_t begin, size_t end)
{
    gpt2 *m        = job->m;
    const size_t V = (size_t)m->V;
    for (size_t i = begin; i < end; i++) {
        float *z         = logits + (i - begin) * V;
        const int target = job->targets[i];
        m->losses[i]     = 0.0f;
        if (target < 0)
            memset(z, 0, job->backward ? V * sizeof *z : 0);
        else if (job->backward)
            m->losses[i] = (float)m->k->cross_entropy(z, V, (size_t)target, job->scale);
        else
            m->losses[i] = (float)m->k->cross_entropy_only(z, V, (size_t)target);
    }
}

/* m->y stores the normed rows of the chunk for wte's gradient. */
static void head_rows(const head_job *job, member_scratch *s, size_t r, size_t n)
{
    gpt2 *m        = job->m;
    const size_t C = (size_t)m->C, V = (size_t)m->V;
    const float *x = m->last + r * C;
    float *z = m->logits + (r - job->first) * V, *y = s->y;
    m->k->norm(y, m->mean + r, m->rstd + r, x, job->w, job->b, n, C);
    product_nt(n, V, C, y, C, job->wte, C, 0.0f, z, V);
    loss_rows(job, z, r, r + n);
    if (!job->backward) return;
    product_nn(n, C, V, z, V, job->wte, C, 0.0f, s->h, C);
    m->k->norm_back(m->dx + r * C, m->y + r * C, s->small + AT_LN_F_W * C, s->small + AT_LN_F_B * C,
                    NULL, s->h, x, m->mean + r, m->rstd + r, job->w, job->b, n, C);
}

static void head_chunk(void *arg, int member, int members)
{
    const head_job *job = arg;
    const crew_part p   = crew_share(job->rows, 8, member, members);
    for (size_t r = p.begin, n; r < p.end; r += n) {
        n = p.end - r < CHUNK_ROWS ? p.end - r : CHUNK_ROWS;
        head_rows(job, &job->m->scratch[member], job->first + r, n);
    }
}

static void wte_back(void *arg, int member, int members)
{
    const head_job *job = arg;
    gpt2 *m             = job->m;
    const size_t C = (size_t)m->C, V = (size_t)m->V;
    const crew_part p = crew_share(V, 16, member, members);
    if (p.begin == p.end) return;
    product_tn(p.end - p.begin, C, job->rows, m->logits + p.begin, V, m->y + job->first * C, C,
               job->beta, job->grad + p.begin * C, C);
}

static size_t targets_given(const int32_t *targets, size_t rows)
{
    size_t n = 0;
    for (size_t i = 0; i < rows; i++) n += targets[i] >= 0;
    return n;
}

static double run_head(head_job *job)
{
    gpt2 *m            = job->m;
    const size_t given = targets_given(job->targets, m->rows);
    double loss        = 0.0;
    job->scale /= given ? (float)given : 1.0f;
    for (job->first = 0; job->first < m->rows; job->first += job->rows) {
        const size_t left = m->rows - job->first;
        job->rows         = left < m->logit_rows ? left : m->logit_rows;
        crew_run(m->crew, head_chunk, job);
        if (job->grad) crew_run(m->crew, wte_back, job);
        job->beta = 1.0f;
    }
    for (size_t i = 0; i < m->rows; i++) loss += (double)m->losses[i];
    return given ? loss / (double)given : 0.0;
}

double gpt2_head(gpt2 *m, const int32_t *targets, float scale)
{
    head_job job;
    head_open(&job, m, targets);
    job.scale    = scale;
    job.backward = true;
    job.beta     = m->add && is_wide(m) ? 1.0f : 0.0f;
    if (m->grad[WTE]) job.grad = is_wide(m) ? m->grad[WTE] : m->wte_grad;
    if (job.grad && job.beta == 0.0f) {
        const size_t seen = (size_t)m->V * (size_t)m->C, all = network_tensor_values(m, WTE);
        memset(job.grad + seen, 0, (all - seen) * sizeof(float));
    }
    network_clear_small(m);
    const double loss = run_head(&job);
    network_small_grad(m, ln_f(m), AT_LN_F_W * (size_t)m->C);
    network_small_grad(m, ln_f(m) + 1, AT_LN_F_B * (size_t)m->C);
    return loss;
}

double gpt2_head_loss(gpt2 *m, const int32_t *targets)
{
    head_job job;
    head_open(&job, m, targets);
    return run_head(&job);
}

void gpt2_logits(gpt2 *m, int sequence, int position, float *logits)
{
    head_job job;
    head_open(&job, m, NULL);
    const size_t C = (size_t)m->C, row = (size_t)sequence * (size_t)m->length + (size_t)position;
    float *y = m->scratch[0].y;
    m->k->norm(y, m->mean + row, m->rstd + row, m->last + row * C, job.w, job.b, 1, C);
    product_nt(1, (size_t)m->V, C, y, C, job.wte, C, 0.0f, logits, (size_t)m->V);
}

/* ---- embeddings, backward ---- */
typedef struct {
    gpt2 *m;
    float *wte; /* float32, includes the head's part; NULL: not wanted */
} embed_back_job;

/* Members divide the channels: each adds the rows in order, so that no two members write one value. */
static void tokens_back(void *arg, int member, int members)
{
    const embed_back_job *job = arg;
    gpt2 *m                   = job->m;
    const size_t C            = (size_t)m->C;
    const crew_part p         = crew_share(C, 16, member, members);
    for (size_t i = 0; i < m->rows; i++)
        m->k->add(job->wte + (size_t)m->tokens[i] * C + p.begin, m->dx + i * C + p.begin,
                  p.end - p.begin);
}

static void store_place(gpt2 *m, size_t position, const float *sum)
{
    const size_t C = (size_t)m->C;
    float *wide    = (float *)m->grad[WPE] + position * C;
    uint16_t *half = (uint16_t *)m->grad[WPE] + position * C;
    if (m->options.type == GPT2_BF16)
        m->k->to_bf16(half, sum, C, m->add);
    else if (m->options.type == GPT2_F16)
        m->k->to_f16(half, sum, C, m->add);
    else if (m->add)
        m->k->add(wide, sum, C);
    else
        memcpy(wide, sum, C * sizeof *sum);
}

/* A position's gradient is the sum over sequences; unused positions have none. */
static void places_back(void *arg, int member, int members)
{
    const embed_back_job *job = arg;
    gpt2 *m                   = job->m;
    const size_t C = (size_t)m->C, T = (size_t)m->length;
    const crew_part p = crew_share((size_t)m->config.block, 1, member, members);
    float *sum        = m->scratch[member].y;
    for (size_t t = p.begin; t < p.end; t++) {
        memset(sum, 0, C * sizeof *sum);
        for (size_t b = 0; b < (size_t)m->batch && t < T; b++)
            m->k->add(sum, m->dx + (b * T + t) * C, C);
        store_place(m, t, sum);
    }
}

void gpt2_embed_backward(gpt2 *m)
{
    embed_back_job job = {.m = m};
    if (m->grad[WTE]) job.wte = is_wide(m) ? m->grad[WTE] : m->wte_grad;
    if (job.wte) crew_run(m->crew, tokens_back, &job);
    if (job.wte && !is_wide(m)) network_store_grad(m, WTE, job.wte);
    if (m->grad[WPE]) crew_run(m->crew, places_back, &job);
}
