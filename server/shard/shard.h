/* shard.h - one shard: a part of the model in memory, and the core's decisions carried out on it.
 *
 * DESIGN.  A shard is one thread's share of the parameters: share-nothing, no lock.  It has no
 * socket, thread or clock: messages are handed in as structs and leave through three functions
 * (shard_outside).  So a test or a simulation drives it by hand, and nothing it does depends on
 * when it is done.  (Where somebody watches, it notes how long updates and stragglers took, common/base/trace.h and
 * stat_begin(); nobody does in a simulation, and nothing is decided by it.)
 *
 *   values   per chunk one buf of float32 and one per optimizer slot, COPY-ON-WRITE: an update
 *            writes in place if nobody else holds the buf and copies first if somebody does.  So a
 *            reply of float32 is a reference to the values themselves, and a snapshot is references
 *            and takes no time.  Where options say so they lie in a file instead, come into memory for each
 *            update and go out again, and a snapshot holds their versions there.
 *   sums     the first contribution of weight 1 in float32 stays where it arrived (a reference into
 *            the message); the second makes base + weight x gradient in an accumulator, further
 *            ones are added in rank order.  With one rank there is no copy and no sum: norm and
 *            update read the message.
 *   replies  large chunks travel alone, by reference, at once; small ones of one peer are packed by
 *            copy and leave with shard_flush().
 *   copies   a shard may live on several servers: one is the primary, the others follow its log
 *            (docs/design/replication.md).  What the primary tells a worker waits until every backup
 *            has acknowledged all that was logged before it was said.  A learner is being filled and
 *            waited for by nobody.  Who is what comes with an epoch: shard_install().  A shard
 *            without copies has no log, and nothing waits.
 *
 * Thread: one at a time.  The arrays of wire_data are BORROWED for the call.
 */
#ifndef SERVER_SHARD_H
#define SERVER_SHARD_H

#include "common/base/buf.h"
#include "common/compute/optim/optim.h"
#include "common/base/stat.h"
#include "server/shard/admission.h"
#include "common/snapshot/store.h"
#include "common/offload/tier.h"
#include "proto/plan.h"
#include "proto/wire.h"

typedef struct shard shard;

/* ---- snapshots ------------------------------------------------------------------------------- */
typedef struct {
    uint32_t chunk, tensor; /* numbers in the plan and the model */
    uint64_t start, count;
    uint64_t version; /* updates applied to this chunk     */
    bool is_taken;    /* its arrays are here, and not released */
    /* Each array is a buffer, or what was there is held in a file: held[0] are the values, held[1 + i] is slot i. */
    buf *values, *slot[OPTIM_SLOTS_MAX];
    tier_hold *held[1 + OPTIM_SLOTS_MAX];
    uint32_t n_slots;
} shard_cut_chunk;

typedef struct { /* all chunks of one shard as they were after step - 1 */
    int64_t step;
    int64_t applied; /* updates of the job; 0: another shard knows */
    uint32_t n;
    shard_cut_chunk *chunk; /* [n] */
    uint8_t *states;        /* a bundle (common/snapshot/bundle.h) */
    size_t states_bytes;
} shard_cut;
void shard_cut_destroy(shard_cut *cut);         /* any thread; NULL is fine */
void shard_cut_release(shard_cut_chunk *chunk); /* its values and slots, once they are written */
/* One array: 0 values, 1 + i slot i, in memory.  *numbers is OWNED by the caller. */
pen_status shard_cut_read(shard_cut_chunk *chunk, uint32_t array, buf **numbers, pen_error *why);

/* ---- who has copies -------------------------------------------------------------------------- */
enum { SHARD_COPIES_MAX = 8 };

typedef enum { SHARD_NO_ROLE, SHARD_PRIMARY, SHARD_BACKUP, SHARD_LEARNER } shard_role;

typedef struct {
    int32_t server;
    uint64_t incarnation;
    bool is_learner;
} shard_replica;

typedef struct { /* an epoch, as one shard of one server sees it */
    uint64_t term, epoch;
    const wire_member *worker; /* only rank, incarnation and node are read */
    uint32_t n_workers;
    bool members_changed; /* what is staged is dropped, whatever this shard saw before */
    int64_t step;         /* every decided partition is at it from now on; -1: nothing to settle */
    bool has_decision;
    wire_decision decision; /* of step - 1 */
    shard_role role;
    uint64_t primary;             /* incarnation of the server that has the primary */
    uint32_t n_replicas;          /* the other copies; the primary is told, others need not be */
    const shard_replica *replica; /* at most SHARD_COPIES_MAX */
} shard_view;

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
    /* Is about to copy so many bytes, which somebody else still reads; may wait.  NULL: copies. */
    void (*copying)(void *user, size_t bytes);

    /* The following may be NULL for a shard that never has copies.
     * LOG to a copy, as send(); it may get lost.  False: not now; it is tried again with the next
     * flush, nudge or shard_replica_up(). */
    bool (*send_replica)(void *user, int32_t server, const wire_data *d, buf *payload);
    /* This learner has everything; said again until an epoch makes it a backup. */
    void (*caught_up)(void *user, int32_t server);
    /* This backup has acknowledged nothing for suspect_ms, and everybody waits for it. */
    void (*suspect)(void *user, int32_t server, uint64_t waited_ms);
} shard_outside;

