/* sharded_sums.c - a step's gradients: into buckets, summed to their owners, then the decision by all. */
#include "worker/train/sharded/sharded_internal.h"

#include "common/base/why.h"
#include "common/compute/simd/simd.h"
#include "proto/decision.h"
#include "worker/tensor/param_memory.h"

#include <stdlib.h>
#include <string.h>

/* ---- into buckets ---------------------------------------------------------------------------- */
/* A piece is not finite: marks its bad chunks, in case the ranks look for the culprit. */
static void mark_bad_chunks(sharded *s, const sharded_piece *p, const void *grad,
                            const pen_tensor *x, float *scratch)
{
    const plan *cuts   = update_state_plan(s->update_state);
    const size_t width = plan_dtype_bytes(x->desc.grad_dtype);
    const pen_dtype as = model_push_dtype(&s->ctx->model, x);
    for (uint32_t c = cuts->first_chunk[x->index]; c < cuts->first_chunk[x->index + 1]; c++) {
        const plan_chunk *k = &cuts->chunk[c];
        const uint64_t from = k->start > p->start ? k->start : p->start;
        const uint64_t ends = k->start + k->count, piece_ends = p->start + p->count;
        const uint64_t to = ends < piece_ends ? ends : piece_ends;
        if (from >= to) continue;
        const char *at = grad != NULL ? (const char *)grad + from * width : NULL;
        s->is_bad[c] |= !update_state_weigh(scratch + (from - p->start), at, x->desc.grad_dtype, as,
                                            s->inputs->weight, to - from);
    }
}

static void add_piece(sharded *s, const pen_tensor *x, const void *grad, uint32_t i)
{
    const sharded_piece *p = &s->piece[i];
    const pen_dtype as     = model_push_dtype(&s->ctx->model, x);
    const size_t width     = plan_dtype_bytes(x->desc.grad_dtype);
    const char *from       = grad != NULL ? (const char *)grad + p->start * width : NULL;
    float *room            = reducer_room(s->reducer, i);
    if (room != NULL &&
        !update_state_weigh(room, from, x->desc.grad_dtype, as, s->inputs->weight, p->count))
        mark_bad_chunks(s, p, grad, x, room);
    reducer_ready(s->reducer, i);
}

/* Where the sum of a tensor's own range goes: into the gradient itself if that is memory of the SDK, which is not needed
 * once it is in its buckets. */
static pen_status choose_dest(sharded *s, pen_tensor *x, const void *grad, pen_error *why)
{
    const sharded_range *own = &s->own[x->index];
    const bool is_ours       = grad != NULL && grad != x->grad;
    if (s->stage == 1 && is_ours && !s->ctx->reduces_each && x->desc.grad_dtype == PEN_F32) {
        s->dest[x->index] = (float *)(uintptr_t)grad + own->start;
        return PEN_OK;
    }
    if (s->sum[x->index] == NULL && own->count > 0) {
        s->sum[x->index] = sharded_hold(s, own->count * sizeof(float), STAT_GRAD_BYTES, why);
        if (s->sum[x->index] == NULL) return why->status;
    }
    s->dest[x->index] = s->sum[x->index];
    return PEN_OK;
}

static void keep_failure(sharded *s, pen_status status, const pen_error *why)
{
    if (status == PEN_OK || s->failure.status != PEN_OK) return;
    s->failure        = *why;
    s->failure.status = status;
}

/* All gradients of a micro-batch are in, and the next one begins. */
static void begin_round(sharded *s)
{
    pen_error why;
    keep_failure(s, reducer_wait(s->reducer, &why), &why);
    reducer_begin(s->reducer);
    s->round++;
    s->n_ready = 0;
}

void sharded_add(sharded *s, pen_tensor *x, const void *grad)
{
    pen_error why;
    if (s->n_ready == s->n_trained) begin_round(s);
    s->n_ready++;
    if (s->round == 0) keep_failure(s, choose_dest(s, x, grad, &why), &why);
    for (uint32_t i = s->first[x->index + 1]; i-- > s->first[x->index];) /* as they are laid out */
        add_piece(s, x, grad, i);
    if (s->stage > 1) param_grad_return(x, grad);
}

/* On the thread that ended the call. */
void sharded_take_sum(void *user, uint32_t piece)
{
    sharded *s             = (sharded *)((group_calls *)user)->ctx->strategy;
    const sharded_piece *p = &s->piece[piece];
    const float *sum       = reducer_sum(s->reducer, piece);
    if (s->dest[p->tensor] == NULL) return; /* no memory: kept as a failure */
    float *to = s->dest[p->tensor] + (p->start - s->own[p->tensor].start);
    if (s->round == 0)
        memcpy(to, sum, p->count * sizeof *to);
    else
        simd()->fold_add(to, to, sum, PEN_F32, 1, p->count);
}

