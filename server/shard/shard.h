/* shard.h - one shard: a part of the model in memory; applies the core's decisions to it.
 *
 * DESIGN.  A shard is one thread's share of the parameters: share-nothing, no lock.  It has no socket, thread or clock:
 * messages arrive as structs and leave through the functions of shard_outside.  So a test or a simulation drives it by
 * hand, and its work does not depend on time.  (While watched, it records how long updates and stragglers took,
 * common/trace/trace.h and stat_begin(); no decision depends on that.)
 *
 *   values   per chunk one buf of float32 and one per optimizer slot, COPY-ON-WRITE: an update writes in place, or
 *            copies first if the buf has another holder.  So a reply of float32 is a reference to the values
 *            themselves, and a snapshot is references and takes no time.  With offloading they lie in a file, are
 *            loaded for each update and stored again; a snapshot then holds their versions in the file.
 *   sums     the first contribution of weight 1 in float32 stays where it arrived (a reference into
 *            the message); the second makes base + weight x gradient in an accumulator, further
 *            ones are added in rank order.  With one rank there is no copy and no sum: norm and
 *            update read the message.
 *   replies  large chunks are sent alone, by reference, at once; small ones of one peer are packed by
 *            copy and sent with shard_flush().
 *   copies   a shard may live on several servers: one is the primary, the others follow its log
 *            (docs/design/replication.md).  A primary's message to a worker waits until every backup has acknowledged
 *            all earlier log entries.  A learner is being filled; it delays nothing.  Roles come with an epoch:
 *            shard_install().  A shard without copies has no log, and nothing waits.
 *
 * Thread: one at a time.  The arrays of wire_data are BORROWED for the call.
 */
#ifndef SERVER_SHARD_H
#define SERVER_SHARD_H

#include "common/base/stat.h"
#include "common/compute/optim/optim.h"
#include "common/containers/buf.h"
#include "common/offload/offload.h"
#include "common/snapshot/store.h"
#include "proto/plan.h"
#include "proto/wire/wire.h"
#include "server/shard/admission.h"
#include "server/shard/handler/handler_part.h"

typedef struct shard shard;

/* ---- snapshots ------------------------------------------------------------------------------- */
typedef struct {
    uint32_t chunk, tensor; /* numbers in the plan and the model */
    uint64_t start, count;
    uint64_t version; /* updates applied to this chunk */
    bool is_taken;    /* its arrays are here, and not released */
    /* Each array is a buffer, or held in a file: held[0] are the values, held[1 + i] is slot i. */
    buf *values, *slot[OPTIM_SLOTS_MAX];
    offload_hold *held[1 + OPTIM_SLOTS_MAX];
    uint32_t n_slots;
    bool is_table, has_handler; /* a part of one: its rows are in blocks */
    uint32_t n_blocks;
    buf **block;       /* [n_blocks] row_store.h, or the state of a handler */
    pen_status failed; /* of a handler that could not save */
} shard_capture_chunk;

/* Bytes of block i. */
size_t shard_capture_used(const shard_capture_chunk *chunk, uint32_t i);

typedef struct { /* all chunks of one shard after step - 1 */
    int64_t step;
    int64_t applied; /* updates of the job; 0: see another shard */
    uint32_t n;
    shard_capture_chunk *chunk; /* [n] */
    uint8_t *states;            /* a bundle (common/snapshot/bundle.h) */
    size_t states_bytes;
} shard_capture;
void shard_capture_destroy(shard_capture *capture);     /* any thread; NULL is fine */
void shard_capture_release(shard_capture_chunk *chunk); /* drops values and slots once written */
/* One array: 0 values, 1 + i slot i, in memory.  *numbers is OWNED by the caller. */
pen_status shard_capture_read(shard_capture_chunk *chunk, uint32_t array, buf **numbers,
                              pen_error *why);

/* ---- roles ----------------------------------------------------------------------------------- */
enum { SHARD_COPIES_MAX = 8 };

