/* core_state.h - the inside of the core, shared by core*.c only. */
#ifndef SHARD_CORE_STATE_H
#define SHARD_CORE_STATE_H

#include "server/shard/core/core.h"

#include "common/base/why.h"

typedef struct shard_core_waiting { /* a waiting answer */
    struct shard_core_waiting *next, *prev;
    int32_t rank;
    uint32_t peer;
    uint64_t seq;
    bool initial, bare; /* bare: answers APPLIED, without values */
} shard_core_waiting;

typedef struct {
    shard_core_chunk_desc desc;
    uint64_t round;
    uint32_t got;  /* contributions to this round, folded or buffered */
    int32_t turn;  /* rank to fold next; world_size after the last */
    int32_t first; /* rank of the first contribution of this round */
    bool eager;    /* closes by itself; valid while got > 0 */
    bool by_node;  /* adds sums of nodes; likewise */
    bool has_values;
    double rate, loss_scale; /* of this round's first contribution, eager only */
    uint64_t capture;        /* not 0: a snapshot is due when this round closes */
    shard_core_waiting *held;
} shard_core_chunk;

typedef struct {
    uint32_t first, n; /* its chunks: order[first .. first + n) */
    uint32_t decided;  /* chunks that a decision closes */
    uint32_t left;     /* decided chunks not yet summed */
    uint64_t step;     /* open step */
    int64_t applied;
    bool has_hash; /* prepared, with a known record */
    uint64_t hash;
    bool has_decision; /* of step - 1 */
    wire_decision decision;
    uint64_t capture;
} shard_core_partition;

typedef struct { /* the inputs of all ranks to one step */
    bool open;
    uint64_t step;
    int32_t first; /* rank of the stored inputs */
    wire_inputs inputs;
    double *rate;          /* [n_groups] */
    double *weight;        /* [world_size] NaN: not given yet */
    wire_scalars *scalars; /* [world_size]; NULL: none given yet */
} shard_core_inputs_of_step;

struct shard_core {
    uint32_t n_chunks, n_partitions, n_groups, world_size, live;
    shard_core_chunk *chunk;
    shard_core_partition *partition;
    shard_core_group *group;
    uint32_t *order;       /* chunks by partition */
    uint64_t *clock;       /* [n_chunks][world_size] */
    uint64_t *incarnation; /* [world_size], 0 = absent */
    double *newest_weight; /* [world_size] of its newest push that counts alone; 0: none */
    int32_t *node;         /* [world_size] */
    uint32_t *place;       /* [world_size] of a live rank among those of its node */
    uint32_t *mates;       /* [world_size] live ranks of its node, itself included */
    uint32_t live_nodes;
    bool sums_nodes;   /* by node, and that is another fold than by rank */
    int32_t *turns;    /* [live] ranks in the order of their turns */
    uint32_t *turn_of; /* [world_size] index of a live rank in turns */
    uint64_t term, epoch, newest, first_step;
    uint64_t epochs; /* number of views installed */
    int64_t applied;
    shard_core_inputs_of_step steps[2]; /* by the lowest bit of the step; at most two are open */
    sum_order sums;
    bool eager;
    uint64_t park_bytes_max, parked_bytes;
    shard_core_waiting *spare;
    pen_error why;
    uint32_t n_actions, actions_max;
    shard_core_action *action;
};

static inline uint64_t *shard_core_clock(const shard_core *c, uint32_t chunk, int32_t rank)
{
    return &c->clock[(size_t)chunk * c->world_size + (size_t)rank];
}

static inline const shard_core_group *shard_core_group_of(const shard_core *c,
                                                          const shard_core_chunk *k)
{
    static const shard_core_group served = {.ops = &sync_async};
    return k->desc.is_served ? &served : &c->group[k->desc.group];
}

/* A decision, or a round of all ranks, closes it. */
static inline bool shard_core_averages(const shard_core *c, const shard_core_chunk *k)
{
    return k->desc.trained && shard_core_group_of(c, k)->ops->averages;
}

/* The same, without parts of tables: their rounds close by themselves and do not count steps. */
static inline bool shard_core_is_of_step(const shard_core *c, const shard_core_chunk *k)
{
    return shard_core_averages(c, k) && !k->desc.is_table;
}

/* core_members.c */
bool shard_core_brings(const shard_core *c, uint32_t chunk, int32_t rank); /* its node's sum */
int32_t shard_core_first_live(const shard_core *c);                        /* world_size: none */
/* The live rank whose turn is next; world_size: none.  shard_core_next_turn() of -1 is the first. */
int32_t shard_core_next_turn(const shard_core *c, int32_t rank);
/* Sums of nodes are added, and the turn of `rank` is the last of its node. */
bool shard_core_ends_node(const shard_core *c, int32_t rank);
uint64_t shard_core_slowest(const shard_core *c, uint32_t chunk);

/* core_answer.c.  Appends an action; cannot fail, its room was reserved for the worst event. */
shard_core_action *shard_core_send(shard_core *c, shard_core_verb verb, uint32_t index);
shard_core_actions shard_core_sent(const shard_core *c);
shard_core_actions shard_core_refuse(shard_core *c, uint32_t chunk, int32_t rank, uint32_t peer,
                                     uint64_t seq, pen_status status, const char *reason);
sync_view shard_core_view(const shard_core *c, uint32_t chunk, int32_t rank, uint64_t seq,
                          uint64_t slowest);

/* Answers now if the rule allows it, else queues the answer (*held).  False: neither is possible. */
bool shard_core_answer(shard_core *c, uint32_t chunk, const shard_core_waiting *h, bool *held);
void shard_core_serve(shard_core *c, uint32_t chunk, const shard_core_waiting *h, uint64_t slowest);

/* Queues an answer; false: too many, or no memory. */
bool shard_core_hold(shard_core *c, uint32_t chunk, const shard_core_waiting *answer);
void shard_core_serve_waiting(shard_core *c, uint32_t chunk);
void shard_core_forget_waiting_of(shard_core *c, uint32_t chunk, int32_t rank);

/* core_step.c */
void shard_core_open_step(shard_core *c, int32_t rank, uint64_t step, const wire_inputs *inputs);
/* A decided chunk was summed; emits PREPARED with the last one. */
void shard_core_partition_summed(shard_core *c, uint32_t chunk);

#endif