/* ---- complete -------------------------------------------------------------------------------- */
/* Nodes have the same ranges, with different sums. */
static pen_status sum_across(sharded *s, pen_error *why)
{
    const model *m = &s->ctx->model;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        if (!m->tensor[i]->trained || s->own[i].count == 0) continue;
        const coll_call call = {.kind  = COLL_ALL_REDUCE,
                                .op    = PEN_SUM,
                                .dtype = PEN_F32,
                                .n     = s->own[i].count,
                                .in    = s->dest[i],
                                .out   = s->dest[i],
                                .scale = 1,
                                .label = m->tensor[i]->name};
        group_calls_begin(&s->across, &call);
    }
    return group_calls_wait(&s->across, why);
}

pen_status sharded_complete_sums(sharded *s, pen_error *why)
{
    const model *m = &s->ctx->model;
    pen_error later;
    keep_failure(s, group_calls_wait(&s->everyone, &later), &later);
    keep_failure(s, reducer_wait(s->reducer, &later), &later);
    if (s->failure.status != PEN_OK) {
        *why = s->failure;
        return why->status;
    }
    if (s->is_hybrid && sum_across(s, why) != PEN_OK) return why->status;
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i]->trained) update_state_give(s->update_state, m->tensor[i], s->dest[i]);
    return PEN_OK;
}

/* ---- decided --------------------------------------------------------------------------------- */
typedef struct { /* the bad chunk, then the sums of all blocks, from each owner */
    size_t *counts;
    double *own, *all;
} told;

static pen_status make_told(const sharded *s, told *t, pen_error *why)
{
    size_t all = 0;
    t->counts  = calloc((size_t)s->size, sizeof *t->counts);
    if (t->counts == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for sums of squares");
    for (int m = 0; m < s->size; m++) {
        t->counts[m] = 1 + update_state_blocks(s->update_state, s->range + m, (size_t)s->size);
        all += t->counts[m];
    }
    t->own = calloc(t->counts[s->rank], sizeof *t->own);
    t->all = calloc(all, sizeof *t->all);
    return t->own != NULL && t->all != NULL
               ? PEN_OK
               : why_set(why, PEN_NO_MEMORY, "no memory for %zu sums of squares", all);
}

/* Gathers every member's blocks, so that all add them in the same order. */
static pen_status ps_client_sums(sharded *s, double weight_sum, pen_error *why)
{
    told t = {0};
    uint32_t bad;
    pen_status status = make_told(s, &t, why);
    if (status == PEN_OK) {
        update_state_measure(s->update_state, weight_sum, &bad);
        t.own[0] = bad;
        update_state_pack(s->update_state, s->range + s->rank, (size_t)s->size, t.own + 1);
        group_calls_gather(&s->sums, PEN_F64, t.counts[s->rank], t.counts, t.own, t.all,
                           "sums of squares");
        status = group_calls_wait(&s->sums, why);
    }
    const double *at = t.all;
    for (int m = 0; m < s->size && status == PEN_OK; m++) {
        update_state_mark_bad(s->update_state, (uint32_t)at[0]);
        update_state_unpack(s->update_state, s->range + m, (size_t)s->size, at + 1);
        at += t.counts[m];
    }
    free(t.counts);
    free(t.own);
    free(t.all);
    return status;
}

/* *at: the lowest rank that added a value that is not finite to the chunk; unchanged if none did. */
static pen_status find_culprit(sharded *s, uint32_t chunk, int32_t *at, pen_error *why)
{
    int32_t lowest = s->n, own = s->n;
    for (int i = 0; i < s->n; i++)
        if (s->ranks[i] == s->ctx->env.rank && s->is_bad[chunk]) own = i;
    if (group_calls_lowest(&s->everyone, own, &lowest, "whose gradient is not finite", why) !=
        PEN_OK)
        return why->status;
    if (lowest < s->n) *at = lowest;
    return PEN_OK;
}

pen_status sharded_decide(sharded *s, double weight_sum, wire_decision *decision, pen_error *why)
{
    uint32_t bad_chunk;
    int32_t bad_rank = -1;
    if (ps_client_sums(s, weight_sum, why) != PEN_OK) return why->status;
    const bool is_bad = update_state_conclude(s->update_state, s->inputs, decision, &bad_chunk);
    if (is_bad) {
        int32_t at = agreement_last_with_weight(&s->agreement);
        if (find_culprit(s, bad_chunk, &at, why) != PEN_OK) return why->status;
        bad_rank = s->ranks[at];
        s->ctx->step.outcome.bad_tensor =
            update_state_plan(s->update_state)->chunk[bad_chunk].tensor;
    }
    strategy_note_decision(s->ctx, decision, is_bad, bad_rank);
    return PEN_OK;
}
