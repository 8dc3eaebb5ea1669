/* update_state.c - masters, slots and sums of squares: one step of one worker on its part of the model. */
#include "worker/train/update_state.h"

#include "common/base/why.h"
#include "common/compute/simd/simd.h"
#include "common/trace/trace.h"
#include "proto/decision.h"
#include "worker/context.h"

#include <stdlib.h>
#include <string.h>

enum { TILE = 1024 }; /* elements that are rounded at a time */

typedef struct {
    sharded_range own;
    bool is_sharded_out;          /* its values are the master */
    float *master;                /* [own.count]; NULL: the values are in t->param, in float32 */
    float *slot[OPTIM_SLOTS_MAX]; /* [own.count] each */
    const float *grad;            /* [own.count] of this step: weighted, summed */
    uint64_t version;             /* updates applied */
} update_state_tensor;

struct update_state {
    const model *model;
    plan *plan;
    update_state_tensor *tensor;
    wire_vote *vote;
    double **sums;     /* [n_partitions][blocks] */
    double *scratch;   /* two per block of the largest tensor */
    optim_span *span;  /* chunks of the largest tensor */
    state_range *held; /* [n_tensors]; made when first asked for */
    int64_t applied;
};

/* ---- a rank's share of a sum ----------------------------------------------------------------- */
static bool weigh_rounded(float *to, const float *grad, pen_dtype as, float weight, size_t n)
{
    uint16_t rounded[TILE];
    bool is_finite = true;
    for (size_t i = 0; i < n; i += TILE) {
        const size_t count = n - i < TILE ? n - i : TILE;
        simd()->encode(rounded, grad + i, as, count);
        is_finite &= simd()->fold_set(to + i, rounded, as, weight, count);
    }
    return is_finite;
}

bool update_state_weigh(float *to, const void *grad, pen_dtype grad_dtype, pen_dtype as,
                        double weight, size_t n)
{
    if (weight == 0) {
        for (size_t i = 0; i < n; i++) to[i] = -0.0f;
        return true;
    }
    if (grad == NULL) {
        memset(to, 0, n * sizeof *to);
        return true;
    }
    if (as != grad_dtype) return weigh_rounded(to, grad, as, (float)weight, n);
    return simd()->fold_set(to, grad, as, (float)weight, n);
}

/* ---- memory ---------------------------------------------------------------------------------- */
static stat_set *stats_of(const update_state *r)
{
    return &r->model->tensor[0]->ctx->stats;
}

/* Masters of 16-bit tensors count as optimizer state. */
static stat_id counted_as(const pen_tensor *t)
{
    return t->desc.dtype == PEN_F32 ? STAT_PARAM_BYTES : STAT_SLOT_BYTES;
}

static float *hold(const update_state *r, uint64_t elements, stat_id as)
{
    float *data = calloc(elements > 0 ? elements : 1, sizeof *data);
    if (data != NULL) stat_hold(stats_of(r), as, (int64_t)(elements * sizeof *data));
    return data;
}

static void let_go(const update_state *r, float *data, uint64_t elements, stat_id as)
{
    if (data == NULL) return;
    stat_hold(stats_of(r), as, -(int64_t)(elements * sizeof *data));
    free(data);
}

static void free_tensor(const update_state *r, update_state_tensor *own, const pen_tensor *t)
{
    let_go(r, own->master, own->own.count, counted_as(t));
    for (int s = 0; s < OPTIM_SLOTS_MAX; s++)
        let_go(r, own->slot[s], own->own.count, STAT_SLOT_BYTES);
}

void update_state_destroy(update_state *r)
{
    if (r == NULL) return;
    for (uint32_t i = 0; r->tensor != NULL && i < r->model->n_tensors; i++)
        free_tensor(r, &r->tensor[i], r->model->tensor[i]);
    for (uint32_t i = 0; r->sums != NULL && i < r->plan->n_partitions; i++) free(r->sums[i]);
    free(r->tensor);
    free(r->vote);
    free(r->sums);
    free(r->scratch);
    free(r->span);
    free(r->held);
    plan_destroy(r->plan);
    free(r);
}

/* The values of the own range. */
static float *param_of(const update_state *r, const pen_tensor *t)
{
    const update_state_tensor *own = &r->tensor[t->index];
    return own->master != NULL ? own->master : (float *)t->param + own->own.start;
}

void update_state_load(update_state *r, const pen_tensor *t, const void *values)
{
    const update_state_tensor *own = &r->tensor[t->index];
    if (own->master != NULL) simd()->decode(own->master, values, t->desc.dtype, own->own.count);
}

