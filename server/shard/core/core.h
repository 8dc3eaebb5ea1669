/* core.h - how a shard reacts to each push, pull and decision: a pure state machine.
 *
 * DESIGN.  The core knows ranks, chunks and counters.  It holds no array, sends nothing and reads no clock: an
 * event goes in, a short list of actions comes out, in order.  server/shard/shard.h carries them out on arrays.
 *
 *   clock      per chunk and rank: number of the rank's next push.  It is the whole window
 *              against repeats: at most one push of a chunk and rank is in flight.  It starts at first_step.
 *   round      per chunk whose rule averages: the step that is open; all lower ones are applied.
 *   turn       with deterministic sums: the rank whose contribution is next.  Ranks behind the turn
 *              with a clock above the round have a buffered contribution; so no list of them is needed.
 *              Turns follow the ranks; by node, they follow the nodes in the order of their lowest
 *              ranks, and NODE after the last contribution of a node says that its sum is complete.
 *   node sums  a round whose first push is a node's sum takes one contribution per node; the
 *              clocks of its other ranks move with the first one.
 *   partition  steps that are decided (bsp, PUSH without WANT_VALUES) close all chunks of a
 *              partition together: PREPARED when all are summed, COMMIT with the first valid
 *              decision.  The record of a step outlives its commit until the next one is made.
 *   eager      bsp with commit=eager or WANT_VALUES closes each chunk by itself when it is summed.  Parts of tables
 *              always close this way.
 *
 *   following  a copy of a shard has a core too.  It receives its primary's decisions (follow) and so has the same
 *              counters.  It does not know the contributions to an open sum: when it becomes the primary, ranks push
 *              them again.
 *
 * Input may be absurd: the answer is then REFUSE with a sentence, and the state is unchanged.
 * Thread: one.  Memory: shard_core_create() allocates all of it, except a small record per waiting answer.
 */
#ifndef SHARD_CORE_H
#define SHARD_CORE_H

#include "proto/settings.h"
#include "proto/wire/wire.h"
#include "server/shard/core/sync/sync.h"

typedef struct shard_core shard_core;

enum { CORE_EVERYONE = UINT32_MAX, CORE_RANKS_MAX = 4096, CORE_WAITING_PER_RANK_MAX = 8 };

/* ---- configuration --------------------------------------------------------------------------- */
typedef struct {
    const sync_ops *ops;
    sync_hyper hyper;
    bool whole_tensor; /* the update rule needs all chunks of a tensor at once */
} shard_core_group;

typedef struct {
    const char *tensor; /* name, for sentences; BORROWED as long as the core lives */
    uint32_t partition; /* index into the partitions of this core */
    uint32_t group;
    uint64_t bytes;     /* of one contribution as sent */
    bool trained;       /* false: frozen, never pushed */
    uint32_t number;    /* in the whole model; selects the rank of a node that sends its sum */
    uint64_t sum_bytes; /* of such a sum */
    bool is_table;      /* part of a table: trained, and never closed by a decision */
    bool is_served; /* by a handler: its pushes count on arrival, whatever the rule of its group */
} shard_core_chunk_desc;

typedef struct {
    uint32_t n_chunks, n_partitions, n_groups;
    const shard_core_chunk_desc *chunk; /* [n_chunks], numbered within this core */
    const shard_core_group *group;      /* [n_groups] */
    uint64_t first_step;
    int64_t applied;
    sum_order order;         /* SUMS_LOOSE: in the order of arrival */
    bool eager;              /* commit=eager: no step is decided over the whole model */
    uint64_t park_bytes_max; /* of all buffered contributions */
} shard_core_config;

/* Copies what it needs.  No member is known before shard_core_epoch(). */
pen_status shard_core_create(const shard_core_config *config, uint32_t world_size, shard_core **c,
                             pen_error *why);
void shard_core_destroy(shard_core *c); /* NULL is fine */

/* ---- actions --------------------------------------------------------------------------------- */
/* clang-format off */
typedef enum {
    CORE_FOLD,     /* add `rank`'s contribution to the chunk's sum: from the message, or buffered */
    CORE_BUFFER,   /* buffer this contribution until its turn */
    CORE_NODE,     /* the sum of `rank`'s node is complete: add it to those of the nodes before */
    CORE_SUMMED,   /* the chunk's sum is complete (decided steps): take its norm */
    CORE_PREPARED, /* index = partition: send its record and sums to everyone, or only to `peer` */
    CORE_COMMIT,   /* index = partition: apply the decision to all its decided chunks */
    CORE_UPDATE,   /* update the chunk: with its sum (rank -1), or push seq of `rank` */
    CORE_DROP,     /* drop the chunk's sum and its buffered contributions */
    CORE_SERVE,    /* send the chunk's values to peer, as the answer to seq */
    CORE_APPLIED,  /* notify peer that push seq was applied (it wants no values) */
    CORE_RECEIPT,  /* notify peer that push seq arrived */
    CORE_WAITING,  /* nothing to do: an answer waits for slower ranks */
    CORE_REFUSE    /* tell peer: status, reason */
} shard_core_verb;
/* clang-format on */

