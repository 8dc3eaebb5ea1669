/* shard_cut.c - snapshots in memory: references to every chunk at one step's end.
 *
 * Chunks end a step one by one, and a fast one may be updated again before the last has ended it. So each is taken
 * at its own end of the step, and the cut is complete when it has all.
 */
#include "server/shard/shard_state.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <stdlib.h>

void shard_cut_release(shard_cut_chunk *chunk)
{
    buf_release(chunk->values);
    chunk->values = NULL;
    for (int j = 0; j < OPTIM_SLOTS_MAX; j++) {
        buf_release(chunk->slot[j]);
        chunk->slot[j] = NULL;
    }
    for (int j = 0; j <= OPTIM_SLOTS_MAX; j++) {
        tier_hold_release(chunk->held[j]);
        chunk->held[j] = NULL;
    }
    chunk->is_taken = false;
}

pen_status shard_cut_read(shard_cut_chunk *chunk, uint32_t array, buf **numbers, pen_error *why)
{
    buf *here = array == 0 ? chunk->values : chunk->slot[array - 1];
    if (here != NULL) *numbers = buf_acquire(here);
    if (here != NULL) return PEN_OK;
    if (chunk->held[array] != NULL) return tier_hold_read(chunk->held[array], numbers, why);
    return why_set(why, PEN_NO_MEMORY, "no memory to store the optimizer state");
}

void shard_cut_destroy(shard_cut *cut)
{
    if (cut == NULL) return;
    for (uint32_t i = 0; i < cut->n; i++) shard_cut_release(&cut->chunk[i]);
    free(cut->chunk);
    free(cut->states);
    free(cut);
}

static shard_cut *new_cut(const shard *s, int64_t step)
{
    shard_cut *cut = calloc(1, sizeof *cut);
    if (cut == NULL) return NULL;
    cut->chunk = calloc(s->n_chunks + 1, sizeof *cut->chunk);
    if (cut->chunk == NULL) {
        free(cut);
        return NULL;
    }
    cut->n    = s->n_chunks;
    cut->step = step;
    return cut;
}

static void refer(shard_cut_chunk *to, shard *s, const shard_chunk *k)
{
    *to = (shard_cut_chunk){.chunk    = k->number,
                            .tensor   = k->tensor,
                            .start    = k->start,
                            .count    = k->count,
                            .version  = k->version,
                            .is_taken = true,
                            .values   = buf_acquire(k->values),
                            .n_slots  = k->slots};
    for (uint32_t i = 0; i < to->n_slots; i++) to->slot[i] = buf_acquire(k->slot[i]);
    for (uint32_t a = 0; s->tier != NULL && a <= to->n_slots; a++)
        to->held[a] = shard_tier_hold(s, k, a);
}

/* Averaged chunks all have the same number of updates, and their shards count them for the job.  A model without
 * any counts steps. */
static int64_t count_applied(const shard *s, const shard_cut *cut)
{
    for (uint32_t i = 0; i < s->n_chunks; i++)
        if (s->chunk[i].decided) return (int64_t)cut->chunk[i].version;
    for (uint32_t p = 0; p < s->setup.plan->n_partitions; p++)
        if (s->setup.plan->partition[p].n_decided > 0) return 0;
    return cut->step;
}

static void hand_over(shard *s, shard_open_cut *open)
{
    shard_cut *cut = open->cut;
    for (uint32_t i = 0; i < s->n_chunks; i++)
        if (!s->chunk[i].trained) refer(&cut->chunk[i], s, &s->chunk[i]);
    cut->applied = count_applied(s, cut);
    shard_states_give(s, cut);
    open->cut = NULL;
    s->outside.snapshot(s->outside.user, cut);
}

/* Finds or begins the cut of this step.  A third one means that the first will never be complete. */
static shard_open_cut *find_cut(shard *s, int64_t step)
{
    shard_open_cut *choice = &s->cuts[0];
    for (int i = 0; i < SHARD_CUTS_MAX; i++) {
        if (s->cuts[i].cut != NULL && s->cuts[i].cut->step == step) return &s->cuts[i];
        if (choice->cut == NULL) continue;
        if (s->cuts[i].cut == NULL || s->cuts[i].cut->step < choice->cut->step)
            choice = &s->cuts[i];
    }
    if (choice->cut != NULL) {
        log_warning("gave up snapshot %" PRId64 ": %u chunks have not ended that step",
                    choice->cut->step, choice->left);
        shard_cut_destroy(choice->cut);
    }
    choice->cut  = new_cut(s, step);
    choice->left = s->n_trained;
    return choice;
}

void shard_cut_take(shard *s, shard_chunk *k, uint64_t step)
{
    shard_open_cut *open = find_cut(s, (int64_t)step);
    if (open->cut == NULL) {
        shard_no_memory(s);
        return;
    }
    shard_cut_chunk *to = &open->cut->chunk[k - s->chunk];
    if (to->is_taken) return;
    refer(to, s, k);
    if (--open->left == 0) hand_over(s, open);
}

void shard_cut_idle(shard *s, int64_t step)
{
    if (s->n_trained > 0 || s->has_failed) return;
    shard_open_cut open = {.cut = new_cut(s, step)};
    if (open.cut == NULL)
        shard_no_memory(s);
    else
        hand_over(s, &open);
}

bool shard_is_idle(const shard *s)
{
    return s->n_trained == 0;
}

void shard_cut_fini(shard *s)
{
    for (int i = 0; i < SHARD_CUTS_MAX; i++) shard_cut_destroy(s->cuts[i].cut);
}
