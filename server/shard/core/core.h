/* core.h - what a shard does about each push, pull and decision: a pure state machine.
 *
 * DESIGN.  The core knows ranks, chunks and counters.  It holds no array, sends nothing, asks no
 * clock: an event goes in, a short list of actions comes out, in the order in which they are to be
 * carried out.  server/shard/shard.h carries them out on arrays.
 *
 *   clock      per chunk and rank: the number of the rank's next push.  It is the whole window
 *              against repeats, for at most one push of a chunk and rank is in flight.  It starts
 *              at first_step.
 *   round      per chunk whose rule averages: the step that is open; all lower ones are applied.
 *   turn       with deterministic sums: the rank whose contribution is next.  Ranks behind the turn
 *              with a clock above the round have a contribution that is kept; so no list of kept
 *              ones is needed.
 *   node sums  a round whose first push is the sum of a node takes one contribution of each node; the
 *              clocks of its other ranks move with the first one.
 *   partition  steps that are decided (bsp, PUSH without WANT_VALUES) close all chunks of a
 *              partition together: PREPARED when all are summed, COMMIT with the first valid
 *              decision.  The record of a step outlives its commit until the next one is made.
 *   eager      bsp with commit=eager or WANT_VALUES closes each chunk by itself when it is summed.
 *
 *   following  a copy of a shard has a core too.  It is told what its primary's core decided (follow)
 *              and so has the same counters; what ranks have contributed to an open sum it does not
 *              know, and needs not: when it becomes the primary they push that again.
 *
 * Not promised: that what arrives makes sense.  It may be absurd; the answer is then REFUSE with a
 * sentence, and the state is as before.
 * Thread: one.  Memory: all of it is taken by server_core_create(), except a small record for each
 * answer that is held.
 */
#ifndef SERVER_CORE_H
#define SERVER_CORE_H

#include "proto/wire.h"
#include "server/shard/core/sync/sync.h"

typedef struct server_core server_core;

enum { CORE_EVERYONE = UINT32_MAX, CORE_RANKS_MAX = 4096, CORE_HELD_PER_RANK_MAX = 8 };

/* ---- what it is made from -------------------------------------------------------------------- */
typedef struct {
    const sync_ops *ops;
    sync_hyper hyper;
    bool whole_tensor; /* the update rule needs all chunks of a tensor at once */
} server_core_group;

typedef struct {
    const char *tensor; /* name, for sentences; BORROWED as long as the core lives          */
    uint32_t partition; /* index into the partitions of this core                           */
    uint32_t group;
    uint64_t bytes;  /* of one contribution as it travels                                */
    bool trained;    /* false: frozen, never pushed                                      */
    uint32_t number; /* in the whole model: it says which rank of a node brings its sum  */
} server_core_chunk_desc;

typedef struct {
    uint32_t n_chunks, n_partitions, n_groups;
    const server_core_chunk_desc *chunk; /* [n_chunks], numbered within this core */
    const server_core_group *group;      /* [n_groups] */
    uint64_t first_step;
    int64_t applied;
    bool deterministic;      /* sums in rank order; else in the order of arrival */
    bool eager;              /* commit=eager: no step is decided over the whole model */
    uint64_t park_bytes_max; /* kept contributions together                      */
} server_core_config;

/* Copies what it needs.  No member is known before server_core_epoch(). */
pen_status server_core_create(const server_core_config *config, uint32_t world_size,
                              server_core **c, pen_error *why);
void server_core_destroy(server_core *c); /* NULL is fine */

/* ---- what it says ---------------------------------------------------------------------------- */
/* clang-format off */
typedef enum {
    CORE_FOLD,     /* add `rank`'s contribution to the chunk's sum: from the message, or kept   */
    CORE_KEEP,     /* hold this contribution until its turn                                     */
    CORE_SUMMED,   /* the chunk's sum is whole (decided steps): take its norm                   */
    CORE_PREPARED, /* index = partition: tell everyone, or only `peer`, its record and sums     */
    CORE_COMMIT,   /* index = partition: carry the decision out on all its decided chunks       */
    CORE_UPDATE,   /* update the chunk: with its sum (rank -1), or with push seq of `rank`      */
    CORE_DROP,     /* forget the chunk's sum and all that is kept of it                         */
    CORE_SERVE,    /* send the chunk's values to peer, as the answer to seq                     */
    CORE_APPLIED,  /* tell peer that push seq was applied (it wants no values)                  */
    CORE_RECEIPT,  /* tell peer that push seq arrived                                           */
    CORE_HELD,     /* nothing to do: an answer waits for slower ranks                           */
    CORE_REFUSE    /* tell peer: status, reason                                                 */
} server_core_verb;
/* clang-format on */

