/* shard_rig.h - shards without processes: a few ranks, a small model, and every message that was sent.
 *
 * The rig is the network and the workers' arithmetic: it splits gradients into the plan's chunks,
 * sends them, and derives decisions from PREPARED as a worker does.  Nothing is lost or reordered
 * unless the test does so.
 */
#ifndef TESTS_SHARD_RIG_H
#define TESTS_SHARD_RIG_H

#include "proto/decision.h"
#include "server/shard/shard.h"

enum { RIG_SHARDS_MAX = 4, RIG_RANKS_MAX = 8, RIG_TERM = 7, RIG_EPOCH = 3, RIG_SERVER = 900 };

typedef struct { /* what a shard sent, copied; payload is a reference */
    uint32_t shard, peer;
    wire_data d;
    void *lists; /* of d */
    buf *payload;
} rig_message;

typedef struct rig rig;
typedef struct {
    rig *rig;
    uint32_t shard;
} rig_outside;

struct rig {
    uint64_t epoch;              /* of messages of ranks */
    uint64_t to[RIG_SHARDS_MAX]; /* incarnation of the server that has each shard */
    void (*carry)(void *user);   /* after every flush, where shards have copies; NULL: none */
    bool (*link)(void *user, uint32_t server, const wire_data *d, buf *payload); /* takes LOGGED */
    void *user;

    wire_model model;
    plan *plan;
    uint32_t n_shards, world_size;
    uint32_t shard_of[PLAN_PARTITIONS_MAX];
    shard *shard[RIG_SHARDS_MAX];
    stat_set stats;
    wire_inputs inputs;            /* of every push; the test may change them */
    bool is_absent[RIG_RANKS_MAX]; /* from rig_step() */

    rig_message *sent;
    size_t n_sent, sent_capacity;
    pen_error report;
    int reports;
    shard_capture *capture[RIG_SHARDS_MAX];
    int cuts;
    rig_outside outside[RIG_SHARDS_MAX];
    shard_offload offload_of_copies;
};

typedef struct {
    uint32_t n_shards, world_size;
    uint64_t park_bytes_max; /* 0: 64 MiB */
    admission admission;
    shard_offload offload,
        offload_of_copies; /* for the rig's shards, and those that copies_rig.h adds */
    const int32_t *node;   /* [world_size] of each rank; NULL: all are on one */
    uint64_t first_step;
    int64_t applied;
    void (*outside)(void *user, shard_outside *out); /* additions of the test; NULL: none */
    void *user;
} rig_options;

/* Configured shards in epoch RIG_EPOCH, without values. */
rig *rig_create(const wire_model *model, const rig_options *o);
void rig_destroy(rig *r);

shard_outside rig_outside_of(rig_outside *o); /* for a shard that the test creates */
uint64_t rig_incarnation(int32_t rank);
uint32_t rig_peer(int32_t rank); /* the peer number of a rank's messages */
uint32_t rig_shard_of(const rig *r, uint32_t chunk);

/* INIT of every chunk by rank 0; value i of tensor t is rig_value(t, i). */
float rig_value(uint32_t tensor, uint64_t i);
void rig_init(rig *r);

/* Any function that gives element i of a rank's gradient of a tensor. */
typedef float (*rig_gradient)(int32_t rank, uint64_t step, uint32_t tensor, uint64_t i);
float rig_noise(int32_t rank, uint64_t step, uint32_t tensor, uint64_t i);

/* One chunk's push as one message; flags as in wire.h.  The shard's answers are in r->sent afterwards. */
void rig_push(rig *r, int32_t rank, uint64_t step, uint32_t chunk, uint32_t flags, rig_gradient g);
/* The same; the test sets every field of the message. */
void rig_deliver(rig *r, uint32_t to, int32_t rank, wire_data *d, buf *payload);
buf *rig_payload(const rig *r, uint32_t chunk, int32_t rank, uint64_t step,
                 rig_gradient g); /* its type on the wire */
void rig_push_all(rig *r, int32_t rank, uint64_t step, uint32_t flags, rig_gradient g);
void rig_flush(rig *r);
void rig_forget_sent(rig *r); /* the messages so far */

/* From the PREPARED messages to `rank` in r->sent.  False: a partition of trained chunks is
 * missing. */
typedef struct {
    wire_decision decision;
    uint32_t bad_chunk;
    int32_t bad_rank;
    wire_vote vote[PLAN_PARTITIONS_MAX];
} rig_decision;
bool rig_decide(rig *r, int32_t rank, uint64_t step, int64_t applied, rig_decision *out);
/* PULL of every chunk of every shard with the decision. */
void rig_pull(rig *r, int32_t rank, uint64_t step, const rig_decision *decision);
/* Push by all ranks in rank order, flush, decide, pull by all, flush. */
void rig_step(rig *r, uint64_t step, int64_t applied, rig_gradient g, rig_decision *out);

/* The newest message of a kind to a rank, with this chunk (UINT32_MAX: any); NULL: none. */
const rig_message *rig_find(const rig *r, wire_kind kind, int32_t rank, uint32_t chunk);
uint32_t rig_count_sent(const rig *r, wire_kind kind, int32_t rank); /* messages */
/* One float32 of a tensor in the shards' memory. */
float rig_param(const rig *r, uint32_t tensor, uint64_t i);
uint32_t rig_params_crc(const rig *r); /* of all values in plan order, from the shards */
uint32_t rig_slots_crc(const rig *r);

#endif