typedef enum { SHARD_NO_ROLE, SHARD_PRIMARY, SHARD_BACKUP, SHARD_LEARNER } shard_role;

typedef struct {
    int32_t server;
    uint64_t incarnation;
    bool is_learner;
} shard_replica;

typedef struct { /* an epoch, for one shard of one server */
    uint64_t term, epoch;
    const wire_member *worker; /* only rank, incarnation and node are read */
    uint32_t n_workers;
    bool members_changed; /* staged data is dropped in any case */
    int64_t step; /* from now on the step of every decided partition; -1: nothing to resolve */
    bool has_decision;
    wire_decision decision; /* of step - 1 */
    shard_role role;
    uint64_t primary;             /* incarnation of the server that has the primary */
    uint32_t n_replicas;          /* the other copies; set for the primary */
    const shard_replica *replica; /* at most SHARD_COPIES_MAX */
} shard_view;

/* ---- the outside ----------------------------------------------------------------------------- */
typedef struct {
    void *user;
    /* Sends d with an optional payload to a peer.  Both are BORROWED; keep the payload with buf_acquire().  A
     * message may be lost: the worker asks again. */
    void (*send)(void *user, uint32_t peer, const wire_data *d, buf *payload);
    /* The snapshot part of this shard is complete in memory.  capture is OWNED by the callee. */
    void (*snapshot)(void *user, shard_capture *capture);
    /* Ends the job: ranks disagree, or memory ran out. */
    void (*report)(void *user, const pen_error *error);
    /* Called before a copy of bytes that have another reader; may wait.  NULL: never waits. */
    void (*copying)(void *user, size_t bytes);

    /* A handler answered this request in another thread: shard_handler_answered() in the shard's, then shard_flush().
     * False: no memory.  NULL: there are no handlers. */
    bool (*answered)(void *user, handler_call *call);

    /* The following may be NULL for a shard that never has copies. Sends LOG to a copy, as send(); may be lost.
     * False: try again with the next flush, timer or shard_replica_up(). */
    bool (*send_replica)(void *user, int32_t server, const wire_data *d, buf *payload);
    /* This learner has everything; repeated until an epoch makes it a backup. */
    void (*caught_up)(void *user, int32_t server);
    /* This backup has acknowledged nothing for suspect_ms and blocks all workers. */
    void (*suspect)(void *user, int32_t server, uint64_t waited_ms);
} shard_outside;

typedef struct {            /* offloaded arrays; see common/offload/offload.h */
    const offload_ops *ops; /* NULL: none */
    const char *dir;        /* BORROWED until shard_configure() */
    bool has_values, has_slots;
    uint64_t sub_group; /* elements brought in at a time; at least one chunk */
} shard_offload;

typedef struct {
    /* Contributions buffered until their turn in rank order; 0: 64 MiB.  The model's setting of that name, if any,
     * wins: workers know what they send. */
    uint64_t park_bytes_max;
    uint64_t suspect_ms; /* 0: 10 s */
    stat_set *stats;     /* BORROWED; may be shared by several shards */
    admission admission; /* of gradients */
    shard_offload offload;
    handler_set handlers;
} shard_options;

/* ---- life ------------------------------------------------------------------------------------ */
shard *shard_create(const shard_options *options, const shard_outside *outside, pen_error *why);
void shard_destroy(shard *self); /* NULL is fine */

typedef struct {
    const wire_model *model;  /* BORROWED until shard_destroy() */
    const plan *plan;         /* BORROWED until shard_destroy() */
    const uint32_t *shard_of; /* [partitions] shard of each; BORROWED likewise */
    uint32_t self;            /* number of this shard in the job */
    uint32_t world_size;      /* upper bound of ranks */
    int32_t server;           /* rank of this server, for sentences */
    uint64_t incarnation;     /* of this server */
    bool is_empty;            /* a copy, to be filled by its primary */
    uint64_t first_step;      /* number of every rank's first push: 0, or the snapshot's step */
    int64_t applied;          /* earlier updates */
} shard_setup;

