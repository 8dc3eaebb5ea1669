/* sharded_sums.c - a step's gradients: into buckets, summed to their owners, then the decision by all. */
#include "worker/train/sharded/sharded_internal.h"

#include "common/base/why.h"
#include "common/compute/simd/simd.h"
#include "worker/tensor/device_copy/device_copies.h"
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
        s->is_bad[c] |= !simd_weigh(scratch + (from - p->start), at, x->desc.grad_dtype, as,
                                    s->inputs->weight, to - from);
    }
}

/* On a device: chunk by chunk, so that a value that is not finite marks its chunk. */
static void weigh_there(sharded *s, const sharded_piece *p, const pen_tensor *x, const void *grad,
                        float *room, device_stream stream)
{
    const plan *cuts    = update_state_plan(s->update_state);
    const size_t width  = plan_dtype_bytes(x->desc.grad_dtype);
    const uint64_t ends = p->start + p->count;
    pen_error why;
    for (uint64_t at = p->start; at < ends;) {
        const uint64_t chunk = at / cuts->chunk_elements;
        const uint64_t next  = (chunk + 1) * cuts->chunk_elements;
        const device_weigh w = {.to         = room + (at - p->start),
                                .grad       = grad != NULL ? (const char *)grad + at * width : NULL,
                                .grad_dtype = x->desc.grad_dtype,
                                .as         = model_push_dtype(&s->ctx->model, x),
                                .weight     = s->inputs->weight,
                                .n          = (next < ends ? next : ends) - at,
                                .bad        = update_state_own_bad(s->update_state),
                                .chunk      = cuts->first_chunk[x->index] + (uint32_t)chunk};
        if (s->place.ops->weigh(&w, stream, &why) != PEN_OK) reducer_fail(s->reducer, &why);
        at += w.n;
    }
}

static void add_piece(sharded *s, const pen_tensor *x, const void *grad, uint32_t i)
{
    const sharded_piece *p     = &s->piece[i];
    const pen_dtype as         = model_push_dtype(&s->ctx->model, x);
    const size_t width         = plan_dtype_bytes(x->desc.grad_dtype);
    const char *from           = grad != NULL ? (const char *)grad + p->start * width : NULL;
    const device_stream stream = device_copies_stream(x);
    float *room                = reducer_room(s->reducer, i, stream);
    if (room != NULL && place_is_device(&s->place))
        weigh_there(s, p, x, grad, room, stream);
    else if (room != NULL &&
             !simd_weigh(room, from, x->desc.grad_dtype, as, s->inputs->weight, p->count))
        mark_bad_chunks(s, p, grad, x, room);
    reducer_ready(s->reducer, i, stream);
}

/* Where the sum of a tensor's own range goes: into the gradient itself if that is memory of the SDK, which is not needed
 * once it is in its buckets. */
