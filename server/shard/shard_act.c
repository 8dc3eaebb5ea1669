/* shard_act.c - applies the core's actions, one by one. */
#include "server/shard/shard_state.h"

#include "common/base/mutation.h"
#include "common/compute/simd/simd.h"
#include "common/trace/trace.h"
#include "proto/decision.h"

#include <string.h>

/* ---- updates --------------------------------------------------------------------------------- */
static optim_span span_of(const shard *s, shard_chunk *k, const float *grad, double lr,
                          double gscale)
{
    optim_span span = {.param    = k->values->data,
                       .grad     = grad,
                       .n        = k->count,
                       .step     = k->version + 1,
                       .lr       = lr,
                       .gscale   = gscale,
                       .no_decay = (s->setup.model->tensor[k->tensor].flags & PEN_NO_DECAY) != 0};
    for (uint32_t i = 0; i < k->slots; i++) span.slot[i] = k->slot[i]->data;
    return span;
}

enum { RANGE = 4 * PLAN_BLOCK }; /* elements that fit a cache with their gradient and slots */

/* A chunk held by a snapshot is copied and updated range by range, so that each byte is fetched once. */
static void update(shard *s, shard_chunk *k, const float *grad, double lr, double gscale)
{
    shard_chunk_origin from;
    if (!shard_offload_in(s, k)) return;
    if (!shard_chunk_renew(s, k, &from)) {
        shard_chunk_origin_release(&from);
        return;
    }
    const optim_span whole = span_of(s, k, grad, lr, gscale);
    const uint64_t range   = from.values != NULL || from.slot[0] != NULL ? RANGE : k->count;
    for (uint64_t at = 0; at < k->count; at += range) {
        optim_span span = whole;
        span.n          = k->count - at < range ? k->count - at : range;
        span.param += at;
        span.grad += at;
        for (uint32_t i = 0; i < k->slots; i++) span.slot[i] += at;
        shard_chunk_copy_range(k, &from, at, span.n);
        optim_apply(s->group[k->group].optim, &s->group[k->group].hyper, &span, 1, NULL);
    }
    shard_chunk_origin_release(&from);
    k->version++;
    shard_chunk_changed(k);
    shard_offload_out(s, k);
}

/* All chunks of a whole-tensor rule's tensor: consecutive in the plan and in one partition, hence also here. */
static uint32_t update_tensor(shard *s, uint32_t first, double lr, double gscale)
{
    uint32_t n          = 0;
    shard_chunk *chunks = &s->chunk[first];
    while (first + n < s->n_chunks && chunks[n].tensor == chunks[0].tensor) {
        if (!shard_offload_in(s, &chunks[n]) || !shard_chunk_make_writable(s, &chunks[n]))
            return n + 1;
        s->span[n] = span_of(s, &chunks[n], chunks[n].sum, lr, gscale);
        n++;
    }
    optim_apply(s->group[chunks[0].group].optim, &s->group[chunks[0].group].hyper, s->span, n,
                s->scratch);
    for (uint32_t i = 0; i < n; i++) {
        chunks[i].version++;
        shard_chunk_changed(&chunks[i]);
        shard_offload_out(s, &chunks[i]);
    }
    return n;
}

/* ---- a decided step -------------------------------------------------------------------------- */
static uint32_t commit_chunk(shard *s, uint32_t index, const wire_decision *decision,
                             const wire_inputs *inputs)
{
    shard_chunk *k  = &s->chunk[index];
    const double lr = inputs->rate[k->group];
    if (k->sum == NULL) return 1;                                      /* every weight was 0 */
    if (!k->is_filled && !mutation(MUTATION_FILL_UNORDERED)) return 1; /* its values arrive later */
    if (s->group[k->group].optim->whole_tensor)
        return update_tensor(s, index, lr, decision->gscale);
    update(s, k, k->sum, lr, decision->gscale);
    return 1;
}