/* Allocates its chunks; values are missing until INIT or shard_load().  Once.  BAD_SETTING for a group's words,
 * UNSUPPORTED for combinations that do not work. */
pen_status shard_configure(shard *self, const shard_setup *setup, pen_error *why);

/* Reads all values, slots and versions of a complete snapshot.  After shard_configure(), before any
 * message. */
pen_status shard_load(shard *self, store_reader *reader, int64_t step, pen_error *why);

/* ---- work ------------------------------------------------------------------------------------ */
/* A new epoch; ignored unless newer than the installed one.  A primary or backup first resolves the open step:
 * partitions prepared for step - 1 are committed with the decision.  If the members changed, everything staged is
 * dropped, absent ranks lose their counters and joiners get theirs.  Otherwise a primary that stays continues
 * unchanged, and a new one keeps prepared sums.  Unacknowledged messages of the old epoch are never sent: workers ask
 * again.  A view that contradicts this shard is reported. */
void shard_install(shard *self, const shard_view *view);

/* From now on this shard ignores epochs below this one; data messages are REFUSED AGAIN. Fills in the report to the
 * scheduler.  Idempotent. */
void shard_seal(shard *self, uint64_t term, uint64_t epoch, wire_sealed_report *report);

/* Whether sealing it now loses nothing: it is the primary, or it has all that the primary logged before its own seal
 * for this epoch, or the primary's connection is gone.  A caller that waits briefly for this prevents a copy that lacks
 * only the last entries from becoming a learner. */
bool shard_is_level(const shard *self, uint64_t epoch);

/* The connection to a copy went up or down. */
void shard_replica_up(shard *self, int32_t server);
void shard_replica_down(shard *self, int32_t server);

/* Call every 200 ms or so while the shard is a primary with copies. */
void shard_resend(shard *self, uint64_t now_ms);

/* One message of the data plane, also LOG and LOGGED of other servers.  payload may be NULL, is BORROWED, and is
 * referenced while needed.  True: its sender is a worker of this epoch. */
bool shard_receive(shard *self, uint32_t peer, const wire_data *d, buf *payload);

/* Runs a command in the handlers of all parts here; its token is the number of the part's chunk.  Returns the number of
 * answers that come, now or later, in any thread.  *refused: why other parts do not answer, if it was PEN_OK. */
uint32_t shard_command(shard *self, handler_command *command, pen_status *refused);
void shard_handler_answered(handler_call *call); /* its shard may be gone */
bool shard_has_handlers(const shard *self);

/* Sends the gathered messages; call before the thread sleeps. */
void shard_flush(shard *self);

void shard_peer_down(shard *self, uint32_t peer);

/* For ENQUIRE: a push of `rank` that others wait for.  *tensor is BORROWED from the model; *chunk orders the
 * answers of several shards.  False: none. */
bool shard_missing(const shard *self, int32_t rank, uint64_t *step, uint32_t *chunk,
                   const char **tensor);

/* A primary that still lacks the first values of a chunk. */
bool shard_lacks_values(const shard *self);

/* A shard without trained chunks, as in a model smaller than the job.  It gets no gradient, so it does not learn that a
 * snapshot is due: rank 0 sends a PUSH of that step without chunks, or its server notifies it when another of its
 * shards is captured, whatever comes first. */
bool shard_is_idle(const shard *self);
void shard_capture_idle(shard *self, int64_t step); /* others ignore it */

/* ---- queries --------------------------------------------------------------------------------- */
shard_role shard_role_of(const shard *self); /* SHARD_NO_ROLE before the first epoch */
uint64_t shard_log_bytes(const shard *self); /* log entries not yet acknowledged by copies */
int64_t shard_applied(const shard *self);

#endif