typedef struct {         /* what is not kept in memory; see common/offload/tier.h */
    const tier_ops *ops; /* NULL: everything is */
    const char *dir;     /* BORROWED until shard_configure() */
    bool has_values, has_slots;
    uint64_t sub_group; /* elements of which it is brought in at one time; one chunk always is */
} shard_offload;

typedef struct {
    /* Contributions kept until their turn in rank order; 0: 64 MiB.  The model's setting of that
     * name, if there is one, wins: workers know what they send. */
    uint64_t park_bytes_max;
    uint64_t suspect_ms; /* 0: 10 s */
    stat_set *stats;     /* BORROWED; may be shared by several shards */
    admission admission; /* of gradients */
    shard_offload offload;
} shard_options;

/* ---- life ------------------------------------------------------------------------------------ */
shard *shard_create(const shard_options *options, const shard_outside *outside, pen_error *why);
void shard_destroy(shard *self); /* NULL is fine */

typedef struct {
    const wire_model *model;  /* BORROWED until shard_destroy() */
    const plan *plan;         /* BORROWED until shard_destroy() */
    const uint32_t *shard_of; /* [partitions] which shard has which; BORROWED like them */
    uint32_t self;            /* number of this shard in the job */
    uint32_t world_size;      /* ranks that may ever come */
    int32_t server;           /* rank of this server, for sentences */
    uint64_t incarnation;     /* of this server */
    bool is_empty;            /* a copy that its primary will fill */
    uint64_t first_step; /* number of every rank's first push: 0, or where a snapshot goes on */
    int64_t applied;     /* updates applied before */
} shard_setup;

/* Takes memory for its chunks; values are missing until INIT or shard_load().  Once.  BAD_SETTING
 * for a group's words, UNSUPPORTED for what cannot go together. */
pen_status shard_configure(shard *self, const shard_setup *setup, pen_error *why);

/* Reads all values, slots and versions of a complete snapshot.  After shard_configure(), before any
 * message. */
pen_status shard_load(shard *self, store_reader *reader, int64_t step, pen_error *why);

/* ---- work ------------------------------------------------------------------------------------ */
/* A new epoch; one that is not newer than what is installed is ignored.  A primary or backup first
 * settles: partitions that are prepared for step - 1 are committed with the decision.  Then, when
 * the members are others than before, everything staged is dropped, ranks that are absent lose their
 * counters and joiners get theirs.  Else a primary that stays goes on as it was, and one that is new
 * keeps what is prepared.  What was said in the old epoch and not acknowledged is never sent: workers
 * ask again.  A record that contradicts what is here is reported. */
void shard_install(shard *self, const shard_view *view);

/* From now on this shard does nothing for epochs below this one; data messages are REFUSED AGAIN.
 * Fills in what the scheduler needs.  Again is fine. */
void shard_seal(shard *self, uint64_t term, uint64_t epoch, wire_sealed_report *report);

/* Sealing it now loses nothing: it is the primary, or it has all that the primary logged before it
 * was sealed for this epoch, or the primary's connection is gone.  Who asks a copy before sealing it
 * and waits a little keeps it from becoming a learner that lacks what was on its way. */
bool shard_is_level(const shard *self, uint64_t epoch);

/* News of the connection to a copy. */
void shard_replica_up(shard *self, int32_t server);
void shard_replica_down(shard *self, int32_t server);

/* Every 200 ms or so while the shard is a primary with copies; time is handed in. */
void shard_nudge(shard *self, uint64_t now_ms);

/* One message of the data plane, also LOG and LOGGED of other servers.  payload may be NULL, is
 * BORROWED, and is referenced as long as it is needed.  True: its sender is a worker of this epoch. */
bool shard_receive(shard *self, uint32_t peer, const wire_data *d, buf *payload);

/* Sends what was gathered; before the thread sleeps. */
void shard_flush(shard *self);

void shard_peer_down(shard *self, uint32_t peer);

/* For ENQUIRE: a push of `rank` that others wait for.  *tensor is BORROWED from the model; *chunk
 * orders answers of several shards.  False: none. */
bool shard_missing(const shard *self, int32_t rank, uint64_t *step, uint32_t *chunk,
                   const char **tensor);

/* A primary to which the first values of a chunk have not come. */
bool shard_lacks_values(const shard *self);

/* Has no trained chunk, as happens when a model is smaller than the job.  It gets no gradient and
 * so no sign that a snapshot is due; its server gives it one when another of its shards is cut, and
 * rank 0 does by a PUSH of that step without chunks, for servers that have no other. */
bool shard_is_idle(const shard *self);
void shard_cut_idle(shard *self, int64_t step); /* others ignore it */

/* ---- looking in --------------------------------------------------------- */
shard_role shard_role_of(const shard *self); /* SHARD_NO_ROLE before the first epoch */
uint64_t shard_log_bytes(const shard *self); /* kept for copies that have not acknowledged */
int64_t shard_applied(const shard *self);

#endif
