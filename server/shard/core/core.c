/* core.c - the core: create, reset, queries. */
#include "server/shard/core/core_state.h"

#include <stdlib.h>
#include <string.h>

/* ---- life ------------------------------------------------------------------------------------ */
static bool allocate(shard_core *c)
{
    /* The worst event folds every rank's contribution, each on its own node, then answers everything buffered. */
    c->actions_max   = c->world_size * (CORE_WAITING_PER_RANK_MAX + 3) + 8;
    c->action        = calloc(c->actions_max, sizeof *c->action);
    c->chunk         = calloc(c->n_chunks + 1, sizeof *c->chunk);
    c->partition     = calloc(c->n_partitions + 1, sizeof *c->partition);
    c->group         = calloc(c->n_groups + 1, sizeof *c->group);
    c->order         = calloc(c->n_chunks + 1, sizeof *c->order);
    c->clock         = calloc((size_t)c->n_chunks * c->world_size + 1, sizeof *c->clock);
    c->incarnation   = calloc(c->world_size, sizeof *c->incarnation);
    c->newest_weight = calloc(c->world_size, sizeof *c->newest_weight);
    c->node          = calloc(c->world_size, sizeof *c->node);
    c->place         = calloc(c->world_size, sizeof *c->place);
    c->mates         = calloc(c->world_size, sizeof *c->mates);
    c->turns         = calloc(c->world_size, sizeof *c->turns);
    c->turn_of       = calloc(c->world_size, sizeof *c->turn_of);
    for (int i = 0; i < 2; i++) {
        c->steps[i].rate   = calloc(c->n_groups + 1, sizeof(double));
        c->steps[i].weight = calloc(c->world_size, sizeof(double));
        if (c->steps[i].rate == NULL || c->steps[i].weight == NULL) return false;
    }
    return c->action != NULL && c->chunk != NULL && c->partition != NULL && c->group != NULL &&
           c->order != NULL && c->clock != NULL && c->incarnation != NULL &&
           c->newest_weight != NULL && c->node != NULL && c->place != NULL && c->mates != NULL &&
           c->turns != NULL && c->turn_of != NULL;
}

static pen_status check_groups(const shard_core_config *config, pen_error *why)
{
    for (uint32_t k = 0; k < config->n_chunks; k++) {
        const shard_core_chunk_desc *chunk = &config->chunk[k];
        if (chunk->group >= config->n_groups || chunk->partition >= config->n_partitions)
            return why_set(why, PEN_INVALID_ARGUMENT,
                           "'%s' belongs to an unknown parameter group or partition",
                           chunk->tensor);
        const shard_core_group *group = &config->group[chunk->group];
        if (!chunk->trained || chunk->is_table || !group->whole_tensor) continue;
        if (config->eager)
            return why_set(why, PEN_UNSUPPORTED,
                           "'%s': its update rule needs the norm of the whole tensor, which "
                           "commit=eager never has at one "
                           "time; use commit=decide",
                           chunk->tensor);
        if (!group->ops->averages)
            return why_set(why, PEN_UNSUPPORTED,
                           "'%s': its update rule needs the norm of the whole tensor, which "
                           "sync=%s never has at one "
                           "time; use sync=bsp",
                           chunk->tensor, group->ops->name);
    }
    return PEN_OK;
}

static void fill(shard_core *c, const shard_core_config *config)
{
    memcpy(c->group, config->group, config->n_groups * sizeof *c->group);
    for (uint32_t p = 0; p < c->n_partitions; p++) {
        c->partition[p].step    = config->first_step;
        c->partition[p].applied = config->applied;
    }
    for (uint32_t k = 0; k < c->n_chunks; k++) {
        c->chunk[k].desc  = config->chunk[k];
        c->chunk[k].round = config->first_step;
    }
    for (size_t i = 0; i < (size_t)c->n_chunks * c->world_size; i++)
        c->clock[i] = config->first_step;
    for (uint32_t r = 0; r < c->world_size; r++) c->node[r] = (int32_t)r;
}