typedef struct {
    shard_core_verb verb;
    uint32_t index; /* chunk, or partition */
    int32_t rank;
    uint32_t peer, staleness;
    uint64_t seq;
    uint64_t capture;  /* UPDATE, COMMIT: not 0: the snapshot of this step follows */
    bool initial;      /* SERVE: answers PULL|INITIAL */
    bool repeated;     /* of an answer: the push was a repeat */
    pen_status status; /* REFUSE */
    const char *reason;
} shard_core_action;

typedef struct {
    uint32_t n;
    const shard_core_action *at; /* BORROWED until the next event */
} shard_core_actions;

/* ---- events ---------------------------------------------------------------------------------- */
/* Checks a sender.  OK; AGAIN: a member, in an old epoch or one whose view has not arrived; NOT_A_MEMBER: an old or
 * unknown incarnation or rank. */
pen_status shard_core_admit(const shard_core *c, int32_t rank, uint64_t incarnation, uint64_t term,
                            uint64_t epoch, pen_error *why);

/* Sets the host of each rank, before shard_core_epoch(): a push that is_node_sum is the only one of its node for
 * that chunk and comes from rank (number mod ranks of the node) of the node, in rank order.  Default: each rank is
 * its own node. */
void shard_core_nodes(shard_core *c, const int32_t *node, uint32_t n);

/* A new view: members by rank with their incarnations (0 = absent).  Ignored unless newer.  Sets *changed if
 * members changed; then call shard_core_join() for each new one, and shard_core_abandon(). */
void shard_core_epoch(shard_core *c, uint64_t term, uint64_t epoch, const uint64_t *incarnation,
                      uint32_t n, bool *changed);

/* Drops staged data of open steps; workers push it again.  Call once, then shard_core_restart() for every chunk. */
void shard_core_abandon(shard_core *c);
shard_core_actions shard_core_restart(shard_core *c, uint32_t chunk);

/* Sets the counters of `rank`, which joins: it starts beside the slowest of those with beside[rank], or at the open
 * round if there are none. */
void shard_core_join(shard_core *c, int32_t rank, const bool *beside);

/* This shard becomes primary, or ceases to be: drops contributions to unprepared sums, which are known here only. */
void shard_core_restage(shard_core *c);

/* The inputs of `rank` to the decision of `step`; once per message with decided pushes, before them. MISMATCH names
 * the difference from the first rank. */
pen_status shard_core_inputs(shard_core *c, int32_t rank, uint64_t step, const wire_inputs *inputs,
                             pen_error *why);

typedef struct {
    int32_t rank;
    uint32_t peer, chunk;
    uint64_t seq;
    bool want_values, snapshot; /* snapshot: the first rank requests one after this step */
    const wire_inputs *inputs;
} shard_core_push_event;
shard_core_actions shard_core_push(shard_core *c, const shard_core_push_event *e);

typedef struct {
    int32_t rank;
    uint32_t peer, chunk;
    uint64_t seq;
    bool initial; /* wants first values */
    bool decided; /* came with an accepted decision: wants the values after step seq */
} shard_core_pull_event;
shard_core_actions shard_core_pull(shard_core *c, const shard_core_pull_event *e);

/* The first values arrived: serves the waiting pulls.  Idempotent. */
shard_core_actions shard_core_first_values(shard_core *c, uint32_t chunk);

/* A decision for one partition, made from the record with `hash`.  COMMIT, nothing (already applied), or REFUSE. */
shard_core_actions shard_core_decide(shard_core *c, uint32_t partition, uint64_t step,
                                     uint64_t hash, const wire_decision *decision, uint32_t peer);

/* Finds the missing ranks of this chunk: PREPARED if the answer exists after all, else no action and *n ranks in
 * missing[], which has room for world_size. */
shard_core_actions shard_core_inquire(shard_core *c, const shard_core_pull_event *e,
                                      int32_t *missing, uint32_t *n);

