/* shard_capture.c - snapshots in memory: references to every chunk at one step's end.
 *
 * Chunks end a step one by one, and a fast one may be updated again before the last has ended it.  So each is captured
 * at its own end of the step, and the capture is complete when it has all.
 */
#include "server/shard/shard_state.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <stdlib.h>

void shard_capture_release(shard_capture_chunk *chunk)
{
    buf_release(chunk->values);
    chunk->values = NULL;
    for (int j = 0; j < OPTIM_SLOTS_MAX; j++) {
        buf_release(chunk->slot[j]);
        chunk->slot[j] = NULL;
    }
    for (int j = 0; j <= OPTIM_SLOTS_MAX; j++) {
        offload_hold_release(chunk->held[j]);
        chunk->held[j] = NULL;
    }
    for (uint32_t j = 0; j < chunk->n_blocks; j++) buf_release(chunk->block[j]);
    free(chunk->block);
    chunk->block    = NULL;
    chunk->n_blocks = 0;
    chunk->is_taken = false;
}

size_t shard_capture_used(const shard_capture_chunk *chunk, uint32_t i)
{
    return chunk->has_handler ? chunk->block[i]->size : row_store_used(chunk->block[i]);
}

pen_status shard_capture_read(shard_capture_chunk *chunk, uint32_t array, buf **numbers,
                              pen_error *why)
{
    buf *here = array == 0 ? chunk->values : chunk->slot[array - 1];
    if (here != NULL) *numbers = buf_acquire(here);
    if (here != NULL) return PEN_OK;
    if (chunk->held[array] != NULL) return offload_hold_read(chunk->held[array], numbers, why);
    return why_set(why, PEN_NO_MEMORY, "no memory to store the optimizer state");
}

void shard_capture_destroy(shard_capture *capture)
{
    if (capture == NULL) return;
    for (uint32_t i = 0; i < capture->n; i++) shard_capture_release(&capture->chunk[i]);
    free(capture->chunk);
    free(capture->states);
    free(capture);
}

static shard_capture *new_capture(const shard *s, int64_t step)
{
    shard_capture *capture = calloc(1, sizeof *capture);
    if (capture == NULL) return NULL;
    capture->chunk = calloc(s->n_chunks + 1, sizeof *capture->chunk);
    if (capture->chunk == NULL) {
        free(capture);
        return NULL;
    }
    capture->n    = s->n_chunks;
    capture->step = step;
    return capture;
}

static void refer_to_rows(shard_capture_chunk *to, shard *s, const shard_chunk *k)
{
    row_store *all = shard_table_rows(k);
    to->is_table   = true;
    to->block      = calloc(row_store_blocks(all) + 1, sizeof *to->block);
    if (to->block == NULL) {
        shard_no_memory(s);
        return;
    }
    for (to->n_blocks = 0; to->n_blocks < row_store_blocks(all); to->n_blocks++)
        to->block[to->n_blocks] = buf_acquire(row_store_block(all, to->n_blocks));
}

static void refer(shard_capture_chunk *to, shard *s, const shard_chunk *k)
{
    *to = (shard_capture_chunk){.chunk    = k->number,
                                .tensor   = k->tensor,
                                .start    = k->start,
                                .count    = k->count,
                                .version  = k->version,
                                .is_taken = true,
                                .values   = buf_acquire(k->values),
                                .n_slots  = k->slots};
    for (uint32_t i = 0; i < to->n_slots; i++) to->slot[i] = buf_acquire(k->slot[i]);
    for (uint32_t a = 0; s->offload != NULL && a <= to->n_slots; a++)
        to->held[a] = shard_offload_hold(s, k, a);
    if (k->table != NULL) refer_to_rows(to, s, k);
    to->has_handler = k->handler != NULL;
    if (k->handler != NULL) shard_handler_capture(to, k);
}

/* Averaged chunks all have the same number of updates, and their shards count them for the job.  A model without
 * any counts steps. */
static int64_t count_applied(const shard *s, const shard_capture *capture)
{
    for (uint32_t i = 0; i < s->n_chunks; i++)
        if (s->chunk[i].decided) return (int64_t)capture->chunk[i].version;
    for (uint32_t p = 0; p < s->setup.plan->n_partitions; p++)
        if (s->setup.plan->partition[p].n_decided > 0) return 0;
    return capture->step;
}

static void hand_over(shard *s, shard_open_capture *open)
{
    shard_capture *capture = open->capture;
    for (uint32_t i = 0; i < s->n_chunks; i++)
        if (!s->chunk[i].trained) refer(&capture->chunk[i], s, &s->chunk[i]);
    capture->applied = count_applied(s, capture);
    shard_states_give(s, capture);
    open->capture = NULL;
    if (s->has_failed) /* for want of memory, rows or states are missing in it */
        shard_capture_destroy(capture);
    else
        s->outside.snapshot(s->outside.user, capture);
}

/* Finds or begins the capture of this step.  A third one means that the first will never be complete. */
static shard_open_capture *find_capture(shard *s, int64_t step)
{
    shard_open_capture *choice = &s->captures[0];
    for (int i = 0; i < SHARD_CUTS_MAX; i++) {
        if (s->captures[i].capture != NULL && s->captures[i].capture->step == step)
            return &s->captures[i];
        if (choice->capture == NULL) continue;
        if (s->captures[i].capture == NULL || s->captures[i].capture->step < choice->capture->step)
            choice = &s->captures[i];
    }
    if (choice->capture != NULL) {
        log_warning("gave up snapshot %" PRId64 ": %u chunks have not ended that step",
                    choice->capture->step, choice->left);
        shard_capture_destroy(choice->capture);
    }
    choice->capture = new_capture(s, step);
    choice->left    = s->n_trained;
    return choice;
}

void shard_capture_take(shard *s, shard_chunk *k, uint64_t step)
{
    if (s->has_failed) return; /* it may lack the very update that completes the step */
    shard_open_capture *open = find_capture(s, (int64_t)step);
    if (open->capture == NULL) {
        shard_no_memory(s);
        return;
    }
    shard_capture_chunk *to = &open->capture->chunk[k - s->chunk];
    if (to->is_taken) return;
    refer(to, s, k);
    if (--open->left == 0) hand_over(s, open);
}

void shard_capture_idle(shard *s, int64_t step)
{
    if (s->n_trained > 0 || s->has_failed) return;
    shard_open_capture open = {.capture = new_capture(s, step)};
    if (open.capture == NULL)
        shard_no_memory(s);
    else
        hand_over(s, &open);
}

bool shard_is_idle(const shard *s)
{
    return s->n_trained == 0;
}

void shard_capture_fini(shard *s)
{
    for (int i = 0; i < SHARD_CUTS_MAX; i++) shard_capture_destroy(s->captures[i].capture);
}