/* Meanwhile the next chunk is read from its file. */
static void look_ahead(shard *s, const plan_partition *p, uint32_t i)
{
    if (s->offload == NULL || i >= p->n_chunks) return;
    const shard_chunk *k = &s->chunk[s->index_of[p->chunk[i]]];
    if (k->decided && k->sum != NULL && k->is_filled) shard_offload_ahead(s, k);
}

static void count_step(shard *s, uint64_t step, bool was_skipped)
{
    const uint64_t ended = step + 1 - s->setup.first_step;
    if (ended <= s->ended) return;
    s->ended = ended;
    s->skipped += was_skipped;
    stat_max(s->options.stats, STAT_STEPS,
             s->ended); /* shards share the counter and end the same steps */
    stat_max(s->options.stats, STAT_SKIPPED, s->skipped);
}

/* rank -1: of all. */
static void trace_shard(const shard *s, trace_kind kind, uint64_t begun, uint64_t step,
                        int32_t rank)
{
    const trace_note note = {.step = (int64_t)step, .shard = (int32_t)s->setup.self, .rank = rank};
    trace_span(kind, begun, &note);
}

static void commit(shard *s, uint32_t partition, uint64_t step, const wire_decision *decision,
                   uint64_t capture)
{
    const wire_inputs *inputs = shard_core_step_inputs(s->core, step);
    const plan_partition *p   = &s->setup.plan->partition[s->partition[partition].number];
    const bool is_applied     = decision->outcome == PEN_APPLIED && inputs != NULL;
    const uint64_t begun      = trace_begin();
    for (uint32_t i = 0; i < p->n_chunks && is_applied;) {
        const uint32_t index = s->index_of[p->chunk[i]];
        look_ahead(s, p, i + 1);
        i += s->chunk[index].decided ? commit_chunk(s, index, decision, inputs) : 1;
    }
    if (is_applied) trace_shard(s, TRACE_APPLY, begun, step, -1);
    shard_log_commit(s, partition, step, decision);
    for (uint32_t i = 0; i < p->n_chunks; i++) {
        shard_chunk *k = &s->chunk[s->index_of[p->chunk[i]]];
        if (!k->decided) continue;
        if (is_applied && k->sum != NULL && k->is_filled) shard_log_changed(s, k);
        shard_drop_sum(s, k);
        if (capture != 0 && s->role == SHARD_PRIMARY) shard_capture_take(s, k, capture);
    }
    shard_log_applied(s);
    count_step(s, step, !is_applied);
    trace_shard(s, TRACE_COMMIT, begun, step, -1);
}

/* A node's sum is weighted already; its weight says only whether it is empty. */
static double factor_of(const wire_inputs *inputs)
{
    return inputs->is_node_sum && inputs->weight > 0 ? 1 : inputs->weight;
}

/* NULL: the sender waits for its memory, perhaps before it pushes what this chunk still needs. */
static buf *holder_of(const shard_arrival *in)
{
    return in->d->flags & WIRE_RETURN ? NULL : in->payload;
}

/* ---- verbs ----------------------------------------------------------------------------------- */
static shard_part part_of(const shard *s, const shard_core_action *a, const shard_arrival *in)
{
    const wire_inputs *inputs = &in->d->inputs;
    return (shard_part){.rank   = a->rank,
                        .weight = factor_of(inputs),
                        .dtype  = shard_push_dtype(s, &s->chunk[a->index], inputs),
                        .data   = in->data,
                        .holder = holder_of(in)};
}

static void fold(shard *s, const shard_core_action *a, const shard_arrival *in)
{
    if (s->chunk[a->index].table != NULL) {
        shard_table_stage(s, &s->chunk[a->index], a, in);
        return;
    }
    const shard_part part = part_of(s, a, in);
    shard_chunk *k        = &s->chunk[a->index];
    if (a->rank == in->d->rank) shard_scalars_take(s, k, a->rank, &in->d->inputs);
    if (a->rank == in->d->rank)
        shard_fold(s, k, &part);
    else
        shard_fold_kept(s, k, a->rank);
}

