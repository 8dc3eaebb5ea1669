/* shard_scalars.c - program scalars sent with the pushes of one chunk (proto/scalars.h).
 *
 * For decided chunks the core sums them, and they are in the partition's vote.  Otherwise:
 *   a round of all ranks   the scalars of its ranks, once it is closed
 *   single pushes          the newest of each live rank
 * Stores one sum, of the newest round: a rank never asks for an older one, because it pushes only after the answer.
 */
#include "server/shard/shard_state.h"

#include "proto/scalars.h"

#include <stdlib.h>

bool shard_scalars_init(shard *s)
{
    s->scalars.chunk = SHARD_NONE;
    uint32_t number;
    if (!scalars_chunk(s->setup.plan, &number) || s->index_of[number] == SHARD_NONE) return true;
    s->scalars.chunk  = s->index_of[number];
    s->scalars.newest = calloc(s->setup.world_size, sizeof *s->scalars.newest);
    return s->scalars.newest != NULL;
}

void shard_scalars_fini(shard *s)
{
    free(s->scalars.newest);
}

bool shard_scalars_are_of(const shard *s, const shard_chunk *k)
{
    return s->scalars.chunk != SHARD_NONE && k == &s->chunk[s->scalars.chunk];
}

void shard_scalars_take(shard *s, const shard_chunk *k, int32_t rank, const wire_inputs *inputs)
{
    if (!shard_scalars_are_of(s, k) || (uint32_t)rank >= s->setup.world_size) return;
    if (k->decided || inputs->scalars.n > 0) s->scalars.newest[rank] = inputs->scalars;
}

void shard_scalars_close(shard *s, const shard_chunk *k)
{
    if (!shard_scalars_are_of(s, k)) return;
    s->scalars.sum = (wire_scalars){0};
    for (uint32_t r = 0; r < s->setup.world_size; r++)
        if (s->incarnation[r] != 0) scalars_add(&s->scalars.sum, &s->scalars.newest[r]);
}

void shard_scalars_follow(shard *s, const shard_chunk *k, const wire_scalars *sum)
{
    if (shard_scalars_are_of(s, k)) s->scalars.sum = *sum;
}

uint32_t shard_scalars_notify(const shard *s, const shard_line *line, uint32_t n, wire_vote *vote)
{
    if (s->scalars.sum.n == 0) return 0;
    for (uint32_t i = 0; i < n; i++) {
        if (line[i].chunk != s->scalars.chunk) continue;
        *vote =
            (wire_vote){.partition = s->setup.plan->chunk[s->chunk[line[i].chunk].number].partition,
                        .finite    = true,
                        .bad_rank  = -1,
                        .scalars   = s->scalars.sum};
        return 1;
    }
    return 0;
}