pen_status shard_core_create(const shard_core_config *config, uint32_t world_size, shard_core **out,
                             pen_error *why)
{
    if (world_size == 0 || world_size > CORE_RANKS_MAX)
        return why_set(why, PEN_INVALID_ARGUMENT, "a job cannot have %u workers; expected 1 to %d",
                       world_size, CORE_RANKS_MAX);
    const pen_status status = check_groups(config, why);
    if (status != PEN_OK) return status;

    shard_core *c = calloc(1, sizeof *c);
    if (c == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a shard's counters");
    c->n_chunks       = config->n_chunks;
    c->n_partitions   = config->n_partitions;
    c->n_groups       = config->n_groups;
    c->world_size     = world_size;
    c->first_step     = config->first_step;
    c->newest         = config->first_step;
    c->applied        = config->applied;
    c->sums           = config->order;
    c->eager          = config->eager;
    c->park_bytes_max = config->park_bytes_max;
    if (!allocate(c)) {
        shard_core_destroy(c);
        return why_set(why, PEN_NO_MEMORY, "no memory for the counters of %u chunks and %u workers",
                       config->n_chunks, world_size);
    }
    fill(c, config);
    /* Chunks by partition, by counting. */
    for (uint32_t k = 0; k < c->n_chunks; k++) c->partition[c->chunk[k].desc.partition].n++;
    uint32_t at = 0;
    for (uint32_t p = 0; p < c->n_partitions; p++) {
        c->partition[p].first = at;
        at += c->partition[p].n;
        c->partition[p].n = 0;
    }
    for (uint32_t k = 0; k < c->n_chunks; k++) {
        shard_core_partition *p     = &c->partition[c->chunk[k].desc.partition];
        c->order[p->first + p->n++] = k;
        p->decided += shard_core_is_of_step(c, &c->chunk[k]);
    }
    for (uint32_t p = 0; p < c->n_partitions; p++) c->partition[p].left = c->partition[p].decided;
    *out = c;
    return PEN_OK;
}

void shard_core_applied_is(shard_core *c, uint32_t partition, int64_t applied)
{
    c->applied = c->partition[partition].applied = applied;
}

void shard_core_restored(shard_core *c, int64_t applied)
{
    c->applied = applied;
    for (uint32_t p = 0; p < c->n_partitions; p++) shard_core_applied_is(c, p, applied);
}

static void free_waiting(shard_core_waiting *held)
{
    while (held != NULL) {
        shard_core_waiting *next = held->next;
        free(held);
        held = next;
    }
}

void shard_core_destroy(shard_core *c)
{
    if (c == NULL) return;
    for (uint32_t k = 0; c->chunk != NULL && k < c->n_chunks; k++) free_waiting(c->chunk[k].held);
    free_waiting(c->spare);
    for (int i = 0; i < 2; i++) {
        free(c->steps[i].rate);
        free(c->steps[i].weight);
        free(c->steps[i].scalars);
    }
    free(c->action);
    free(c->chunk);
    free(c->partition);
    free(c->group);
    free(c->order);
    free(c->clock);
    free(c->incarnation);
    free(c->newest_weight);
    free(c->node);
    free(c->place);
    free(c->mates);
    free(c->turns);
    free(c->turn_of);
    free(c);
}

/* ---- reset ----------------------------------------------------------------------------------- */
void shard_core_join(shard_core *c, int32_t rank, const bool *beside)
{
    for (uint32_t k = 0; k < c->n_chunks; k++) {
        uint64_t slowest = UINT64_MAX;
        for (uint32_t r = 0; r < c->world_size; r++) {
            const uint64_t clock = *shard_core_clock(c, k, (int32_t)r);
            if (beside[r] && clock < slowest) slowest = clock;
        }
        *shard_core_clock(c, k, rank) = slowest != UINT64_MAX ? slowest : c->chunk[k].round;
    }
}

void shard_core_abandon(shard_core *c)
{
    for (uint32_t p = 0; p < c->n_partitions; p++) {
        c->partition[p].left     = c->partition[p].decided;
        c->partition[p].has_hash = false;
        c->partition[p].capture  = 0;
    }
    c->steps[0].open = c->steps[1].open = false;
    c->parked_bytes                     = 0; /* shard_core_restart() drops everything buffered */
}

shard_core_actions shard_core_restart(shard_core *c, uint32_t chunk)
{
    c->n_actions        = 0;
    shard_core_chunk *k = &c->chunk[chunk];
    const bool averages = shard_core_group_of(c, k)->ops->averages;
    if (averages) {
        if (k->got > 0) shard_core_send(c, CORE_DROP, chunk);
        for (uint32_t r = 0; r < c->world_size; r++)
            *shard_core_clock(c, chunk, (int32_t)r) = k->round;
        k->got     = 0;
        k->capture = 0;
    }
    k->turn = shard_core_next_turn(c, -1);
    for (uint32_t r = 0; r < c->world_size; r++) /* a dropped push gets no answer */
        if (averages || c->incarnation[r] == 0) shard_core_forget_waiting_of(c, chunk, (int32_t)r);
    shard_core_serve_waiting(c, chunk);
    return shard_core_sent(c);
}

/* ---- queries --------------------------------------------------------------------------------- */
bool shard_core_has_values(const shard_core *c, uint32_t chunk)
{
    return c->chunk[chunk].has_values;
}
uint64_t shard_core_round(const shard_core *c, uint32_t chunk)
{
    return c->chunk[chunk].round;
}
bool shard_core_is_round(const shard_core *c, uint32_t chunk)
{
    return shard_core_averages(c, &c->chunk[chunk]);
}
bool shard_core_rests(const shard_core *c, uint32_t chunk, uint64_t round)
{
    const shard_core_chunk *k = &c->chunk[chunk];
    return shard_core_averages(c, k) && k->round == round && k->got == 0;
}
uint64_t shard_core_partition_step(const shard_core *c, uint32_t partition)
{
    return c->partition[partition].step;
}
int64_t shard_core_applied(const shard_core *c)
{
    return c->applied;
}
uint64_t shard_core_parked_bytes(const shard_core *c)
{
    return c->parked_bytes;
}

static bool somebody_is_ahead(const shard_core *c, uint32_t chunk, int32_t rank)
{
    const uint64_t clock = *shard_core_clock(c, chunk, rank);
    for (uint32_t r = 0; r < c->world_size; r++)
        if (c->incarnation[r] != 0 && *shard_core_clock(c, chunk, (int32_t)r) > clock) return true;
    return false;
}

bool shard_core_owes(const shard_core *c, int32_t rank, uint64_t *step, uint32_t *chunk)
{
    if (rank < 0 || (uint32_t)rank >= c->world_size) return false;
    bool found = false;
    for (uint32_t k = 0; k < c->n_chunks; k++) {
        const uint64_t clock = *shard_core_clock(c, k, rank);
        const bool is_free   = c->chunk[k].desc.is_table && !shard_core_averages(c, &c->chunk[k]);
        if (!c->chunk[k].desc.trained || is_free || (found && clock >= *step) ||
            !somebody_is_ahead(c, k, rank))
            continue;
        *step  = clock;
        *chunk = k;
        found  = true;
    }
    return found;
}