/* ---- following a primary --------------------------------------------------------------------- */
/* Resets a copy before it is filled. */
void shard_core_empty(shard_core *c);

/* A partition as the primary has it: its open step, and the decision of the one before. */
void shard_core_follow_begin(shard_core *c, uint32_t partition, uint64_t step, int64_t applied,
                             const wire_decision *decision); /* NULL: none yet */

/* A chunk as the primary has it; clock[n] by rank. */
void shard_core_follow_state(shard_core *c, uint32_t chunk, bool has_values, uint64_t round,
                             const uint64_t *clock, uint32_t n);

/* All sums of the partition's open step are complete, and its record has this hash, as if every rank had pushed.
 * The inputs are those of `rank`.  False: not the open step. */
bool shard_core_follow_prepared(shard_core *c, uint32_t partition, uint64_t step, int32_t rank,
                                const wire_inputs *inputs, uint64_t hash, uint64_t capture);

/* The round was closed by itself; false: not the open one. */
bool shard_core_follow_update(shard_core *c, uint32_t chunk, uint64_t round);

/* Push `seq` of `rank` was applied by itself; false: not the next one. */
bool shard_core_follow_apply(shard_core *c, uint32_t chunk, int32_t rank, uint64_t seq);

/* This copy becomes the primary.  Drops waiting answers; their ranks ask again. */
void shard_core_forget_waiting(shard_core *c);

/* Number of updates in the values of a partition that were replaced; after a restore, of all. */
void shard_core_applied_is(shard_core *c, uint32_t partition, int64_t applied);
void shard_core_restored(shard_core *c, int64_t applied);

/* Drops waiting answers to it; it asks again. */
void shard_core_peer_down(shard_core *c, uint32_t peer);

/* ---- queries --------------------------------------------------------------------------------- */
/* Call after PREPARED was sent to everyone. */
void shard_core_vote_is(shard_core *c, uint32_t partition, uint64_t hash);

const wire_inputs *shard_core_step_inputs(const shard_core *c, uint64_t step); /* NULL: not open */
/* The weight of a push that is an update of its own: relative to the mean of all live ranks' newest weights, so that
 * equal weights are 1, whatever they count (ranks, samples, tokens). */
double shard_core_relative_weight(shard_core *c, int32_t rank, double weight);
double shard_core_weight_sum(const shard_core *c, uint64_t step); /* added in the order of turns */
/* The program's scalars, likewise; *sum is zero before. */
void shard_core_scalars(const shard_core *c, uint64_t step, wire_scalars *sum);
bool shard_core_is_prepared(const shard_core *c, uint32_t partition,
                            uint64_t step); /* or passed it */
uint64_t shard_core_partition_step(const shard_core *c, uint32_t partition);
bool shard_core_has_vote(const shard_core *c, uint32_t partition);   /* of its open step */
bool shard_core_is_decided(const shard_core *c, uint32_t partition); /* it has such chunks */
const wire_decision *shard_core_decision(const shard_core *c, uint32_t partition); /* the newest;
                                                                                      * NULL */
bool shard_core_is_summed(const shard_core *c, uint32_t chunk); /* of the open, decided step */
int64_t shard_core_partition_applied(const shard_core *c, uint32_t partition);
uint64_t shard_core_partition_cut(const shard_core *c, uint32_t partition);
int32_t shard_core_step_rank(const shard_core *c, uint64_t step);       /* whose inputs they are */
const uint64_t *shard_core_clocks(const shard_core *c, uint32_t chunk); /* [world_size] */
bool shard_core_has_values(const shard_core *c, uint32_t chunk);
uint64_t shard_core_round(const shard_core *c, uint32_t chunk);
bool shard_core_is_round(const shard_core *c, uint32_t chunk); /* its updates need all ranks */
/* The same, the open one is `round`, and nothing of it has come. */
bool shard_core_rests(const shard_core *c, uint32_t chunk, uint64_t round);
/* Least number of a next push, over undecided chunks and live ranks; false: no such chunk. */
bool shard_core_least_clock(const shard_core *c, uint64_t *clock);
int64_t shard_core_applied(const shard_core *c); /* decided steps applied */
uint64_t shard_core_parked_bytes(const shard_core *c);
bool shard_core_is_first(const shard_core *c,
                         int32_t rank); /* the first live rank; it requests snapshots */

/* The push that `rank` owes the others: the lowest step, then the lowest chunk, that another rank has pushed and it has
 * not.  False: no rank waits for it. */
bool shard_core_owes(const shard_core *c, int32_t rank, uint64_t *step, uint32_t *chunk);

#endif
