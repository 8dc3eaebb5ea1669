/* sharded_sums.c - a step's gradients: into buckets, summed, to their owners or to all, then the decision by all. */
#include "worker/train/sharded/sharded_internal.h"

#include "common/base/why.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/tensor/param_memory.h"

#include <stdlib.h>
#include <string.h>

/* ---- into buckets ---------------------------------------------------------------------------- */
/* Chunk by chunk, so that a value that is not finite marks its chunk: of a piece that begins inside a chunk, first what
 * is left of that. */
static void add_piece(sharded *s, const pen_tensor *x, const void *grad, uint32_t i)
{
    const sharded_piece *p = &s->piece[i];
    const plan *cuts       = update_state_plan(s->update_state);
    const size_t width     = plan_dtype_bytes(x->desc.grad_dtype);
    const uint64_t size = cuts->chunk_elements, end = p->start + p->count;
    const device_stream stream = device_copies_stream(x);
    float *room                = reducer_room(s->reducer, i, stream);
    pen_error why;
    for (uint64_t at = p->start, next; room != NULL && at < end; at = next) {
        const uint64_t rest  = size - at % size;
        next                 = rest < size && rest < end - at ? at + rest : end;
        const device_weigh w = {.to         = room + (at - p->start),
                                .grad       = grad != NULL ? (const char *)grad + at * width : NULL,
                                .grad_dtype = x->desc.grad_dtype,
                                .as         = model_push_dtype(&s->ctx->model, x),
                                .weight     = s->inputs->weight,
                                .n          = next - at,
                                .bad        = update_state_own_bad(s->update_state),
                                .chunk      = cuts->first_chunk[x->index] + (uint32_t)(at / size),
                                .chunk_elements = size};
        if (s->space.ops->weigh(&w, stream, &why) != PEN_OK) reducer_fail(s->reducer, &why);
    }
    reducer_ready(s->reducer, i, stream);
}

/* Where the sum of a tensor's own range goes: into the gradient itself if that is memory of the SDK, which is not needed
 * once it is in its buckets. */
static pen_status choose_dest(sharded *s, pen_tensor *x, const void *grad, pen_error *why)
{
    const sharded_range *own = &s->own[x->index];
    const bool is_ours       = grad != NULL && grad != x->grad && !space_is_device(&s->space);
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
    if (s->stage > 0 && s->n_ready == s->n_trained) begin_round(s);
    s->n_ready++;
    if (s->stage > 0 && s->round == 0) keep_failure(s, choose_dest(s, x, grad, &why), &why);
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
            ? space_copy(&s->space, TRAFFIC_GRAD, to, sum, p->count * sizeof *to, &why)
            : s->space.ops->accumulate(to, sum, PEN_F32, p->count, false, s->space.stream, &why);
    if (status != PEN_OK) reducer_fail(s->reducer, &why);
}