typedef struct {
    server_core_verb verb;
    uint32_t index; /* chunk, or partition */
    int32_t rank;
    uint32_t peer, staleness;
    uint64_t seq;
    uint64_t cut;      /* UPDATE, COMMIT: not 0: what follows is the snapshot of this step */
    bool initial;      /* SERVE: answers PULL|INITIAL                                      */
    bool repeated;     /* of an answer: the push had been taken before                     */
    pen_status status; /* REFUSE                                                           */
    const char *reason;
} server_core_action;

typedef struct {
    uint32_t n;
    const server_core_action *at; /* BORROWED until the next event */
} server_core_actions;

/* ---- events ---------------------------------------------------------------------------------- */
/* Who may speak.  OK; AGAIN: of a member, in an epoch that is over or whose record has not come;
 * NOT_A_MEMBER: of an incarnation or a rank that is over or unknown. */
pen_status server_core_admit(const server_core *c, int32_t rank, uint64_t incarnation,
                             uint64_t term, uint64_t epoch, pen_error *why);

/* Which host each rank is on, before server_core_epoch(): a push that is_node_sum is the one of its
 * node for that chunk, and comes from rank (number mod ranks of the node) of the node, counted in
 * rank order.  Never called: each rank is a node of its own. */
void server_core_nodes(server_core *c, const int32_t *node, uint32_t n);

/* A new record: members by rank with their incarnations (0 = absent).  One that is not newer is
 * ignored.  When members changed, *changed is set; server_core_join() for each who came and
 * server_core_abandon() are to follow. */
void server_core_epoch(server_core *c, uint64_t term, uint64_t epoch, const uint64_t *incarnation,
                       uint32_t n, bool *changed);

/* What is staged for open steps is forgotten, and workers push it again: once for all, then
 * server_core_restart() for every chunk. */
void server_core_abandon(server_core *c);
server_core_actions server_core_restart(server_core *c, uint32_t chunk);

/* Counters of `rank`, which joins: it starts beside the slowest of those with beside[rank], where
 * there is none at the open round. */
void server_core_join(server_core *c, int32_t rank, const bool *beside);

/* This shard begins to serve, or ceases to: contributions to sums that are not prepared are
 * forgotten, for they are known here alone. */
void server_core_restage(server_core *c);

/* What the decision of `step` needs from `rank`; once per message with decided pushes, before them.
 * MISMATCH names what differs from the rank that came first. */
pen_status server_core_inputs(server_core *c, int32_t rank, uint64_t step,
                              const wire_inputs *inputs, pen_error *why);

typedef struct {
    int32_t rank;
    uint32_t peer, chunk;
    uint64_t seq;
    bool want_values, snapshot; /* snapshot: the first rank asks for one after this step */
    const wire_inputs *inputs;
} server_core_push_event;
server_core_actions server_core_push(server_core *c, const server_core_push_event *e);

typedef struct {
    int32_t rank;
    uint32_t peer, chunk;
    uint64_t seq;
    bool initial; /* wants first values   */
    bool decided; /* came with a decision that was taken: wants the values after step seq */
} server_core_pull_event;
server_core_actions server_core_pull(server_core *c, const server_core_pull_event *e);

/* They are there: serves who waits for them.  Again is fine. */
server_core_actions server_core_first_values(server_core *c, uint32_t chunk);

/* A decision for one partition, made from the record with `hash`.  COMMIT, or nothing (the same
 * decision was carried out before), or REFUSE. */
server_core_actions server_core_decide(server_core *c, uint32_t partition, uint64_t step,
                                       uint64_t hash, const wire_decision *decision, uint32_t peer);