static bool make_tensor(update_state *r, const pen_tensor *t)
{
    update_state_tensor *own = &r->tensor[t->index];
    const pen_params *p      = r->model->group[t->desc.group];
    const size_t width       = plan_dtype_bytes(t->desc.dtype);
    optim_span whole         = {.n = own->own.count};
    if (t->desc.dtype != PEN_F32 || own->is_sharded_out) {
        own->master = hold(r, own->own.count, counted_as(t));
        if (own->master == NULL) return false;
        if (!own->is_sharded_out)
            update_state_load(r, t, (const char *)t->param + own->own.start * width);
    }
    if (!t->trained) return true;
    for (int s = 0; s < p->ops->slot_count; s++) {
        own->slot[s] = whole.slot[s] = hold(r, own->own.count, STAT_SLOT_BYTES);
        if (own->slot[s] == NULL) return false;
    }
    whole.param = param_of(r, t);
    if (p->ops->slot_init != NULL) p->ops->slot_init(&p->hyper, &whole);
    return true;
}

static bool make_sums(update_state *r)
{
    const plan *p = r->plan;
    r->vote       = calloc(p->n_partitions, sizeof *r->vote);
    r->sums       = calloc(p->n_partitions, sizeof *r->sums);
    if (r->vote == NULL || r->sums == NULL) return false;
    for (uint32_t i = 0; i < p->n_partitions; i++) {
        r->sums[i] = calloc(p->partition[i].blocks + 1, sizeof(double));
        if (r->sums[i] == NULL) return false;
    }
    return true;
}

static bool make_scratch(update_state *r)
{
    uint64_t blocks = 1, chunks = 1;
    for (uint32_t i = 0; i < r->model->n_tensors; i++) {
        uint64_t b = (r->model->tensor[i]->elements + SIMD_BLOCK - 1) / SIMD_BLOCK;
        uint64_t c = r->plan->first_chunk[i + 1] - r->plan->first_chunk[i];
        if (b > blocks) blocks = b;
        if (c > chunks) chunks = c;
    }
    r->scratch = calloc(2 * blocks, sizeof *r->scratch);
    r->span    = calloc(chunks, sizeof *r->span);
    return r->scratch != NULL && r->span != NULL;
}

pen_status update_state_create(const model *m, update_state **out, pen_error *why)
{
    return update_state_create_part(m, NULL, NULL, out, why);
}