/* ---- calls on gradients, sums and norms ------------------------------------------------------- */
/* On a device in the order of its stream. */
static void begin_call(sharded *s, group_calls *on, const coll_call *call)
{
    coll_call there       = *call;
    there.scale           = 1;
    there.stream          = s->space.stream;
    there.in_stream_order = space_is_device(&s->space);
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

/* The bits of a chunk's number are those of a float so small that adding zeros does not change it; no chunk is a NaN. */
static void mark_own_bad(sharded *s)
{
    pen_error why;
    const device_stream stream = s->beside.stream;
    float *room                = reducer_room(s->reducer, 0, stream);
    pen_status status          = reducer_join(s->reducer, stream, &why);
    if (status == PEN_OK && room != NULL)
        status = space_copy(&s->beside, TRAFFIC_OTHER, room + s->everyone.group->rank,
                            update_state_own_bad(s->update_state), sizeof *room, &why);
    if (status != PEN_OK) reducer_fail(s->reducer, &why);
    reducer_ready(s->reducer, 0, stream);
}

pen_status sharded_lay_out_anew(sharded *s, pen_error *why)
{
    s->is_arranged = s->is_to_lay_out = false;
    return reducer_arrange(s->reducer, NULL, why);
}

pen_status sharded_complete_sums(sharded *s, pen_error *why)
{
    pen_error later;
    if (s->solo != NULL) return PEN_OK;
    if (s->is_marked) mark_own_bad(s);
    keep_failure(s, group_calls_wait(&s->everyone, &later), &later);
    keep_failure(s, reducer_wait(s->reducer, &later), &later);
    if (s->failure.status != PEN_OK) {
        *why = s->failure;
        return why->status;
    }
    if (s->is_hybrid && sum_across(s, why) != PEN_OK) return why->status;
    return agreement_complete(&s->agreement, &s->everyone, why);
}

pen_status sharded_agree(sharded *s, double *weight_sum, pen_error *why)
{
    ps_client_outcome *outcome = &s->ctx->step.outcome;
    if (agreement_check(&s->agreement, weight_sum, why) != PEN_OK) {
        /* All ranks fail alike.  A program may exit at once: first all must have the inputs that differ. */
        const coll_call call = {
            .kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = "inputs of a step differ"};
        pen_error gone; /* others have what they need, and have exited */
        if (s->solo == NULL) group_calls_begin(&s->everyone, &call);
        (void)group_calls_wait(&s->everyone, &gone);
        context_fail(s->ctx, why);
        return why->status;
    }
    if (s->stage == 0 && s->reducer != NULL)
        reducer_set_first(s->reducer, agreement_first(&s->agreement));
    *outcome = (ps_client_outcome){.outcome = PEN_APPLIED, .clip = 1, .bad_rank = -1};
    agreement_scalars(&s->agreement, &outcome->scalars);
    return PEN_OK;
}

pen_status sharded_give_sum(sharded *s, const pen_tensor *x, pen_error *why)
{
    const float *sum = s->dest[x->index];
    /* Sums have weighted gradients; a push that is applied alone is scaled when it is applied. */
    if (s->solo != NULL)
        sum =
            solo_weigh(s->solo, x, x->pushed,
                       model_rule_of(&s->ctx->model, x) == STEP_ASYNC ? 1 : s->inputs->weight, why);
    else if (s->stage == 0)
        sum = reducer_sum(s->reducer, s->first[x->index]);
    if (sum == NULL && s->stage == 0) return why->status;
    update_state_give(s->update_state, x, sum);
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
        update_state_mark_bad(s->update_state, at[0]);
        update_state_unpack(s->update_state, s->range + m, (size_t)s->size, at + 1);
        at += t.counts[m];
    }
    free(t.counts);
    free(t.own);
    free(t.all);
    return status;
}

/* The lowest rank that added a value that is not finite to the chunk, else `last`.  On the host all ranks settle a step at
 * the same time.  The step counts on all ranks already: a loss from here on is handled by the next one. */
pen_status sharded_find_culprit(void *user, uint32_t chunk, bool is_own, const uint32_t *words,
                                int32_t last, int32_t *rank, pen_error *why)
{
    sharded *s = user;
    int32_t at = last, lowest = s->n;
    const int32_t own = is_own ? s->everyone.group->rank : s->n;
    if (s->n > 1 && words != NULL) {
        verdicts_find(words, s->n, chunk, &at);
    } else if (s->n > 1 && !s->is_behind) {
        const pen_status status =
            group_calls_lowest(&s->everyone, own, &lowest, "whose gradient is not finite", why);
        if (status != PEN_OK && !(status == PEN_PEER_LOST && s->goes_on)) return status;
        if (status == PEN_OK && lowest >= 0 && lowest < s->n) at = lowest;
    }
    *rank = s->is_behind ? s->agreement.ranks[at] : s->ranks[at];
    return PEN_OK;
}

/* ---- on a device ----------------------------------------------------------------------------- */
/* Each block has one owner, and zeros of the others change no sum of squares: so a sum gathers them, in their order.
 * Calls of two groups are enqueued one after the other: on one stream all members need the same order. */
static pen_status gather_there(sharded *s, pen_error *why)
{
    const update_state_sums sums = update_state_sums_of(s->update_state);
    group_calls *all             = s->is_hybrid ? &s->everyone : &s->sums;
    if (s->space.ops->zero(sums.sums, sums.n * sizeof *sums.sums, s->space.stream, why) != PEN_OK ||
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
    const void *marks       = s->is_marked ? reducer_sum(s->reducer, 0) : NULL;
    const pen_status status = s->stage == 0 ? update_state_measure(s->update_state, why)
                              : space_is_device(&s->space) ? gather_there(s, why)
                                                           : gather_sums(s, why);
    return status == PEN_OK
               ? verdicts_add(&s->verdicts, s->inputs, weight_sum, s->is_marked ? marks : s->bad_of,
                              agreement_last_with_weight(&s->agreement), why)
               : status;
}
