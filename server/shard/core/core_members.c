/* core_members.c - members, their nodes, and the check of senders. */
#include "server/shard/core/core_state.h"

#include "common/base/mutation.h"

#include <inttypes.h>

static bool is_older(uint64_t term, uint64_t epoch, const shard_core *c)
{
    if (mutation(MUTATION_TERM_IGNORED)) return epoch < c->epoch;
    return term < c->term || (term == c->term && epoch < c->epoch);
}

static bool is_live(const shard_core *c, int32_t rank)
{
    return rank >= 0 && (uint32_t)rank < c->world_size && c->incarnation[rank] != 0;
}

int32_t shard_core_first_live(const shard_core *c)
{
    int32_t rank = 0;
    while ((uint32_t)rank < c->world_size && c->incarnation[rank] == 0) rank++;
    return rank;
}

int32_t shard_core_next_turn(const shard_core *c, int32_t rank)
{
    const uint32_t at = rank < 0 ? 0 : c->turn_of[rank] + 1;
    return at < c->live ? c->turns[at] : (int32_t)c->world_size;
}

bool shard_core_ends_node(const shard_core *c, int32_t rank)
{
    if (!c->sums_nodes) return false;
    const int32_t next = shard_core_next_turn(c, rank);
    return (uint32_t)next == c->world_size || c->node[next] != c->node[rank];
}

bool shard_core_is_first(const shard_core *c, int32_t rank)
{
    return is_live(c, rank) && shard_core_first_live(c) == rank;
}

pen_status shard_core_admit(const shard_core *c, int32_t rank, uint64_t incarnation, uint64_t term,
                            uint64_t epoch, pen_error *why)
{
    if (mutation(MUTATION_NO_FENCE) && is_live(c, rank)) return PEN_OK;
    if (is_older(term, epoch, c)) /* a remaining member will receive the new one */
        return why_set(why,
                       is_live(c, rank) && c->incarnation[rank] == incarnation ? PEN_AGAIN
                                                                               : PEN_NOT_A_MEMBER,
                       "epoch %" PRIu64 " is over", epoch);
    if ((term != c->term && !mutation(MUTATION_TERM_IGNORED)) || epoch != c->epoch)
        return why_set(why, PEN_AGAIN, "epoch %" PRIu64 " has not started here", epoch);
    if (!is_live(c, rank))
        return why_set(why, PEN_NOT_A_MEMBER, "rank %d is not a member of this job", rank);
    if (c->incarnation[rank] != incarnation && !mutation(MUTATION_NO_INCARNATION_CHECK))
        return why_set(why, PEN_NOT_A_MEMBER, "rank %d is another process now", rank);
    return PEN_OK;
}

/* Live ranks of the same node before `end`. */
static uint32_t mates_below(const shard_core *c, uint32_t rank, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < end; r++) n += c->incarnation[r] != 0 && c->node[r] == c->node[rank];
    return n;
}

static void take_turn(shard_core *c, uint32_t rank, uint32_t *n)
{
    c->turn_of[rank] = *n;
    c->turns[(*n)++] = (int32_t)rank;
}

/* By node: the mates of each node's lowest rank follow it. */
static void order_turns(shard_core *c)
{
    uint32_t n = 0;
    for (uint32_t first = 0; first < c->world_size; first++) {
        if (c->incarnation[first] == 0) continue;
        if (c->sums != SUMS_BY_NODE) {
            take_turn(c, first, &n);
            continue;
        }
        for (uint32_t r = first; c->place[first] == 0 && r < c->world_size; r++)
            if (c->incarnation[r] != 0 && c->node[r] == c->node[first]) take_turn(c, r, &n);
    }
    c->sums_nodes = c->sums == SUMS_BY_NODE && c->live_nodes > 1 && c->live_nodes < c->live;
}

static void count_nodes(shard_core *c)
{
    c->live_nodes = 0;
    for (uint32_t r = 0; r < c->world_size; r++) {
        if (c->incarnation[r] == 0) continue;
        c->place[r] = mates_below(c, r, r);
        c->mates[r] = mates_below(c, r, c->world_size);
        c->live_nodes += c->place[r] == 0;
    }
    order_turns(c);
}

void shard_core_nodes(shard_core *c, const int32_t *node, uint32_t n)
{
    for (uint32_t r = 0; r < c->world_size; r++) c->node[r] = r < n ? node[r] : (int32_t)r;
    count_nodes(c);
}

void shard_core_epoch(shard_core *c, uint64_t term, uint64_t epoch, const uint64_t *incarnation,
                      uint32_t n, bool *changed)
{
    *changed = false;
    if (is_older(term, epoch, c) || (term == c->term && epoch == c->epoch)) return;
    c->term  = term;
    c->epoch = epoch;
    c->epochs++;
    c->live = 0;
    for (uint32_t r = 0; r < c->world_size; r++) {
        const uint64_t now = r < n ? incarnation[r] : 0;
        *changed           = *changed || now != c->incarnation[r];
        c->incarnation[r]  = now;
        c->live += now != 0;
    }
    count_nodes(c);
}

bool shard_core_brings(const shard_core *c, uint32_t chunk, int32_t rank)
{
    return c->mates[rank] > 0 && c->chunk[chunk].desc.number % c->mates[rank] == c->place[rank];
}

uint64_t shard_core_slowest(const shard_core *c, uint32_t chunk)
{
    uint64_t slowest = UINT64_MAX;
    for (uint32_t r = 0; r < c->world_size; r++) {
        const uint64_t clock = *shard_core_clock(c, chunk, (int32_t)r);
        if (c->incarnation[r] != 0 && clock < slowest) slowest = clock;
    }
    return slowest;
}