/* Who is missing for this chunk: PREPARED when the answer is there after all, else no action and
 * *n ranks in missing[], which has room for world_size. */
server_core_actions server_core_inquire(server_core *c, const server_core_pull_event *e,
                                        int32_t *missing, uint32_t *n);

/* ---- following a primary --------------------------------------------------------------------- */
/* A copy that is to be filled: nothing is known, nothing is there. */
void server_core_empty(server_core *c);

/* A partition as the primary has it: its open step, and the decision of the one before. */
void server_core_follow_begin(server_core *c, uint32_t partition, uint64_t step, int64_t applied,
                              const wire_decision *decision); /* NULL: none yet */

/* A chunk as the primary has it; clock[n] by rank. */
void server_core_follow_state(server_core *c, uint32_t chunk, bool has_values, uint64_t round,
                              const uint64_t *clock, uint32_t n);

/* All sums of the partition's open step are there, and its record has this hash: as if every rank
 * had pushed.  `rank` is whose inputs they are.  False: it is not the open step. */
bool server_core_follow_prepared(server_core *c, uint32_t partition, uint64_t step, int32_t rank,
                                 const wire_inputs *inputs, uint64_t hash, uint64_t cut);

/* The round was closed by itself; false: it is not the open one. */
bool server_core_follow_update(server_core *c, uint32_t chunk, uint64_t round);

/* Push `seq` of `rank` was applied by itself; false: it is not the next one. */
bool server_core_follow_apply(server_core *c, uint32_t chunk, int32_t rank, uint64_t seq);

/* It serves from now on.  What it held for others to be served is theirs to ask for again. */
void server_core_forget_held(server_core *c);

/* After a restore: how many updates the values have had.  Before any push. */
void server_core_restored(server_core *c, int64_t applied);

/* Held answers to it are forgotten: it asks again. */
void server_core_peer_down(server_core *c, uint32_t peer);

/* ---- what it knows --------------------------------------------------------------------------- */
/* To be called when PREPARED to everyone was carried out. */
void server_core_record_is(server_core *c, uint32_t partition, uint64_t hash);

const wire_inputs *server_core_step_inputs(const server_core *c,
                                           uint64_t step);          /* NULL: not open */
double server_core_weight_sum(const server_core *c, uint64_t step); /* added in rank order */
/* The program's numbers, likewise; *sum is zero before. */
void server_core_scalars(const server_core *c, uint64_t step, wire_scalars *sum);
bool server_core_is_prepared(const server_core *c, uint32_t partition, uint64_t step); /* or over */
uint64_t server_core_partition_step(const server_core *c, uint32_t partition);
bool server_core_has_record(const server_core *c, uint32_t partition); /* of its open step */
bool server_core_is_decided(const server_core *c, uint32_t partition); /* it has such chunks */
const wire_decision *server_core_decision(const server_core *c, uint32_t partition); /* the newest;
                                                                                      * NULL */
bool server_core_is_summed(const server_core *c, uint32_t chunk); /* for the open, decided step */
int64_t server_core_partition_applied(const server_core *c, uint32_t partition);
uint64_t server_core_partition_cut(const server_core *c, uint32_t partition);
int32_t server_core_step_rank(const server_core *c, uint64_t step); /* whose inputs they are */
const uint64_t *server_core_clocks(const server_core *c, uint32_t chunk); /* [world_size] */
bool server_core_has_values(const server_core *c, uint32_t chunk);
uint64_t server_core_round(const server_core *c, uint32_t chunk);
/* Least number of a next push, over chunks that count for themselves and ranks that live; false:
 * there is no such chunk. */
bool server_core_least_clock(const server_core *c, uint64_t *clock);
int64_t server_core_applied(const server_core *c); /* decided steps that were applied */
uint64_t server_core_parked_bytes(const server_core *c);
bool server_core_is_live(const server_core *c, int32_t rank);
bool server_core_is_first(const server_core *c, int32_t rank); /* of those that live: it asks for
                                                                * snapshots */

/* The push that `rank` owes others: the lowest step, then the lowest chunk, that someone else has
 * pushed and it has not.  False: nobody waits for it. */
bool server_core_owes(const server_core *c, int32_t rank, uint64_t *step, uint32_t *chunk);

#endif
