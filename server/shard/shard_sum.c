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
    buf_release(k->holder);
    k->accumulator = NULL;
    k->holder      = NULL;
    k->sum         = NULL;
    k->bad_rank    = -1;
    k->weight_sum  = 0;
}

static void start_sum(shard *s, shard_chunk *k, int32_t rank, double weight, const void *data,
                      buf *holder)
{
    k->base_rank = rank;
    if (weight == 1.0 && k->push_dtype == PEN_F32 && holder != NULL) {
        k->sum    = data;
        k->holder = buf_acquire(holder);
        return;
    }
    k->accumulator = take_accumulator(s, k);
    if (k->accumulator == NULL) return;
    k->sum = k->accumulator->data;
    if (!simd()->fold_set(k->accumulator->data, data, k->push_dtype, (float)weight, k->count))
        k->bad_rank = rank;
}

/* The base was not checked on arrival; it is checked only now that the sum is not finite. */
static int32_t culprit(const shard_chunk *k, int32_t rank)
{
    return simd()->finite(k->sum, PEN_F32, k->count) ? rank : k->base_rank;
}

void shard_fold(shard *s, shard_chunk *k, int32_t rank, double weight, const void *data,
                buf *holder)
{
    k->weight_sum += weight;
    if (weight == 0) return; /* a rank without data this step: its bytes are meaningless */
    if (k->sum == NULL) {
        start_sum(s, k, rank, weight, data, holder);
        return;
    }
    buf *to = k->accumulator != NULL ? k->accumulator : take_accumulator(s, k);
    if (to == NULL) return;
    const bool is_finite =
        simd()->fold_add(to->data, k->sum, data, k->push_dtype, (float)weight, k->count);
    if (!is_finite && k->bad_rank < 0)
        k->bad_rank = k->accumulator != NULL ? rank : culprit(k, rank);
    buf_release(k->holder);
    k->holder      = NULL;
    k->accumulator = to;
    k->sum         = to->data;
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
/* Copies a small part of a large message, since a reference would hold the whole message in memory; also copies data
 * without a holder. */
static buf *hold_part(const void *data, size_t size, buf *holder, const void **held)
{
    *held = data;
    if (holder != NULL && size >= holder->size / 2) return buf_acquire(holder);
    buf *copy = buf_new(size);
    if (copy == NULL) return NULL;
    memcpy(copy->data, data, size);
    *held = copy->data;
    return copy;
}

static shard_kept *new_kept(shard *s)
{
    shard_kept *kept = s->spare_kept;
    if (kept == NULL) return malloc(sizeof *kept);
    s->spare_kept = kept->next;
    return kept;
}

void shard_keep(shard *s, shard_chunk *k, int32_t rank, double weight, const void *data,
                buf *holder)
{
    shard_kept *kept  = new_kept(s);
    const size_t size = k->count * plan_dtype_bytes(k->push_dtype);
    const void *held  = NULL;
    buf *part         = kept != NULL ? hold_part(data, size, holder, &held) : NULL;
    if (part == NULL) {
        free(kept);
        shard_no_memory(s);
        return;
    }
    *kept = (shard_kept){.rank = rank, .weight = weight, .data = held, .holder = part};
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
        shard_fold(s, k, rank, kept->weight, kept->data, kept->holder);
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
}
