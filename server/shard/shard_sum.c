/* shard_sum.c - contributions: kept where they arrived, added in the order given by the core. */
#include "server/shard/shard_state.h"

#include "common/compute/simd/simd.h"
#include "common/containers/list.h"

#include <stdlib.h>
#include <string.h>

/* ---- the sum --------------------------------------------------------------------------------- */
static buf *take_accumulator(shard *s, shard_chunk *k)
{
    buf *accumulator = shard_pool_take(&s->pool, k->count);
    if (accumulator == NULL) shard_no_memory(s);
    return accumulator;
}

void shard_drop_sum(shard *s, shard_chunk *k)
{
    if (k->accumulator != NULL) shard_pool_give(&s->pool, k->accumulator);
    if (k->before.accumulator != NULL) shard_pool_give(&s->pool, k->before.accumulator);
    buf_release(k->holder);
    buf_release(k->before.holder);
    k->accumulator      = NULL;
    k->holder           = NULL;
    k->sum              = NULL;
    k->bad_rank         = -1;
    k->weight_sum       = 0;
    k->before           = (shard_sum){0};
    k->is_node_complete = false;
}

static void set_sum(shard_chunk *k, const shard_sum *sum)
{
    k->sum         = sum->sum;
    k->holder      = sum->holder;
    k->accumulator = sum->accumulator;
    k->weight_sum  = sum->weight;
    k->base_rank   = sum->base_rank;
}

pen_dtype shard_push_dtype(const shard *s, const shard_chunk *k, const wire_inputs *inputs)
{
    return inputs->is_node_sum && plan_sums_are_wide(s->setup.model) ? PEN_F32 : k->push_dtype;
}

static void start_sum(shard *s, shard_chunk *k, const shard_part *p)
{
    k->base_rank = p->rank;
    if (p->weight == 1.0 && p->dtype == PEN_F32 && p->holder != NULL) {
        k->sum    = p->data;
        k->holder = buf_acquire(p->holder);
        return;
    }
    k->accumulator = take_accumulator(s, k);
    if (k->accumulator == NULL) return;
    k->sum = k->accumulator->data;
    if (!simd()->fold_set(k->accumulator->data, p->data, p->dtype, (float)p->weight, k->count))
        k->bad_rank = p->rank;
}

/* The base was not checked on arrival; it is checked only now that the sum is not finite. */
static int32_t culprit(const shard_chunk *k, int32_t rank)
{
    return simd()->finite(k->sum, PEN_F32, k->count) ? rank : k->base_rank;
}

void shard_fold(shard *s, shard_chunk *k, const shard_part *p)
{
    if (k->is_node_complete) {
        k->before = (shard_sum){k->sum, k->holder, k->accumulator, k->weight_sum, k->base_rank};
        k->is_node_complete = false;
        set_sum(k, &(shard_sum){0});
    }
    k->weight_sum += p->weight;
    if (p->weight == 0) return; /* a rank without data this step: its bytes are meaningless */
    if (k->sum == NULL) {
        start_sum(s, k, p);
        return;
    }
    buf *to = k->accumulator != NULL ? k->accumulator : take_accumulator(s, k);
    if (to == NULL) return;
    const bool is_finite =
        simd()->fold_add(to->data, k->sum, p->data, p->dtype, (float)p->weight, k->count);
    if (!is_finite && k->bad_rank < 0)
        k->bad_rank = k->accumulator != NULL ? p->rank : culprit(k, p->rank);
    buf_release(k->holder);
    k->holder      = NULL;
    k->accumulator = to;
    k->sum         = to->data;
}

/* Contributions that are not in an accumulator have not been checked yet. */
static int32_t culprit_of_nodes(const shard_chunk *k, int32_t rank)
{
    if (k->before.accumulator == NULL && !simd()->finite(k->before.sum, PEN_F32, k->count))
        return k->before.base_rank;
    return k->accumulator == NULL ? culprit(k, rank) : rank;
}

/* x + y and y + x are the same bits, so either accumulator will do. */
static void add_nodes_before(shard *s, shard_chunk *k, int32_t rank)
{
    const bool is_own = k->accumulator != NULL;
    buf *to           = is_own ? k->accumulator : k->before.accumulator;
    if (to == NULL) to = take_accumulator(s, k);
    if (to == NULL) return;
    const bool is_finite = simd()->fold_add(to->data, is_own ? k->sum : k->before.sum,
                                            is_own ? k->before.sum : k->sum, PEN_F32, 1, k->count);
    if (!is_finite && k->bad_rank < 0) k->bad_rank = culprit_of_nodes(k, rank);
    if (is_own && k->before.accumulator != NULL) shard_pool_give(&s->pool, k->before.accumulator);
    buf_release(k->holder);
    buf_release(k->before.holder);
    set_sum(k, &(shard_sum){to->data, NULL, to, k->weight_sum, k->base_rank});
}

void shard_fold_node(shard *s, shard_chunk *k, int32_t rank)
{
    const double weight = k->before.weight + k->weight_sum;
    if (k->sum == NULL)
        set_sum(k, &k->before);
    else if (k->before.sum != NULL)
        add_nodes_before(s, k, rank);
    k->weight_sum       = weight;
    k->before           = (shard_sum){0};
    k->is_node_complete = true;
}

const float *shard_as_f32(shard *s, shard_chunk *k, const void *data)
{
    if (k->push_dtype == PEN_F32) return data;
    k->accumulator = take_accumulator(s, k);
    if (k->accumulator == NULL) return NULL;
    simd()->decode(k->accumulator->data, data, k->push_dtype, k->count);
    return k->accumulator->data;
}

/* ---- waiting for a turn ---------------------------------------------------------------------- */
static shard_kept *new_kept(shard *s)
{
    shard_kept *kept = s->spare_kept;
    if (kept == NULL) return malloc(sizeof *kept);
    s->spare_kept = kept->next;
    return kept;
}

void shard_keep(shard *s, shard_chunk *k, const shard_part *p)
{
    shard_kept *kept  = new_kept(s);
    const size_t size = k->count * plan_dtype_bytes(p->dtype);
    const void *held  = NULL;
    buf *part         = kept != NULL ? buf_hold_part(p->data, size, p->holder, &held) : NULL;
    if (part == NULL) {
        free(kept);
        shard_no_memory(s);
        return;
    }
    *kept = (shard_kept){
        .rank = p->rank, .weight = p->weight, .dtype = p->dtype, .data = held, .holder = part};
    LIST_PREPEND(k->kept, kept);
}

static void recycle(shard *s, shard_chunk *k, shard_kept *kept)
{
    LIST_REMOVE(k->kept, kept);
    buf_release(kept->holder);
    kept->next    = s->spare_kept;
    s->spare_kept = kept;
}

void shard_fold_kept(shard *s, shard_chunk *k, int32_t rank)
{
    LIST_EACH(kept, k->kept) {
        if (kept->rank != rank) continue;
        shard_fold(s, k, &(shard_part){rank, kept->weight, kept->dtype, kept->data, kept->holder});
        recycle(s, k, kept);
        return;
    }
}

void shard_drop_kept(shard *s, shard_chunk *k)
{
    LIST_EACH(kept, k->kept) recycle(s, k, kept);
}

void shard_drop_staged(shard *s, shard_chunk *k)
{
    shard_drop_sum(s, k);
    shard_drop_kept(s, k);
    if (k->table != NULL) shard_table_drop_staged(k);
}