static pen_status choose_dest(sharded *s, pen_tensor *x, const void *grad, pen_error *why)
{
    const sharded_range *own = &s->own[x->index];
    const bool is_ours       = grad != NULL && grad != x->grad && !place_is_device(&s->place);
    if (s->stage == 1 && is_ours && !s->ctx->reduces_each && x->desc.grad_dtype == PEN_F32) {
        s->dest[x->index] = (float *)(uintptr_t)grad + own->start;
        return PEN_OK;
    }
    if (s->sum[x->index] == NULL && own->count > 0) {
        s->sum[x->index] = sharded_hold_there(s, own->count * sizeof(float), STAT_GRAD_BYTES, why);
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
    pen_error why;
    const pen_status status =
        s->round == 0
            ? place_copy(&s->place, TRAFFIC_GRAD, to, sum, p->count * sizeof *to, &why)
            : s->place.ops->accumulate(to, sum, PEN_F32, p->count, false, s->place.stream, &why);
    if (status != PEN_OK) reducer_fail(s->reducer, &why);
}

/* ---- calls on gradients, sums and norms ------------------------------------------------------- */
/* On a device in the order of its stream. */
static void begin_call(sharded *s, group_calls *on, const coll_call *call)
{
    coll_call there       = *call;
    there.scale           = 1;
    there.stream          = s->place.stream;
    there.in_stream_order = place_is_device(&s->place);
    group_calls_begin(on, &there);
}

pen_status sharded_add_norms(void *user, double *sums, size_t n, pen_error *why)
{
    sharded *s = user;
    begin_call(s, &s->sums,
               &(coll_call){.kind  = COLL_ALL_REDUCE,
                            .op    = PEN_SUM,
                            .dtype = PEN_F64,
                            .n     = n,
                            .in    = sums,
                            .out   = sums,
                            .label = "norms of tensors"});
    return group_calls_wait(&s->sums, why);
}

/* ---- complete -------------------------------------------------------------------------------- */
/* Nodes have the same ranges, with different sums. */
static pen_status sum_across(sharded *s, pen_error *why)
{
    const model *m = &s->ctx->model;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        if (!m->tensor[i]->trained || s->own[i].count == 0) continue;
        begin_call(s, &s->across,
                   &(coll_call){.kind    = COLL_ALL_REDUCE,
                                .op      = PEN_SUM,
                                .dtype   = PEN_F32,
                                .n       = s->own[i].count,
                                .in      = s->dest[i],
                                .out     = s->dest[i],
                                .traffic = TRAFFIC_GRAD,
                                .label   = m->tensor[i]->name});
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
static pen_status gather_sums(sharded *s, pen_error *why)
{
    told t            = {0};
    pen_status status = make_told(s, &t, why);
    if (status == PEN_OK) {
        (void)update_state_measure(s->update_state, why); /* on the host it cannot fail */
        t.own[0] = update_state_bad_chunk(s->update_state);
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

/* *at: the lowest rank that added a value that is not finite to the chunk; unchanged if none did.  On the host all ranks
 * settle a step at the same time. */
static pen_status ask_for_culprit(sharded *s, uint32_t chunk, int32_t *at, pen_error *why)
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

pen_status sharded_find_culprit(void *user, uint32_t chunk, const uint32_t *words, int32_t last,
                                int32_t *rank, pen_error *why)
{
    sharded *s = user;
    int32_t at = last;
    if (s->bad_of != NULL)
        verdicts_find(words, s->n, chunk, &at);
    else if (ask_for_culprit(s, chunk, &at, why) != PEN_OK)
        return why->status;
    *rank = s->ranks[at];
    return PEN_OK;
}

/* ---- on a device ----------------------------------------------------------------------------- */
/* Each block has one owner, and zeros of the others change no sum of squares: so a sum gathers them, in their order.
 * Calls of two groups are enqueued one after the other: on one stream all members need the same order. */
static pen_status gather_there(sharded *s, pen_error *why)
{
    const update_state_sums sums = update_state_sums_of(s->update_state);
    group_calls *all             = s->is_hybrid ? &s->everyone : &s->sums;
    if (s->place.ops->zero(sums.sums, sums.n * sizeof *sums.sums, s->place.stream, why) != PEN_OK ||
        update_state_measure(s->update_state, why) != PEN_OK)
        return why->status;
    begin_call(s, &s->sums,
               &(coll_call){.kind  = COLL_ALL_REDUCE,
                            .op    = PEN_SUM,
                            .dtype = PEN_F64,
                            .n     = sums.n,
                            .in    = sums.sums,
                            .out   = sums.sums,
                            .label = "sums of squares"});
    begin_call(s, &s->sums,
               &(coll_call){.kind  = COLL_ALL_REDUCE,
                            .op    = PEN_MIN,
                            .dtype = PEN_U32,
                            .n     = 1,
                            .in    = sums.bad,
                            .out   = sums.bad,
                            .label = "what is not finite"});
    if (group_calls_wait(&s->sums, why) != PEN_OK) return why->status;
    begin_call(s, all,
               &(coll_call){.kind  = COLL_ALL_GATHER,
                            .dtype = PEN_U32,
                            .n     = 1,
                            .in    = update_state_own_bad(s->update_state),
                            .out   = s->bad_of,
                            .label = "whose gradient is not finite"});
    return group_calls_wait(all, why);
}

pen_status sharded_decide(sharded *s, double weight_sum, pen_error *why)
{
    const pen_status status =
        place_is_device(&s->place) ? gather_there(s, why) : gather_sums(s, why);
    return status == PEN_OK ? verdicts_add(&s->verdicts, s->inputs, weight_sum, s->bad_of,
                                           agreement_last_with_weight(&s->agreement), why)
                            : status;
}