pen_status update_state_create_part(const model *m, const sharded_range *own,
                                    const bool *sharded_out, update_state **out, pen_error *why)
{
    update_state *r = calloc(1, sizeof *r);
    if (r == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the optimizer state");
    r->model = m;
    if (plan_create(&m->wire, &r->plan, why) != PEN_OK) {
        update_state_destroy(r);
        return why->status;
    }
    r->tensor = calloc(m->n_tensors, sizeof *r->tensor);
    bool ok   = r->tensor != NULL && make_sums(r) && make_scratch(r);
    for (uint32_t i = 0; ok && i < m->n_tensors; i++) {
        r->tensor[i].own = own != NULL ? own[i] : (sharded_range){.count = m->tensor[i]->elements};
        r->tensor[i].is_sharded_out = sharded_out != NULL && sharded_out[i];
        ok                          = make_tensor(r, m->tensor[i]);
    }
    if (!ok) {
        update_state_destroy(r);
        return why_set(why, PEN_NO_MEMORY, "no memory for the optimizer state of %u tensors",
                       m->n_tensors);
    }
    *out = r;
    return PEN_OK;
}

/* ---- queries --------------------------------------------------------------------------------- */
const plan *update_state_plan(const update_state *r)
{
    return r->plan;
}

int64_t update_state_applied(const update_state *r)
{
    return r->applied;
}

uint64_t update_state_version(const update_state *r, const pen_tensor *t)
{
    return r->tensor[t->index].version;
}

void update_state_values(const update_state *r, const pen_tensor *t, void *to)
{
    const float *values = param_of(r, t);
    if (to != values) simd()->encode(to, values, t->desc.dtype, r->tensor[t->index].own.count);
}

/* ---- the step -------------------------------------------------------------------------------- */
void update_state_give(update_state *r, const pen_tensor *t, const float *sum)
{
    r->tensor[t->index].grad = sum;
}

/* The elements of a chunk that lie in a range; both begin at block borders. */
static sharded_range part_of(const plan_chunk *c, const sharded_range *own)
{
    const uint64_t end_c = c->start + c->count, end_o = own->start + own->count;
    const uint64_t from = c->start > own->start ? c->start : own->start;
    const uint64_t to   = end_c < end_o ? end_c : end_o;
    return (sharded_range){.start = from, .count = to > from ? to - from : 0};
}

static uint32_t make_spans(update_state *r, const pen_tensor *t, double lr, double gscale)
{
    const update_state_tensor *own = &r->tensor[t->index];
    const pen_params *p            = r->model->group[t->desc.group];
    float *param                   = param_of(r, t);
    uint32_t n                     = 0;
    for (uint32_t c = r->plan->first_chunk[t->index]; c < r->plan->first_chunk[t->index + 1]; c++) {
        const sharded_range part = part_of(&r->plan->chunk[c], &own->own);
        const uint64_t at        = part.start - own->own.start;
        if (part.count == 0) continue;
        optim_span *span = &r->span[n++];
        *span            = (optim_span){.param    = param + at,
                                        .grad     = own->grad + at,
                                        .n        = part.count,
                                        .step     = own->version + 1,
                                        .lr       = lr,
                                        .gscale   = gscale,
                                        .no_decay = (t->desc.flags & PEN_NO_DECAY) != 0};
        for (int s = 0; s < p->ops->slot_count; s++) span->slot[s] = own->slot[s] + at;
    }
    return n;
}

void update_state_update(update_state *r, const pen_tensor *t, double lr, double gscale)
{
    const pen_params *p = r->model->group[t->desc.group];
    const uint32_t n    = make_spans(r, t, lr, gscale);
    optim_apply(p->ops, &p->hyper, r->span, n, r->scratch);
    r->tensor[t->index].version++;
}

bool update_state_needs_whole(const update_state *r, const pen_tensor *t)
{
    return t->trained && r->model->group[t->desc.group]->ops->whole_tensor;
}

static size_t blocks_of(uint64_t elements)
{
    return (elements + SIMD_BLOCK - 1) / SIMD_BLOCK;
}

size_t update_state_begin_whole(update_state *r, const pen_tensor *t, double lr, double gscale,
                                double *param, double *update)
{
    const pen_params *p = r->model->group[t->desc.group];
    const uint32_t n    = make_spans(r, t, lr, gscale);
    size_t blocks       = 0;
    for (uint32_t i = 0; i < n; i++) {
        p->ops->norms(&p->hyper, &r->span[i], param + blocks, update + blocks);
        blocks += blocks_of(r->span[i].n);
    }
    return blocks;
}

void update_state_end_whole(update_state *r, const pen_tensor *t, double lr, double gscale,
                            double param_norm, double update_norm)
{
    const pen_params *p = r->model->group[t->desc.group];
    const uint32_t n    = make_spans(r, t, lr, gscale);
    for (uint32_t i = 0; i < n; i++) {
        r->span[i].param_norm  = param_norm;
        r->span[i].update_norm = update_norm;
        p->ops->apply(&p->hyper, &r->span[i]);
    }
    r->tensor[t->index].version++;
}

/* ---- sums of squares ------------------------------------------------------------------------- */
/* The sums of a range's part of a chunk; NULL: none. */
static double *sums_of(const update_state *r, const plan_chunk *c, const sharded_range *part)
{
    if (c->blocks == 0 || part->count == 0) return NULL;
    return r->sums[c->partition] + c->first_block + (part->start - c->start) / SIMD_BLOCK;
}

static void measure(update_state *r, uint32_t chunk, uint32_t *bad_chunk)
{
    const plan_chunk *c            = &r->plan->chunk[chunk];
    const update_state_tensor *own = &r->tensor[c->tensor];
    const sharded_range part       = part_of(c, &own->own);
    double *sums                   = sums_of(r, c, &part);
    if (sums == NULL || simd()->norm(own->grad + (part.start - own->own.start), part.count, sums))
        return;
    update_state_mark_bad(r, chunk);
    if (chunk < *bad_chunk) *bad_chunk = chunk;
}

void update_state_mark_bad(update_state *r, uint32_t chunk)
{
    if (chunk >= r->plan->n_chunks) return;
    wire_vote *vote = &r->vote[r->plan->chunk[chunk].partition];
    if (vote->finite || chunk < vote->bad_chunk) vote->bad_chunk = chunk;
    vote->finite   = false;
    vote->bad_rank = 0;
}

void update_state_measure(update_state *r, double weight_sum, uint32_t *bad_chunk)
{
    *bad_chunk = UPDATE_STATE_NO_CHUNK;
    for (uint32_t i = 0; i < r->plan->n_partitions; i++)
        r->vote[i] =
            (wire_vote){.partition = i, .weight_sum = weight_sum, .finite = true, .bad_rank = -1};
    for (uint32_t c = 0; c < r->plan->n_chunks; c++) measure(r, c, bad_chunk);
}

/* Copies the sums of a member's ranges, chunk by chunk; returns their number. */
static size_t walk_sums(const update_state *r, const sharded_range *of, size_t stride, double *to,
                        const double *from)
{
    size_t n = 0;
    for (uint32_t i = 0; i < r->plan->n_chunks; i++) {
        const plan_chunk *c      = &r->plan->chunk[i];
        const sharded_range part = part_of(c, &of[(size_t)c->tensor * stride]);
        double *sums             = sums_of(r, c, &part);
        if (sums == NULL) continue;
        const size_t blocks = blocks_of(part.count);
        if (to != NULL) memcpy(to + n, sums, blocks * sizeof *sums);
        if (from != NULL) memcpy(sums, from + n, blocks * sizeof *sums);
        n += blocks;
    }
    return n;
}

size_t update_state_pack(const update_state *r, const sharded_range *own, size_t stride, double *to)
{
    return walk_sums(r, own, stride, to, NULL);
}

size_t update_state_unpack(update_state *r, const sharded_range *theirs, size_t stride,
                           const double *from)
{
    return walk_sums(r, theirs, stride, NULL, from);
}

size_t update_state_blocks(const update_state *r, const sharded_range *of, size_t stride)
{
    return walk_sums(r, of, stride, NULL, NULL);
}

bool update_state_conclude(update_state *r, const wire_inputs *inputs, wire_decision *decision,
                           uint32_t *bad_chunk)
{
    int32_t bad_rank = -1;
    decision_make(r->plan, r->vote, (const double *const *)r->sums, inputs, r->applied, decision,
                  bad_chunk, &bad_rank);
    if (decision->outcome == PEN_APPLIED) r->applied++;
    return bad_rank >= 0;
}

bool update_state_decide(update_state *r, const wire_inputs *inputs, double weight_sum,
                         wire_decision *decision, uint32_t *bad_chunk)
{
    uint32_t own_bad;
    update_state_measure(r, weight_sum, &own_bad);
    return update_state_conclude(r, inputs, decision, bad_chunk);
}

void update_state_count_step(update_state *r)
{
    r->applied++;
}

/* The factor without a decision.  Sums have weighted gradients; a push that is applied alone was not
 * weighted and is scaled now.  0: nothing to apply. */
static double gscale_alone(ps_client_rule rule, const wire_inputs *in, double weight_sum)
{
    if (weight_sum == 0) return 0;
    return rule == STEP_ASYNC ? in->weight / in->loss_scale : 1 / (weight_sum * in->loss_scale);
}

bool update_state_gscale(const update_state *r, const pen_tensor *t, const wire_inputs *inputs,
                         double weight_sum, const wire_decision *decision, double *gscale)
{
    const ps_client_rule rule = model_rule_of(r->model, t);
    const bool is_decided     = rule == STEP_TWO_PHASE;
    *gscale = is_decided ? decision->gscale : gscale_alone(rule, inputs, weight_sum);
    return is_decided ? decision->outcome == PEN_APPLIED : *gscale != 0;
}

void update_state_carry_out(update_state *r, const pen_tensor *t, const wire_inputs *inputs,
                            double weight_sum, const wire_decision *decision)
{
    double gscale;
    if (!update_state_gscale(r, t, inputs, weight_sum, decision, &gscale)) return;
    const uint64_t begun = trace_begin();
    update_state_update(r, t, inputs->rate[t->desc.group], gscale);
    update_state_values(r, t, t->param);
    trace_span(TRACE_UPDATE, begun, &(trace_note){.label = t->name});
}

/* ---- snapshots ------------------------------------------------------------------------------- */
pen_status update_state_state_ranges(update_state *r, state_ranges *h, pen_error *why)
{
    const model *m = r->model;
    if (r->held == NULL) r->held = calloc(m->n_tensors + 1, sizeof *r->held);
    if (r->held == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory to list %u tensors", m->n_tensors);
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const pen_tensor *t = m->tensor[i];
        r->held[i]          = (state_range){.tensor  = i,
                                            .start   = r->tensor[i].own.start,
                                            .count   = r->tensor[i].own.count,
                                            .param   = param_of(r, t),
                                            .version = r->tensor[i].version};
        memcpy(r->held[i].slot, r->tensor[i].slot, sizeof r->held[i].slot);
    }
    h->n       = m->n_tensors;
    h->span    = r->held;
    h->applied = r->applied;
    return PEN_OK;
}

void update_state_restored(update_state *r, int64_t applied)
{
    const model *m = r->model;
    r->applied     = applied;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const pen_tensor *t  = m->tensor[i];
        r->tensor[i].version = r->held[i].version;
        if (!r->tensor[i].is_sharded_out)
            update_state_values(
                r, t, (char *)t->param + r->held[i].start * plan_dtype_bytes(t->desc.dtype));
    }
}