static void keep(shard *s, const shard_core_action *a, const shard_arrival *in)
{
    if (s->chunk[a->index].table != NULL) {
        shard_table_stage(s, &s->chunk[a->index], a, in);
        return;
    }
    const shard_part part = part_of(s, a, in);
    shard_scalars_take(s, &s->chunk[a->index], a->rank, &in->d->inputs);
    shard_keep(s, &s->chunk[a->index], &part);
}

static void fold_node(shard *s, const shard_core_action *a)
{
    if (s->chunk[a->index].table == NULL) shard_fold_node(s, &s->chunk[a->index], a->rank);
}

static void take_norm(shard *s, shard_chunk *k)
{
    double *squares = s->partition[k->partition].squares + k->first_block;
    if (k->sum == NULL)
        memset(squares, 0, k->blocks * sizeof *squares);
    else if (!simd()->norm(k->sum, k->count, squares) && k->bad_rank < 0)
        k->bad_rank = k->base_rank;
    shard_log_sum(s, k, -1);
}

static void find_bad(const shard *s, const plan_partition *p, wire_vote *vote)
{
    for (uint32_t i = 0; i < p->n_chunks; i++) {
        const shard_chunk *k = &s->chunk[s->index_of[p->chunk[i]]];
        if (!k->decided || k->bad_rank < 0) continue;
        vote->finite    = false;
        vote->bad_chunk = k->number;
        vote->bad_rank  = k->bad_rank;
        return;
    }
}

static void make_vote(shard *s, uint32_t partition, uint64_t step)
{
    shard_partition *p        = &s->partition[partition];
    const wire_inputs *inputs = shard_core_step_inputs(s->core, step);
    p->step                   = step;
    p->vote                   = (wire_vote){.partition  = p->number,
                                            .weight_sum = shard_core_weight_sum(s->core, step),
                                            .finite     = true,
                                            .bad_rank   = -1};
    find_bad(s, &s->setup.plan->partition[p->number], &p->vote);
    if (s->scalars.chunk != SHARD_NONE &&
        s->setup.plan->chunk[s->chunk[s->scalars.chunk].number].partition == p->number)
        shard_core_scalars(s->core, step, &p->vote.scalars);
    p->vote.hash = decision_vote_hash(step, &p->vote, inputs, p->squares, p->blocks);
    shard_core_vote_is(s->core, partition, p->vote.hash);
    p->is_fresh = s->has_fresh = true;
    if (step == s->watch.step)
        stat_took(s->options.stats, STAT_SPREAD_STRAGGLERS, s->watch.begun_ns);
    shard_log_prepared(s, partition, -1);
}

static void prepared(shard *s, const shard_core_action *a)
{
    if (a->peer == CORE_EVERYONE)
        make_vote(s, a->index, a->seq);
    else if (!s->partition[a->index].is_fresh)
        shard_send_prepared(s, a->index, a->peer, a->rank);
}

/* Eager: the mean of all ranks.  Otherwise one rank's push, with its relative weight. */
void shard_update_with_mean(shard *s, shard_chunk *k, const wire_inputs *inputs)
{
    const double divisor = k->weight_sum * inputs->loss_scale;
    if (k->sum != NULL && divisor > 0) update(s, k, k->sum, inputs->rate[k->group], 1 / divisor);
}

void shard_update_with_one(shard *s, shard_chunk *k, const wire_inputs *inputs, const void *data)
{
    const float *grad = inputs->weight > 0 ? shard_as_f32(s, k, data) : NULL;
    if (grad != NULL)
        update(s, k, grad, inputs->rate[k->group], inputs->weight / inputs->loss_scale);
}

