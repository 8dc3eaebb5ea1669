/* core_follow.c - the counters of a copy, kept equal by its primary's decisions. */
#include "server/shard/core/core_state.h"

#include <string.h>

static void set_clocks(shard_core *c, uint32_t chunk, uint64_t clock)
{
    for (uint32_t r = 0; r < c->world_size; r++) *shard_core_clock(c, chunk, (int32_t)r) = clock;
}

void shard_core_empty(shard_core *c)
{
    shard_core_abandon(c);
    for (uint32_t k = 0; k < c->n_chunks; k++) {
        c->chunk[k].has_values = false;
        c->chunk[k].got        = 0;
        c->chunk[k].capture    = 0;
    }
    for (uint32_t p = 0; p < c->n_partitions; p++) c->partition[p].has_decision = false;
    c->newest = c->first_step;
}

void shard_core_follow_begin(shard_core *c, uint32_t partition, uint64_t step, int64_t applied,
                             const wire_decision *decision)
{
    shard_core_partition *p = &c->partition[partition];
    p->step                 = step;
    p->applied              = applied;
    p->has_decision         = decision != NULL;
    if (decision != NULL) p->decision = *decision;
    c->applied = applied;
    if (step > c->newest) c->newest = step;
}

void shard_core_follow_state(shard_core *c, uint32_t chunk, bool has_values, uint64_t round,
                             const uint64_t *clock, uint32_t n)
{
    shard_core_chunk *k = &c->chunk[chunk];
    k->has_values       = has_values;
    k->round            = round;
    for (uint32_t r = 0; r < c->world_size; r++)
        *shard_core_clock(c, chunk, (int32_t)r) = r < n ? clock[r] : round;
}

bool shard_core_follow_prepared(shard_core *c, uint32_t partition, uint64_t step, int32_t rank,
                                const wire_inputs *inputs, uint64_t hash, uint64_t capture)
{
    shard_core_partition *p = &c->partition[partition];
    if (step != p->step || p->decided == 0) return false;
    if (step > c->newest) c->newest = step;
    if (shard_core_step_inputs(c, step) == NULL) shard_core_open_step(c, rank, step, inputs);
    for (uint32_t i = 0; i < p->n; i++) {
        shard_core_chunk *k = &c->chunk[c->order[p->first + i]];
        if (!shard_core_is_of_step(c, k)) continue;
        set_clocks(c, c->order[p->first + i], step + 1);
        k->round   = step;
        k->by_node = inputs->is_node_sum;
        k->got     = k->by_node ? c->live_nodes : c->live;
        k->first   = rank;
        k->eager   = false;
        k->turn    = (int32_t)c->world_size;
    }
    p->left    = 0;
    p->capture = capture;
    shard_core_vote_is(c, partition, hash);
    return true;
}

bool shard_core_follow_update(shard_core *c, uint32_t chunk, uint64_t round)
{
    shard_core_chunk *k = &c->chunk[chunk];
    if (round != k->round) return false;
    k->round++;
    k->got = 0;
    set_clocks(c, chunk, k->round);
    return true;
}

bool shard_core_follow_apply(shard_core *c, uint32_t chunk, int32_t rank, uint64_t seq)
{
    if (rank < 0 || (uint32_t)rank >= c->world_size) return false;
    uint64_t *clock = shard_core_clock(c, chunk, rank);
    if (*clock != seq) return false;
    ++*clock;
    return true;
}

void shard_core_restage(shard_core *c)
{
    for (uint32_t k = 0; k < c->n_chunks; k++) {
        shard_core_chunk *chunk = &c->chunk[k];
        shard_core_partition *p = &c->partition[chunk->desc.partition];
        if (!shard_core_averages(c, chunk)) continue;
        if (p->has_hash && chunk->round == p->step && chunk->got > 0 && !chunk->eager) continue;
        set_clocks(c, k, chunk->round);
        chunk->got     = 0;
        chunk->capture = 0;
        chunk->turn    = shard_core_next_turn(c, -1);
    }
    for (uint32_t p = 0; p < c->n_partitions; p++) {
        if (c->partition[p].has_hash) continue;
        c->partition[p].left    = c->partition[p].decided;
        c->partition[p].capture = 0;
    }
    c->parked_bytes = 0;
}

/* ---- queries of a fill and of an epoch's end ------------------------------------------------- */
bool shard_core_has_vote(const shard_core *c, uint32_t partition)
{
    return c->partition[partition].has_hash;
}
bool shard_core_is_decided(const shard_core *c, uint32_t partition)
{
    return c->partition[partition].decided > 0;
}
const wire_decision *shard_core_decision(const shard_core *c, uint32_t partition)
{
    const shard_core_partition *p = &c->partition[partition];
    return p->has_decision ? &p->decision : NULL;
}
bool shard_core_is_summed(const shard_core *c, uint32_t chunk)
{
    const shard_core_chunk *k = &c->chunk[chunk];
    return shard_core_is_of_step(c, k) && !k->eager && k->got > 0 &&
           k->got == (k->by_node ? c->live_nodes : c->live);
}
int64_t shard_core_partition_applied(const shard_core *c, uint32_t partition)
{
    return c->partition[partition].applied;
}
uint64_t shard_core_partition_cut(const shard_core *c, uint32_t partition)
{
    return c->partition[partition].capture;
}
int32_t shard_core_step_rank(const shard_core *c, uint64_t step)
{
    return c->steps[step & 1].first;
}
const uint64_t *shard_core_clocks(const shard_core *c, uint32_t chunk)
{
    return shard_core_clock(c, chunk, 0);
}

/* Chunks that no decision closes: of rules that do not average, or all of them with commit=eager. */
bool shard_core_least_clock(const shard_core *c, uint64_t *clock)
{
    bool found = false;
    for (uint32_t k = 0; k < c->n_chunks; k++) {
        const shard_core_chunk *chunk = &c->chunk[k];
        if (!chunk->desc.trained || chunk->desc.is_table) continue;
        if (shard_core_averages(c, chunk) && !c->eager) continue;
        const uint64_t least =
            shard_core_averages(c, chunk) ? chunk->round : shard_core_slowest(c, k);
        if (!found || least < *clock) *clock = least;
        found = true;
    }
    return found;
}
