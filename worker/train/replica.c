/* replica.c - masters, slots and sums of squares; one step of one worker on its part of the model. */
#include "worker/train/replica.h"

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
    bool is_apart;                /* its values are the master */
    float *master;                /* [own.count]; NULL: they are in t->param, in float32 */
    float *slot[OPTIM_SLOTS_MAX]; /* [own.count] each */
    const float *grad;            /* [own.count] of this step: weighted, summed */
    uint64_t version;             /* updates applied */
} replica_tensor;

struct replica {
    const model *model;
    plan *plan;
    replica_tensor *tensor;
    wire_record *record;
    double **sums;      /* [n_partitions][blocks] */
    double *scratch;    /* two per block of the largest tensor */
    optim_span *span;   /* chunks of the largest tensor */
    holding_span *held; /* [n_tensors]; made when first asked for */
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

bool replica_weigh(float *to, const void *grad, pen_dtype grad_dtype, pen_dtype as, double weight,
                   size_t n)
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
static stat_set *stats_of(const replica *r)
{
    return &r->model->tensor[0]->ctx->stats;
}

/* Masters of 16-bit tensors count as optimizer state. */
static stat_id counted_as(const pen_tensor *t)
{
    return t->desc.dtype == PEN_F32 ? STAT_PARAM_BYTES : STAT_SLOT_BYTES;
}

static float *hold(const replica *r, uint64_t elements, stat_id as)
{
    float *data = calloc(elements > 0 ? elements : 1, sizeof *data);
    if (data != NULL) stat_hold(stats_of(r), as, (int64_t)(elements * sizeof *data));
    return data;
}

static void let_go(const replica *r, float *data, uint64_t elements, stat_id as)
{
    if (data == NULL) return;
    stat_hold(stats_of(r), as, -(int64_t)(elements * sizeof *data));
    free(data);
}

static void free_tensor(const replica *r, replica_tensor *own, const pen_tensor *t)
{
    let_go(r, own->master, own->own.count, counted_as(t));
    for (int s = 0; s < OPTIM_SLOTS_MAX; s++)
        let_go(r, own->slot[s], own->own.count, STAT_SLOT_BYTES);
}

void replica_destroy(replica *r)
{
    if (r == NULL) return;
    for (uint32_t i = 0; r->tensor != NULL && i < r->model->n_tensors; i++)
        free_tensor(r, &r->tensor[i], r->model->tensor[i]);
    for (uint32_t i = 0; r->sums != NULL && i < r->plan->n_partitions; i++) free(r->sums[i]);
    free(r->tensor);
    free(r->record);
    free(r->sums);
    free(r->scratch);
    free(r->span);
    free(r->held);
    plan_destroy(r->plan);
    free(r);
}

/* Where the values of the own range begin. */
static float *param_of(const replica *r, const pen_tensor *t)
{
    const replica_tensor *own = &r->tensor[t->index];
    return own->master != NULL ? own->master : (float *)t->param + own->own.start;
}

void replica_load(replica *r, const pen_tensor *t, const void *values)
{
    const replica_tensor *own = &r->tensor[t->index];
    if (own->master != NULL) simd()->decode(own->master, values, t->desc.dtype, own->own.count);
}

static bool make_tensor(replica *r, const pen_tensor *t)
{
    replica_tensor *own = &r->tensor[t->index];
    const pen_params *p = r->model->group[t->desc.group];
    const size_t width  = plan_dtype_bytes(t->desc.dtype);
    optim_span whole    = {.n = own->own.count};
    if (t->desc.dtype != PEN_F32 || own->is_apart) {
        own->master = hold(r, own->own.count, counted_as(t));
        if (own->master == NULL) return false;
        if (!own->is_apart) replica_load(r, t, (const char *)t->param + own->own.start * width);
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

static bool make_sums(replica *r)
{
    const plan *p = r->plan;
    r->record     = calloc(p->n_partitions, sizeof *r->record);
    r->sums       = calloc(p->n_partitions, sizeof *r->sums);
    if (r->record == NULL || r->sums == NULL) return false;
    for (uint32_t i = 0; i < p->n_partitions; i++) {
        r->sums[i] = calloc(p->partition[i].blocks + 1, sizeof(double));
        if (r->sums[i] == NULL) return false;
    }
    return true;
}

static bool make_scratch(replica *r)
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

pen_status replica_create(const model *m, replica **out, pen_error *why)
{
    return replica_create_part(m, NULL, NULL, out, why);
}

pen_status replica_create_part(const model *m, const sharded_range *own, const bool *apart,
                               replica **out, pen_error *why)
{
    replica *r = calloc(1, sizeof *r);
    if (r == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the optimizer state");
    r->model = m;
    if (plan_create(&m->wire, &r->plan, why) != PEN_OK) {
        replica_destroy(r);
        return why->status;
    }
    r->tensor = calloc(m->n_tensors, sizeof *r->tensor);
    bool ok   = r->tensor != NULL && make_sums(r) && make_scratch(r);
    for (uint32_t i = 0; ok && i < m->n_tensors; i++) {
        r->tensor[i].own = own != NULL ? own[i] : (sharded_range){.count = m->tensor[i]->elements};
        r->tensor[i].is_apart = apart != NULL && apart[i];
        ok                    = make_tensor(r, m->tensor[i]);
    }
    if (!ok) {
        replica_destroy(r);
        return why_set(why, PEN_NO_MEMORY, "no memory for the optimizer state of %u tensors",
                       m->n_tensors);
    }
    *out = r;
    return PEN_OK;
}

/* ---- what it knows --------------------------------------------------------------------------- */
const plan *replica_plan(const replica *r)
{
    return r->plan;
}

int64_t replica_applied(const replica *r)
{
    return r->applied;
}

uint64_t replica_version(const replica *r, const pen_tensor *t)
{
    return r->tensor[t->index].version;
}

void replica_values(const replica *r, const pen_tensor *t, void *to)
{
    const float *values = param_of(r, t);
    if (to != values) simd()->encode(to, values, t->desc.dtype, r->tensor[t->index].own.count);
}

/* ---- the step -------------------------------------------------------------------------------- */
void replica_give(replica *r, const pen_tensor *t, const float *sum)
{
    r->tensor[t->index].grad = sum;
}

/* The elements of a chunk in a range; both begin at block borders. */
static sharded_range part_of(const plan_chunk *c, const sharded_range *own)
{
    const uint64_t end_c = c->start + c->count, end_o = own->start + own->count;
    const uint64_t from = c->start > own->start ? c->start : own->start;
    const uint64_t to   = end_c < end_o ? end_c : end_o;
    return (sharded_range){.start = from, .count = to > from ? to - from : 0};
}

static uint32_t make_spans(replica *r, const pen_tensor *t, double lr, double gscale)
{
    const replica_tensor *own = &r->tensor[t->index];
    const pen_params *p       = r->model->group[t->desc.group];
    float *param              = param_of(r, t);
    uint32_t n                = 0;
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

void replica_update(replica *r, const pen_tensor *t, double lr, double gscale)
{
    const pen_params *p = r->model->group[t->desc.group];
    const uint32_t n    = make_spans(r, t, lr, gscale);
    optim_apply(p->ops, &p->hyper, r->span, n, r->scratch);
    r->tensor[t->index].version++;
}

bool replica_needs_whole(const replica *r, const pen_tensor *t)
{
    return t->trained && r->model->group[t->desc.group]->ops->whole_tensor;
}

static size_t blocks_of(uint64_t elements)
{
    return (elements + SIMD_BLOCK - 1) / SIMD_BLOCK;
}

size_t replica_begin_whole(replica *r, const pen_tensor *t, double lr, double gscale, double *param,
                           double *update)
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

void replica_end_whole(replica *r, const pen_tensor *t, double lr, double gscale, double param_norm,
                       double update_norm)
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
static double *sums_of(const replica *r, const plan_chunk *c, const sharded_range *part)
{
    if (c->blocks == 0 || part->count == 0) return NULL;
    return r->sums[c->partition] + c->first_block + (part->start - c->start) / SIMD_BLOCK;
}

static void measure(replica *r, uint32_t chunk, uint32_t *bad_chunk)
{
    const plan_chunk *c       = &r->plan->chunk[chunk];
    const replica_tensor *own = &r->tensor[c->tensor];
    const sharded_range part  = part_of(c, &own->own);
    double *sums              = sums_of(r, c, &part);
    if (sums == NULL || simd()->norm(own->grad + (part.start - own->own.start), part.count, sums))
        return;
    replica_mark_bad(r, chunk);
    if (chunk < *bad_chunk) *bad_chunk = chunk;
}

void replica_mark_bad(replica *r, uint32_t chunk)
{
    if (chunk >= r->plan->n_chunks) return;
    wire_record *record = &r->record[r->plan->chunk[chunk].partition];
    if (record->finite || chunk < record->bad_chunk) record->bad_chunk = chunk;
    record->finite   = false;
    record->bad_rank = 0;
}

void replica_measure(replica *r, double weight_sum, uint32_t *bad_chunk)
{
    *bad_chunk = REPLICA_NO_CHUNK;
    for (uint32_t i = 0; i < r->plan->n_partitions; i++)
        r->record[i] =
            (wire_record){.partition = i, .weight_sum = weight_sum, .finite = true, .bad_rank = -1};
    for (uint32_t c = 0; c < r->plan->n_chunks; c++) measure(r, c, bad_chunk);
}

/* Copies the sums of a member's ranges, chunk by chunk; returns their number. */
static size_t walk_sums(const replica *r, const sharded_range *of, size_t stride, double *to,
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

size_t replica_pack(const replica *r, const sharded_range *own, size_t stride, double *to)
{
    return walk_sums(r, own, stride, to, NULL);
}

size_t replica_unpack(replica *r, const sharded_range *theirs, size_t stride, const double *from)
{
    return walk_sums(r, theirs, stride, NULL, from);
}

size_t replica_blocks(const replica *r, const sharded_range *of, size_t stride)
{
    return walk_sums(r, of, stride, NULL, NULL);
}

bool replica_conclude(replica *r, const wire_inputs *inputs, wire_decision *decision,
                      uint32_t *bad_chunk)
{
    int32_t bad_rank = -1;
    decision_make(r->plan, r->record, (const double *const *)r->sums, inputs, r->applied, decision,
                  bad_chunk, &bad_rank);
    if (decision->outcome == PEN_APPLIED) r->applied++;
    return bad_rank >= 0;
}

bool replica_decide(replica *r, const wire_inputs *inputs, double weight_sum,
                    wire_decision *decision, uint32_t *bad_chunk)
{
    uint32_t own_bad;
    replica_measure(r, weight_sum, &own_bad);
    return replica_conclude(r, inputs, decision, bad_chunk);
}

void replica_count_step(replica *r)
{
    r->applied++;
}

/* Without a decision.  Sums are of weighted gradients; a push that is applied alone was not weighted
 * and is scaled now.  0: nothing to apply. */
static double gscale_alone(exchange_rule rule, const wire_inputs *in, double weight_sum)
{
    if (weight_sum == 0) return 0;
    return rule == EXCHANGE_FREE ? in->weight / in->loss_scale : 1 / (weight_sum * in->loss_scale);
}

bool replica_gscale(const replica *r, const pen_tensor *t, const wire_inputs *inputs,
                    double weight_sum, const wire_decision *decision, double *gscale)
{
    const exchange_rule rule = model_rule_of(r->model, t);
    const bool is_decided    = rule == EXCHANGE_DECIDE;
    *gscale = is_decided ? decision->gscale : gscale_alone(rule, inputs, weight_sum);
    return is_decided ? decision->outcome == PEN_APPLIED : *gscale != 0;
}

void replica_carry_out(replica *r, const pen_tensor *t, const wire_inputs *inputs,
                       double weight_sum, const wire_decision *decision)
{
    double gscale;
    if (!replica_gscale(r, t, inputs, weight_sum, decision, &gscale)) return;
    const uint64_t begun = trace_begin();
    replica_update(r, t, inputs->rate[t->desc.group], gscale);
    replica_values(r, t, t->param);
    trace_span(TRACE_UPDATE, begun, &(trace_note){.label = t->name});
}

/* ---- snapshots ------------------------------------------------------------------------------- */
pen_status replica_holding(replica *r, holding *h, pen_error *why)
{
    const model *m = r->model;
    if (r->held == NULL) r->held = calloc(m->n_tensors + 1, sizeof *r->held);
    if (r->held == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory to list %u tensors", m->n_tensors);
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const pen_tensor *t = m->tensor[i];
        r->held[i]          = (holding_span){.tensor  = i,
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

void replica_restored(replica *r, int64_t applied)
{
    const model *m = r->model;
    r->applied     = applied;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const pen_tensor *t  = m->tensor[i];
        r->tensor[i].version = r->held[i].version;
        if (!r->tensor[i].is_apart)
            replica_values(r, t,
                           (char *)t->param + r->held[i].start * plan_dtype_bytes(t->desc.dtype));
    }
}
