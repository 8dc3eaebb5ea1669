/* block.c - one layer, forward and backward: regions of the crew's work, by rows or by (sequence, head). */
#include "network.h"

/* ---- forward ---- */
static crew_part my_rows(const gpt2 *m, int member, int members)
{
    crew_part p = crew_share(m->rows - m->first_row, 8, member, members);
    p.begin += m->first_row;
    p.end += m->first_row;
    return p;
}

static size_t chunk_at(size_t row, size_t end)
{
    return end - row < CHUNK_ROWS ? end - row : CHUNK_ROWS;
}

static void norm_and_qkv(void *arg, int member, int members)
{
    const layer_job *job = arg;
    gpt2 *m              = job->m;
    const size_t C       = (size_t)m->C;
    const layer_acts *a  = &m->acts[job->layer];
    float *y             = m->scratch[member].y;
    const crew_part p    = my_rows(m, member, members);
    for (size_t r = p.begin, n; r < p.end; r += n) {
        n = chunk_at(r, p.end);
        m->k->norm(y, a->mean_1 + r, a->rstd_1 + r, a->x + r * C, job->value[GPT2_LN_1_W],
                   job->value[GPT2_LN_1_B], n, C);
        m->k->fill(a->qkv + r * 3 * C, job->value[GPT2_ATTN_B], n, 3 * C);
        product_nn(n, 3 * C, C, y, C, job->value[GPT2_ATTN_W], 3 * C, 1.0f, a->qkv + r * 3 * C,
                   3 * C);
    }
}

static void attend(void *arg, int member, int members)
{
    const layer_job *job  = arg;
    gpt2 *m               = job->m;
    const size_t pairs    = (size_t)m->batch * (size_t)m->H;
    const crew_part share = crew_share(pairs, 1, member, members);
    attention_forward(m, &m->acts[job->layer], &m->scratch[member], share.begin, share.end);
}

/* out[rows] of the layer; NULL: recomputes only what the backward pass needs. */
static void project_and_mlp_rows(const layer_job *job, member_scratch *s, float *out, size_t r,
                                 size_t n)
{
    gpt2 *m             = job->m;
    const size_t C      = (size_t)m->C;
    const layer_acts *a = &m->acts[job->layer];
    float *mid = a->mid + r * C, *fc = a->fc ? a->fc + r * 4 * C : s->h;
    m->k->residual(mid, a->x + r * C, job->value[GPT2_ATTN_PROJ_B], n, C);
    product_nn(n, C, C, a->att + r * C, C, job->value[GPT2_ATTN_PROJ_W], C, 1.0f, mid, C);
    m->k->norm(s->y, a->mean_2 + r, a->rstd_2 + r, mid, job->value[GPT2_LN_2_W],
               job->value[GPT2_LN_2_B], n, C);
    m->k->fill(fc, job->value[GPT2_FC_B], n, 4 * C);
    product_nn(n, 4 * C, C, s->y, C, job->value[GPT2_FC_W], 4 * C, 1.0f, fc, 4 * C);
    if (!out) return;
    m->k->gelu(s->h, fc, n * 4 * C);
    m->k->residual(out + r * C, mid, job->value[GPT2_PROJ_B], n, C);
    product_nn(n, C, 4 * C, s->h, 4 * C, job->value[GPT2_PROJ_W], C, 1.0f, out + r * C, C);
}

static float *output_of(const gpt2 *m, int layer)
{
    return layer + 1 < m->config.layers ? m->acts[layer + 1].x : m->last;
}

static void project_and_mlp(void *arg, int member, int members)
{
    const layer_job *job = arg;
    const crew_part p    = my_rows(job->m, member, members);
    float *out           = output_of(job->m, job->layer);
    for (size_t r = p.begin, n; r < p.end; r += n) {
        n = chunk_at(r, p.end);
        project_and_mlp_rows(job, &job->m->scratch[member], out, r, n);
    }
}

void gpt2_block(gpt2 *m, int layer)
{
    layer_job job;
    layer_open(&job, m, layer);
    crew_run(m->crew, norm_and_qkv, &job);
    crew_run(m->crew, attend, &job);
    crew_run(m->crew, project_and_mlp, &job);
}

/* ---- backward ---- */
/* Offsets of the sums of one layer's small tensors in member_scratch.small, in channels. */
enum {
    AT_LN_1_W      = 0,
    AT_LN_1_B      = 1,
    AT_ATTN_B      = 2,
    AT_ATTN_PROJ_B = 5,
    AT_LN_2_W      = 6,
    AT_LN_2_B      = 7,
    AT_FC_B        = 8,
    AT_PROJ_B      = 12
};

static void project_and_mlp_again(void *arg, int member, int members)
{
    const layer_job *job = arg;
    const crew_part p    = my_rows(job->m, member, members);
    for (size_t r = p.begin, n; r < p.end; r += n) {
        n = chunk_at(r, p.end);
        project_and_mlp_rows(job, &job->m->scratch[member], NULL, r, n);
    }
}

