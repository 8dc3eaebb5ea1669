/* shard.h - one shard: a part of the model in memory, and the core's decisions carried out on it.
 *
 * DESIGN.  A shard is one thread's share of the parameters: share-nothing, no lock.  It has no
 * socket, thread or clock: messages are handed in as structs and leave through three functions
 * (shard_outside).  So a test or a simulation drives it by hand, and nothing it does depends on
 * when it is done.
 *
 *   values   per chunk one buf of float32 and one per optimizer slot, COPY-ON-WRITE: an update
 *            writes in place if nobody else holds the buf and copies first if somebody does.  So a
 *            reply of float32 is a reference to the values themselves, and a snapshot is references
 *            and takes no time.
 *   sums     the first contribution of weight 1 in float32 stays where it arrived (a reference into
 *            the message); the second makes base + weight x gradient in an accumulator, further
 *            ones are added in rank order.  With one rank there is no copy and no sum: norm and
 *            update read the message.
 *   replies  large chunks travel alone, by reference, at once; small ones of one peer are packed by
 *            copy and leave with shard_flush().
 *
 * Thread: one at a time.  The arrays of wire_data are BORROWED for the call.
 */
#ifndef SERVER_SHARD_H
#define SERVER_SHARD_H

#include "common/buf.h"
#include "common/optim/optim.h"
#include "common/stat.h"
#include "common/store/store.h"
#include "proto/plan.h"
#include "proto/wire.h"

typedef struct shard shard;

/* ---- snapshots ------------------------------------------------------------------------------- */
typedef struct {
    uint32_t chunk, tensor; /* numbers in the plan and the model */
    uint64_t start, count;
    uint64_t version; /* updates applied to this chunk     */
    buf *values, *slot[OPTIM_SLOTS_MAX];
    uint32_t n_slots;
} shard_cut_chunk;

typedef struct { /* all chunks of one shard as they were after step - 1 */
    int64_t step;
    int64_t applied; /* updates of the job; 0: another shard knows */
    uint32_t n;
    shard_cut_chunk *chunk; /* [n] */
} shard_cut;
void shard_cut_destroy(shard_cut *cut); /* any thread; NULL is fine */

/* The blob in which a snapshot keeps the version of every chunk: rows of these. */
#define SHARD_VERSIONS_BLOB "versions"
typedef struct {
    uint32_t chunk, zero;
    uint64_t version;
} shard_version_row;

/* ---- the outside ----------------------------------------------------------------------------- */
typedef struct {
    void *user;
    /* Sends d with an optional payload to a peer.  Both are BORROWED; keep the payload with
     * buf_acquire().  A message may get lost: the worker asks again. */
    void (*send)(void *user, uint32_t peer, const wire_data *d, buf *payload);
    /* A snapshot part of this shard is complete in memory.  cut is OWNED by the callee. */
    void (*snapshot)(void *user, shard_cut *cut);
    /* Something that ends the job: ranks that disagree, memory that ran out. */
    void (*report)(void *user, const pen_error *error);
} shard_outside;

typedef struct {
    /* Contributions kept until their turn in rank order; 0: 64 MiB.  The model's setting of that
     * name, if there is one, wins: workers know what they send. */
    uint64_t park_bytes_max;
    stat_set *stats; /* BORROWED; may be shared by several shards */
} shard_options;

/* ---- life ------------------------------------------------------------------------------------ */
shard *shard_create(const shard_options *options, const shard_outside *outside, pen_error *why);
void shard_destroy(shard *self); /* NULL is fine */

typedef struct {
    const wire_model *model;  /* BORROWED until shard_destroy() */
    const plan *plan;         /* BORROWED until shard_destroy() */
    const uint32_t *shard_of; /* [partitions] which shard has which; BORROWED like them */
    uint32_t self, world_size;
    uint64_t incarnation; /* of this server */
    uint64_t first_step;  /* number of every rank's first push: 0, or where a snapshot goes on */
    int64_t applied;      /* updates applied before */
} shard_setup;

/* Takes memory for its chunks; values are missing until INIT or shard_load().  Once.  BAD_SETTING
 * for a group's words, UNSUPPORTED for what cannot go together. */
pen_status shard_configure(shard *self, const shard_setup *setup, pen_error *why);

/* Reads all values, slots and versions of a complete snapshot.  After shard_configure(), before any
 * message. */
pen_status shard_load(shard *self, store_reader *reader, int64_t step, pen_error *why);

/* ---- work ------------------------------------------------------------------------------------ */
/* Who is in the job.  Data messages of an epoch that is over are refused; of one that has not come,
 * REFUSED AGAIN. */
void shard_epoch(shard *self, uint64_t term, uint64_t epoch, const wire_member *worker,
                 uint32_t n_workers);

/* One message of the data plane.  payload may be NULL, is BORROWED, and is referenced as long as it
 * is needed. */
void shard_receive(shard *self, uint32_t peer, const wire_data *d, buf *payload);

/* Sends what was gathered; before the thread sleeps. */
void shard_flush(shard *self);

void shard_peer_down(shard *self, uint32_t peer);

/* For ENQUIRE: a push of `rank` that others wait for.  *tensor is BORROWED from the model; *chunk
 * orders answers of several shards.  False: none. */
bool shard_missing(const shard *self, int32_t rank, uint64_t *step, uint32_t *chunk,
                   const char **tensor);

/* Has no trained chunk, as happens when a model is smaller than the job.  It gets no gradient and
 * so no sign that a snapshot is due; its server gives it one when another of its shards is cut, and
 * rank 0 does by a PUSH of that step without chunks, for servers that have no other. */
bool shard_is_idle(const shard *self);
void shard_cut_idle(shard *self, int64_t step); /* others ignore it */

/* ---- looking in, for tests and tools --------------------------------------------------------- */
/* NULL when the chunk is not here.  BORROWED until the next message. */
const float *shard_values(const shard *self, uint32_t chunk, uint64_t *version);
const float *shard_slot(const shard *self, uint32_t chunk, int slot);
int64_t shard_applied(const shard *self);

#endif
