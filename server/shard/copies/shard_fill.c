/* shard_fill.c - fills an empty copy while training continues.
 *
 * The state is sent in the log, in order with everything else: first the progress of each partition, with its sums and
 * records, then the chunks, a few at a time, between the entries of ongoing work.  The learner ignores updates of
 * chunks it lacks, so each chunk becomes valid with its own STATE.  Values are references; an update copies them if
 * needed.
 */
#include "server/shard/shard_state.h"

#include "common/base/log.h"
#include "common/base/mutation.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH_BYTES = 4 << 20 }; /* appended together; two batches are in flight */

static uint64_t new_stream(shard *s)
{
    return (s->epoch << 24 | ++s->streams) ^ s->setup.incarnation << 40;
}

void shard_fill_stream(shard *s, shard_copy *copy, bool is_fresh)
{
    const shard_copy before = *copy;
    *copy                   = (shard_copy){.server      = before.server,
                                           .incarnation = before.incarnation,
                                           .is_learner  = before.is_learner,
                                           .has_stream  = true,
                                           .is_fresh    = is_fresh,
                                           .stream      = new_stream(s),
                                           .base        = s->log.index,
                                           .acked       = s->log.index,
                                           .sent        = s->log.index,
                                           .resent      = UINT64_MAX};
}

/* ---- partitions ------------------------------------------------------------------------------ */
/* Includes the record of the newest decided step: a rank that lost it asks again. */
void shard_fill_partition(shard *s, int32_t only, uint32_t index)
{
    const shard_partition *p      = &s->partition[index];
    const wire_decision *decision = shard_core_decision(s->core, index);
    wire_entry e                  = {.what    = WIRE_ENTRY_BEGIN,
                                     .object  = p->number,
                                     .rank    = -1,
                                     .step    = shard_core_partition_step(s->core, index),
                                     .applied = shard_core_partition_applied(s->core, index)};
    if (decision != NULL) {
        e.has_decision = true;
        e.decision     = *decision;
    }
    buf *squares = NULL;
    if (decision != NULL && p->step + 1 == e.step) {
        e.has_vote = true;
        e.vote     = p->vote;
        squares    = buf_new(p->blocks * sizeof(double));
        if (squares != NULL) memcpy(squares->data, p->squares, squares->size);
        if (squares == NULL) {
            shard_no_memory(s);
            return;
        }
    }
    shard_log_append(s, &e, only, squares);
}

static void notify_open_step(shard *s, const shard_copy *copy, uint32_t index)
{
    const plan_partition *p = &s->setup.plan->partition[s->partition[index].number];
    for (uint32_t i = 0; i < p->n_chunks; i++) {
        const uint32_t chunk = s->index_of[p->chunk[i]];
        if (s->chunk[chunk].decided && shard_core_is_summed(s->core, chunk))
            shard_log_sum(s, &s->chunk[chunk], copy->server);
    }
    if (shard_core_has_vote(s->core, index)) shard_log_prepared(s, index, copy->server);
}

void shard_fill_begin(shard *s, shard_copy *copy)
{
    shard_fill_stream(s, copy, true);
    for (uint32_t i = 0; i < s->n_partitions; i++) {
        shard_fill_partition(s, copy->server, i);
        notify_open_step(s, copy, i);
    }
    copy->fill_mark[0] = copy->fill_mark[1] = s->log.index;
    shard_fill_go_on(s, copy);
}

/* ---- chunks ---------------------------------------------------------------------------------- */
/* numbers is OWNED by the callee. */
static void notify_array(shard *s, int32_t only, shard_chunk *k, uint32_t slot, bool is_last,
                         buf *numbers)
{
    wire_entry e = {.what    = WIRE_ENTRY_STATE,
                    .object  = k->number,
                    .rank    = -1,
                    .slot    = slot,
                    .is_last = is_last,
                    .step    = shard_core_round(s->core, k->index),
                    .version = k->version};
    if (slot == 0) {
        e.number    = shard_core_clocks(s->core, k->index);
        e.n_numbers = s->setup.world_size;
        e.crc       = numbers != NULL ? shard_offload_crc(s, k) : 0;
        e.has_vote  = shard_scalars_are_of(s, k);
        if (e.has_vote) e.vote.scalars = s->scalars.sum;
    }
    shard_log_append(s, &e, only, numbers);
}

void shard_fill_array(shard *s, int32_t only, shard_chunk *k, uint32_t array, bool is_last)
{
    buf *numbers = shard_offload_array(s, k, array);
    if (numbers != NULL) notify_array(s, only, k, array, is_last, numbers);
}

static uint64_t notify_chunk(shard *s, const shard_copy *copy, shard_chunk *k)
{
    if (!shard_core_has_values(s->core, k->index)) {
        notify_array(s, copy->server, k, 0, true, NULL); /* sent as FIRST */
        return 0;
    }
    if (k->table != NULL) {
        /* A part of a table: the blocks of its rows follow in place of slots. */
        row_store *all       = shard_table_rows(k);
        const uint32_t all_n = row_store_blocks(all);
        const uint32_t n     = all_n - (all_n > 0 && mutation(MUTATION_ROWS_LEFT_BEHIND));
        shard_fill_array(s, copy->server, k, 0, n == 0);
        for (uint32_t i = 0; i < n && !s->has_failed; i++)
            notify_array(s, copy->server, k, 1 + i, i + 1 == n,
                         buf_acquire(row_store_block(all, i)));
        return row_store_bytes(all);
    }
    if (k->handler != NULL) { /* its state comes when the shard is sealed */
        shard_fill_array(s, copy->server, k, 0, true);
        return 0;
    }
    for (uint32_t a = 0; a <= k->slots && !s->has_failed; a++)
        shard_fill_array(s, copy->server, k, a, a == k->slots);
    return k->count * sizeof(float) * (1 + k->slots);
}

/* Chunks of a whole-tensor rule's tensor are updated together, so they are sent together. */
static bool goes_on_with(const shard *s, uint32_t i)
{
    return i > 0 && i < s->n_chunks && s->chunk[i].tensor == s->chunk[i - 1].tensor &&
           s->chunk[i].trained && s->group[s->chunk[i].group].optim->whole_tensor;
}

static void notify_batch(shard *s, shard_copy *copy)
{
    uint64_t bytes = 0;
    while (copy->filled < s->n_chunks && !s->has_failed &&
           (bytes < BATCH_BYTES || goes_on_with(s, copy->filled)))
        bytes += notify_chunk(s, copy, &s->chunk[copy->filled++]);
    copy->fill_mark[0] = copy->fill_mark[1];
    copy->fill_mark[1] = s->log.index;
    if (copy->filled < s->n_chunks) return;
    copy->is_filled = true;
    if (!shard_handlers_can_move(s)) {
        log_warning("shard %u cannot move to server %d: a handler has no save() and load()",
                    s->setup.self, copy->server);
        copy->filled_at = UINT64_MAX;
        return;
    }
    const wire_entry e = {.what = WIRE_ENTRY_FILLED, .rank = -1, .digest = s->log.digest};
    shard_log_append(s, &e, copy->server, NULL);
    copy->filled_at = s->log.index;
}

void shard_fill_go_on(shard *s, shard_copy *copy)
{
    while (copy->has_stream && copy->is_fresh && !copy->is_filled && !s->has_failed &&
           copy->acked >= copy->fill_mark[0])
        notify_batch(s, copy);
}