/* From dx down to the gradient of attention's result: dfc, g, y, dmid, datt. */
static void mlp_back_rows(const layer_job *job, member_scratch *s, size_t r, size_t n)
{
    gpt2 *m             = job->m;
    const size_t C      = (size_t)m->C;
    const layer_acts *a = &m->acts[job->layer];
    float *small = s->small, *dfc = m->dfc + r * 4 * C;
    m->k->columns(small + AT_PROJ_B * C, m->dx + r * C, n, C);
    product_nt(n, 4 * C, C, m->dx + r * C, C, job->value[GPT2_PROJ_W], C, 0.0f, dfc, 4 * C);
    m->k->gelu_back(dfc, m->g + r * 4 * C, small + AT_FC_B * C, a->fc + r * 4 * C, n, 4 * C);
    product_nt(n, C, 4 * C, dfc, 4 * C, job->value[GPT2_FC_W], 4 * C, 0.0f, s->y, C);
    m->k->norm_back(m->dmid + r * C, m->y + r * C, small + AT_LN_2_W * C, small + AT_LN_2_B * C,
                    m->dx + r * C, s->y, a->mid + r * C, a->mean_2 + r, a->rstd_2 + r,
                    job->value[GPT2_LN_2_W], job->value[GPT2_LN_2_B], n, C);
    m->k->columns(small + AT_ATTN_PROJ_B * C, m->dmid + r * C, n, C);
    product_nt(n, C, C, m->dmid + r * C, C, job->value[GPT2_ATTN_PROJ_W], C, 0.0f, m->datt + r * C,
               C);
}

static void mlp_back(void *arg, int member, int members)
{
    const layer_job *job = arg;
    const crew_part p    = my_rows(job->m, member, members);
    for (size_t r = p.begin, n; r < p.end; r += n) {
        n = chunk_at(r, p.end);
        mlp_back_rows(job, &job->m->scratch[member], r, n);
    }
}

/* The gradient of weight `which`[rows][columns] is x^T d; members divide its rows. */
static void weight_back(const layer_job *job, int which, const float *x, size_t rows,
                        const float *d, size_t columns, int member, int members)
{
    const crew_part p = crew_share(rows, 16, member, members);
    if (!job->grad[which] || p.begin == p.end) return;
    product_tn(p.end - p.begin, columns, job->m->rows, x + p.begin, rows, d, columns, job->beta,
               job->grad[which] + p.begin * columns, columns);
}

static void attend_back(void *arg, int member, int members)
{
    const layer_job *job = arg;
    gpt2 *m              = job->m;
    const size_t C       = (size_t)m->C;
    const layer_acts *a  = &m->acts[job->layer];
    weight_back(job, GPT2_PROJ_W, m->g, 4 * C, m->dx, C, member, members);
    weight_back(job, GPT2_FC_W, m->y, C, m->dfc, 4 * C, member, members);
    weight_back(job, GPT2_ATTN_PROJ_W, a->att, C, m->dmid, C, member, members);
    const crew_part share = crew_share((size_t)m->batch * (size_t)m->H, 1, member, members);
    attention_backward(m, a, &m->scratch[member], share.begin, share.end);
}

/* dx becomes the gradient of the layer's input. */
static void qkv_back(void *arg, int member, int members)
{
    const layer_job *job = arg;
    gpt2 *m              = job->m;
    const size_t C       = (size_t)m->C;
    const layer_acts *a  = &m->acts[job->layer];
    float *y = m->scratch[member].y, *small = m->scratch[member].small;
    const crew_part p = my_rows(m, member, members);
    for (size_t r = p.begin, n; r < p.end; r += n) {
        n                 = chunk_at(r, p.end);
        const float *dqkv = m->dqkv + r * 3 * C;
        m->k->columns(small + AT_ATTN_B * C, dqkv, n, 3 * C);
        product_nt(n, C, 3 * C, dqkv, 3 * C, job->value[GPT2_ATTN_W], 3 * C, 0.0f, y, C);
        m->k->norm_back(m->dx + r * C, m->y + r * C, small + AT_LN_1_W * C, small + AT_LN_1_B * C,
                        m->dmid + r * C, y, a->x + r * C, a->mean_1 + r, a->rstd_1 + r,
                        job->value[GPT2_LN_1_W], job->value[GPT2_LN_1_B], n, C);
    }
}

static void qkv_weight_back(void *arg, int member, int members)
{
    const layer_job *job = arg;
    gpt2 *m              = job->m;
    const size_t C       = (size_t)m->C;
    weight_back(job, GPT2_ATTN_W, m->y, C, m->dqkv, 3 * C, member, members);
}

static void store_small(gpt2 *m, int layer)
{
    static const struct {
        int which, at;
    } all[] = {
        {GPT2_LN_1_W, AT_LN_1_W}, {GPT2_LN_1_B, AT_LN_1_B}, {GPT2_ATTN_B, AT_ATTN_B},
        {GPT2_LN_2_W, AT_LN_2_W}, {GPT2_LN_2_B, AT_LN_2_B}, {GPT2_ATTN_PROJ_B, AT_ATTN_PROJ_B},
        {GPT2_FC_B, AT_FC_B},     {GPT2_PROJ_B, AT_PROJ_B},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        network_small_grad(m, layer_tensor(layer, all[i].which), (size_t)all[i].at * (size_t)m->C);
}

void gpt2_block_backward(gpt2 *m, int layer)
{
    layer_job job;
    layer_open(&job, m, layer);
    network_clear_small(m);
    if (m->options.recompute) {
        crew_run(m->crew, norm_and_qkv, &job);
        crew_run(m->crew, attend, &job);
        crew_run(m->crew, project_and_mlp_again, &job);
    }
    crew_run(m->crew, mlp_back, &job);
    crew_run(m->crew, attend_back, &job);
    crew_run(m->crew, qkv_back, &job);
    crew_run(m->crew, qkv_weight_back, &job);
    store_small(m, layer);
    layer_close(&job);
}