static void take_update(shard *s, const shard_core_action *a, const shard_arrival *in)
{
    shard_chunk *k       = &s->chunk[a->index];
    const uint64_t begun = trace_begin();
    if (k->handler != NULL) {
        shard_handler_request(s, k, a, in);
        trace_shard(s, TRACE_APPLY, begun, a->seq, a->rank);
        return;
    }
    if (k->table != NULL) {
        shard_table_update(s, k, a, in);
        trace_shard(s, TRACE_APPLY, begun, a->seq, a->rank);
        shard_log_changed(s, k);
        shard_log_applied(s);
        return;
    }
    if (a->rank >= 0) shard_scalars_take(s, k, a->rank, &in->d->inputs);
    shard_scalars_close(s, k);
    if (a->rank < 0) {
        shard_log_update(s, k, a->seq, &in->d->inputs);
        shard_update_with_mean(s, k, &in->d->inputs);
    } else {
        wire_inputs inputs = in->d->inputs;
        inputs.weight      = shard_core_relative_weight(s->core, a->rank, inputs.weight);
        shard_log_apply(s, k, a->rank, a->seq, &inputs, in->data, in->size, in->payload);
        shard_update_with_one(s, k, &inputs, in->data);
    }
    trace_shard(s, TRACE_APPLY, begun, a->seq, a->rank);
    shard_log_changed(s, k);
    shard_log_applied(s);
    shard_drop_sum(s, k);
    count_step(s, a->seq, false);
    if (a->capture != 0) shard_capture_take(s, k, a->capture);
    trace_shard(s, TRACE_COMMIT, begun, a->seq, a->rank);
}

static void serve(shard *s, const shard_core_action *a, const shard_arrival *in)
{
    if (a->repeated) stat_add(s->options.stats, STAT_REPEATS, 1);
    if (!s->chunk[a->index].decided && !a->initial) {
        stat_max(s->options.stats, STAT_GAP_MAX, a->staleness);
        stat_observe(s->options.stats, STAT_SPREAD_STALENESS, a->staleness);
    }
    if (s->chunk[a->index].handler != NULL && !a->initial)
        shard_handler_serve(s, &s->chunk[a->index], a);
    else if (s->chunk[a->index].table != NULL && !a->initial)
        shard_table_serve(s, &s->chunk[a->index], a, in);
    else
        shard_serve(s, a);
}

static void note(shard *s, const shard_core_action *a, shard_list_kind kind)
{
    if (a->repeated) stat_add(s->options.stats, STAT_REPEATS, 1);
    shard_note(s, kind, a);
}

static void refuse(shard *s, const shard_core_action *a, const shard_arrival *in)
{
    if (a->status == PEN_AGAIN) stat_add(s->options.stats, STAT_BUSY, 1);
    if (a->index == CORE_EVERYONE)
        shard_refuse(s, a->peer, in->d, a->status, a->reason);
    else
        shard_refuse_chunk(s, a->peer, in->d, s->chunk[a->index].number, a->seq, a->status,
                           a->reason);
}

static void carry_out(shard *s, const shard_core_action *a, const shard_arrival *in)
{
    switch (a->verb) {
    case CORE_FOLD: fold(s, a, in); break;
    case CORE_BUFFER: keep(s, a, in); break;
    case CORE_NODE: fold_node(s, a); break;
    case CORE_SUMMED: take_norm(s, &s->chunk[a->index]); break;
    case CORE_PREPARED: prepared(s, a); break;
    case CORE_COMMIT: commit(s, a->index, a->seq, &in->d->decision, a->capture); break;
    case CORE_UPDATE: take_update(s, a, in); break;
    case CORE_DROP: shard_drop_staged(s, &s->chunk[a->index]); break;
    case CORE_SERVE: serve(s, a, in); break;
    case CORE_APPLIED: note(s, a, SHARD_APPLIED); break;
    case CORE_RECEIPT: note(s, a, SHARD_RECEIPT); break;
    case CORE_WAITING: stat_add(s->options.stats, STAT_HELD, 1); break;
    case CORE_REFUSE: refuse(s, a, in); break;
    }
}

void shard_act(shard *s, shard_core_actions actions, const shard_arrival *in)
{
    for (uint32_t i = 0; i < actions.n && !s->has_failed; i++) carry_out(s, &actions.at[i], in);
}
