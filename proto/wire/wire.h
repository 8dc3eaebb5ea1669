/* wire.h - the one door to what travels: plain structs in, bytes out, and back.
 *
 * A message is one head frame and at most one payload frame.  The head is a 20-byte prefix (magic, version, plane, length,
 * CRC32C; little-endian) and a protobuf message: Control or Data.  proto/README.md describes it byte by byte.  Anything
 * malformed, truncated, oversized or of an unknown version is CORRUPT with a reason.  Nothing that was read is trusted:
 * list lengths are bounded by the frame, columns have equal lengths, enums are in range, strings are NUL-terminated,
 * shorter than WIRE_TEXT_MAX and without control characters.
 * Encoders have the same bounds: INVALID_ARGUMENT for what the peer would refuse.
 *
 * Decoding allocates from a wire_arena that is reset for each message: no malloc in steady state.  Decoded structs point
 * into the arena until its reset; nothing points into the head frame.
 * Thread: nothing is shared; one arena per thread.
 */
#ifndef PROTO_WIRE_H
#define PROTO_WIRE_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    WIRE_VERSION        = 1,
    WIRE_PREFIX_BYTES   = 20,
    WIRE_TEXT_MAX       = 1024, /* with its NUL */
    WIRE_HEAD_BYTES_MAX = 8 << 20,
    WIRE_ITEMS_MAX      = 65536, /* entries of any list; ranks are below it, too */
    WIRE_PARTITIONS_MAX = 256,
    WIRE_ENTRIES_MAX    = 128, /* of one LOG */
    WIRE_CALL_BYTES_MAX = 65536,
    WIRE_SCALARS_MAX    = 8,
    WIRE_BLOB_BYTES_MAX = 1 << 20, /* a value of the store, a record of calls */
    WIRE_LAUNCHER       = 4,       /* roles beyond pen_role */
    WIRE_OBSERVER       = 5
};
#define WIRE_PAYLOAD_BYTES_MAX ((uint64_t)64 << 20)

/* ---- memory ---------------------------------------------------------------------------------- */
/* Grows to bytes_max, beyond which decoding gives CORRUPT; keeps its memory until destroyed. */
typedef struct wire_arena wire_arena;
wire_arena *wire_arena_create(size_t bytes_max); /* NULL: no memory */
void wire_arena_destroy(wire_arena *arena);      /* NULL is fine */
void wire_arena_reset(wire_arena *arena);

/* Output; zeros at first.  An encoder replaces the content and keeps the capacity. */
typedef struct {
    uint8_t *data;
    size_t size, capacity;
} wire_out;
void wire_out_free(wire_out *out);

/* ---- data plane ------------------------------------------------------------------------------ */
/* clang-format off */
typedef enum {
    WIRE_PUSH = 1, /* worker: gradient chunks; inputs; payload = the chunks' bytes in order */
    WIRE_RECEIPT,  /* shard: these arrived (stops the retry timer, acknowledges nothing) */
    WIRE_PREPARED, /* shard: complete partitions; record[]; payload: sums of squares */
    WIRE_PULL,     /* worker: wants values; in bsp with the decision and the records behind it */
    WIRE_VALUES,   /* shard: the chunks' values; payload */
    WIRE_REFUSED,  /* shard: status, text, the chunks it is about (none: the whole message) */
    WIRE_INQUIRE,  /* worker: which ranks are missing for these chunks? */
    WIRE_WAITING,  /* shard: step, missing ranks, text = name of the tensor */
    WIRE_INIT,     /* rank 0: first values; payload.  Answered by RECEIPT */
    WIRE_LOG = 80, /* primary to another copy of its shard: entries of the log; their payload */
    WIRE_LOGGED,   /* copy to primary: applied up to index */
    WIRE_KIND_END
} wire_kind;

enum {
    WIRE_WANT_VALUES = 1,  /* PUSH: answer with VALUES when applied (fused push and pull) */
    WIRE_REPEATED    = 2,  /* PUSH: this is a retry */
    WIRE_INITIAL     = 4,  /* of any kind: about first values (version 0 or restored) */
    WIRE_FRESH       = 8,  /* LOG: forget everything, this stream begins with nothing */
    WIRE_SEALING     = 16, /* LOG: no entry comes after these before epoch `step` */
    WIRE_RETURN      = 32  /* PUSH: the sender waits for its memory: keep no reference */
};

typedef enum { /* entries of a shard's log */
    WIRE_ENTRY_FIRST = 1, /* chunk: its first values, f32 */
    WIRE_ENTRY_SUM,       /* chunk: its sum of the open step, f32; none: every weight was 0 */
    WIRE_ENTRY_PREPARE,   /* partition: all sums of `step` are in; record; sums of squares */
    WIRE_ENTRY_COMMIT,    /* partition: the decision of `step` */
    WIRE_ENTRY_UPDATE,    /* chunk: round `step` closed by itself; weight_sum; its sum, f32 */
    WIRE_ENTRY_APPLY,     /* chunk: push `step` of `rank` was applied; the bytes that it pushed */
    WIRE_ENTRY_BEGIN,     /* fill: how far a partition is; its newest record and decision */
    WIRE_ENTRY_STATE,     /* fill: values or a slot of a chunk, and its counters */
    WIRE_ENTRY_FILLED,    /* fill: the end; digest of the primary here */
    WIRE_ENTRY_SETTLE,    /* from the epoch record: step, decision, other workers */
    WIRE_ENTRY_VOID,      /* of a fill of another copy */
    WIRE_ENTRY_END
} wire_entry_kind;
/* clang-format on */

typedef struct { /* numbers of the program, summed over ranks: proto/scalars.h */
    uint32_t n;
    uint32_t ranks[WIRE_SCALARS_MAX]; /* in the sum */
    uint64_t name[WIRE_SCALARS_MAX];
    double sum[WIRE_SCALARS_MAX];
} wire_scalars;

typedef struct {
    double loss_scale, clip, weight;
    bool skip, snapshot;
    bool is_node_sum; /* the payload is the weighted sum of a node, and weight is the node's */
    uint32_t n_rates;
    const double *rate;
    const void *states; /* PUSH only: a bundle, for a snapshot of this step */
    size_t states_bytes;
    wire_scalars scalars; /* of the rank; in a node's sum, of its ranks */
} wire_inputs;

typedef struct {
    uint32_t partition;
    uint64_t hash;
    double weight_sum;
    bool finite;
    uint32_t bad_chunk;
    int32_t bad_rank;
    wire_scalars scalars; /* of all ranks; of the partition of scalars_chunk() only */
} wire_vote;

typedef struct {
    int32_t outcome; /* pen_outcome */
    double clip, gscale, norm;
    int64_t applied;
} wire_decision;

typedef struct { /* of LOG; unused fields are 0 */
    wire_entry_kind what;
    uint32_t object; /* number of a chunk or partition in the plan; the receiver checks it */
    int32_t rank;
    uint64_t step, capture, bytes, version;
    int64_t applied;
    uint32_t crc, slot;
    bool is_last, restart;
    double weight_sum;
    uint64_t digest;
    uint32_t n_numbers;
    const uint64_t *number;
    bool has_inputs, has_decision, has_vote;
    wire_inputs inputs;
    wire_decision decision;
    wire_vote vote;
} wire_entry;

typedef struct {
    wire_kind kind;
    uint32_t shard;
    uint64_t term, epoch, from, to;
    int32_t rank; /* -1 = none */
    uint64_t step, acked_below, payload_bytes;
    uint32_t flags;

    uint32_t n; /* chunks; the columns below have n entries or are NULL; with n > 0 chunk is not */
    const uint32_t *chunk;
    const uint64_t *seq; /* NULL: all are `step` */
    const uint32_t *crc;
    const uint64_t *version;
    const uint32_t *staleness;
    const uint32_t *size; /* of the bytes of parts of tables (proto/rows.h); NULL: tensors' */

    uint32_t n_partitions; /* PULL */
    const uint32_t *partition;
    const uint64_t *vote_hash; /* [n_partitions] or NULL */

    bool has_inputs, has_decision;
    wire_inputs inputs;
    wire_decision decision;
    uint32_t n_votes;
    const wire_vote *vote;
    pen_status status; /* one of penstock.h; INTERNAL for unknown ones */
    const char *text;  /* never NULL after decoding */
    uint32_t n_missing;
    const int32_t *missing;

    uint64_t index, stream, digest; /* LOG, LOGGED */
    uint32_t n_entries;             /* their payloads are consecutive */
    const wire_entry *entry;
} wire_data;

/* Numbers have gaps: those of removed kinds are not used again. */
bool wire_is_data_kind(int kind);
bool wire_is_control_kind(int kind);

/* Encoding borrows everything for the call.
 * Decoding: CORRUPT, also when the arena is too small, or NO_MEMORY; then do not use *d.  The receiver checks whether
 * chunks, partitions and ranks exist in this job.
 * Cost  1 us each for 64 chunks. */
pen_status wire_data_encode(const wire_data *d, wire_out *out, pen_error *why);
pen_status wire_data_decode(const void *head, size_t size, wire_arena *arena, wire_data *d,
                            pen_error *why);

/* Copies the lists and the text of a message without inputs and entries into `room`, which *d then points to.  `room` is
 * aligned to 8 bytes; NULL: nothing is copied.  Returns how many bytes they take. */
size_t wire_data_copy_lists(wire_data *d, void *room);

/* ---- control plane --------------------------------------------------------------------------- */
/* clang-format off */
typedef enum { /* the field numbers of Control.body */
    WIRE_HELLO = 10, WIRE_WELCOME, WIRE_EPOCH, WIRE_REGISTER, WIRE_PLAN, WIRE_READY, WIRE_COMMITTED,
    WIRE_BEAT, WIRE_BEAT_ACK, WIRE_NOTICE = 21, WIRE_VERDICT, WIRE_FAILURE,
    WIRE_EXITED, WIRE_BYE, WIRE_BYED, WIRE_STOP, WIRE_SNAPSHOT_PLEASE, WIRE_SNAPSHOT_PART,
    WIRE_SNAPSHOT_DONE, WIRE_ENQUIRE, WIRE_MISSING, WIRE_STATUS_ASK, WIRE_STATUS, WIRE_WILL,
    WIRE_COMMAND, WIRE_REPLY, WIRE_LOST, WIRE_FAULT, WIRE_FAULTED, WIRE_OVERDUE, WIRE_SHRINK,
    WIRE_SHRUNK, WIRE_STORE, WIRE_STORED, WIRE_RECORD_ASK, WIRE_RECORD, WIRE_SEAL, WIRE_SEALED,
    WIRE_CAUGHT_UP, WIRE_SUSPECT, WIRE_SCALE, WIRE_DRAIN, WIRE_RESIZED, WIRE_PROVE, WIRE_PROVEN,
    WIRE_UNREACHED,
    WIRE_CONTROL_END
} wire_control_kind;
/* clang-format on */

typedef struct {
    int32_t role, rank;
    uint64_t incarnation;
    const char *host;
    int32_t pid, local_rank, node;
    int32_t sharing; /* worker: lowest rank of those that share memory; its own: none */
    uint32_t n_addresses;
    const char *const *address;
} wire_member;

/* A flag of a tensor that is a table by key: of shape [parts], or [parts, values per key].  Each part is a chunk; its one
 * element is 0, its rows are elsewhere.  It counts as frozen: no decision is about it. */
enum { WIRE_TABLE = 1 << 30, WIRE_PARTS_MAX = WIRE_PARTITIONS_MAX };

typedef struct {
    const char *name;
    pen_dtype dtype, grad_dtype;
    int32_t ndim;
    int64_t shape[8];
    uint32_t group, flags;
    int32_t priority;
    const char *init;
    const char *handler; /* of a table; NULL or "": its rows have an update rule */
} wire_tensor;

typedef struct {
    const char *name, *optim, *sync, *wire, *schedule;
} wire_group;

typedef struct {
    const char *key, *value;
} wire_pair;

typedef struct { /* a model, in REGISTER and PLAN */
    uint32_t n_tensors, n_groups, n_settings;
    const wire_tensor *tensor;
    const wire_group *group;
    const wire_pair *setting;
} wire_model;

typedef struct {
    const char *name;
    double value;
} wire_stat;

typedef struct {
    wire_member member;
    const char *state, *call;
    double last_seen_s, call_s;
    int64_t step;
    uint32_t n_stats;
    const wire_stat *stat;
} wire_member_status;

typedef struct {     /* an event in STATUS; level as in common/base/log.h */
    uint64_t number; /* from 1 on; a gap: some are lost */
    double at_s;     /* on the clock of uptime_s */
    int32_t level;
    const char *text;
} wire_event;

typedef enum { WIRE_PRIMARY = 1, WIRE_BACKUP, WIRE_LEARNER } wire_replica_role;

typedef struct { /* a copy of a shard; place: thread of the server, index in wire_member.address */
    uint32_t shard, place;
    int32_t server, role; /* wire_replica_role */
} wire_replica;

typedef struct { /* of SEALED: one copy of one shard */
    uint32_t shard;
    int32_t role;
    uint64_t index, digest; /* of the part of its log that it has applied */
    int64_t step;           /* most steps committed by a decided partition; -1: it has none */
    /* least counter of a live rank over chunks that count for themselves; -1: none */
    int64_t clock;
    bool all_prepared; /* all decided partitions are committed up to `step`, or prepared for it */
    bool has_decision;
    wire_decision decision; /* of step - 1 */
} wire_sealed_report;

typedef enum { WIRE_STORE_SET = 1, WIRE_STORE_GET, WIRE_STORE_ADD } wire_store_op;

typedef struct { /* FAULT and FAULTED */
    uint64_t group, call;
    pen_error why;
} wire_fault;

typedef struct {
    uint64_t term, epoch;
    const char *job;
    uint32_t n_workers, n_servers, n_replicas;
    const wire_member *worker, *server;
    const wire_replica *replica; /* all copies of all shards; none before PLAN */
    int64_t step;                /* of every decided partition from now on; -1: not settled */
    bool members_changed;        /* staged pushes of `step` are dropped and pushed again */
    bool has_decision;
    wire_decision decision; /* of step - 1 */
} wire_epoch;

/* clang-format off */
typedef struct {
    wire_control_kind kind;
    uint64_t from;
    union {
        struct {
            int32_t role, rank, world_size, servers, pid;
            int32_t local_rank, local_world_size, node; /* from its launcher; -1: unset */
            uint64_t nonce;
            uint64_t number;  /* lies in its memory, for those that can map it; 0: nobody may */
            bool holds_state; /* a worker that answers SEAL; servers always do */
            const char *host, *machine, *job, *store;
            uint32_t n_addresses, n_snapshots;
            const char *const *address;
            const int64_t *snapshot;
        } hello;
        struct {
            uint64_t incarnation, term, lease_ms;
            uint64_t grace_ms;              /* how long a member goes on without the scheduler; 0: not at all */
            int32_t rank, local_rank, node; /* the last two for late workers */
            const char *job;
        } welcome;
        wire_epoch epoch;
        wire_model register_;
        struct {
            wire_model model;
            uint32_t n_partitions;
            const uint32_t *shard;
            int64_t restore;
            uint32_t n_shards, n_replicas, ranks_max;
            const wire_replica *replica; /* the first placement */
            uint64_t epoch;              /* of that placement */
            uint64_t term;               /* of the plan; the same for the whole job */
        } plan;
        struct { int64_t restored, applied; const void *states; size_t states_bytes; } ready;
        struct { int64_t step, applied; const void *states; size_t states_bytes; } committed;
        struct {
            uint64_t seq, call_ms;
            int64_t step;
            const char *call;
            uint32_t n_stats;
            const wire_stat *stat;
        } beat;
        struct { uint64_t seq; int64_t job_step; uint64_t clock_ns; } beat_ack;
        struct { const char *text; } notice;
        pen_error verdict; /* VERDICT, FAILURE and WILL */
        struct { int32_t role, rank, pid, code, signal; const char *note, *call; int64_t step; } exited;
        struct { uint64_t id; } snapshot_please;
        struct {
            int64_t step;
            pen_status status;
            const char *text;
            uint64_t bytes;
            uint32_t n_shards;
            const uint32_t *shard; /* those the part covers */
            bool lacks_room;       /* the disk is full; spare: a complete snapshot that may go, or -1 */
            int64_t spare;
        } snapshot_part;
        struct {
            int64_t step;
            pen_status status;
            const char *text;
            bool makes_room; /* servers delete the snapshot of step `gone` */
            int64_t gone;
        } snapshot_done;
        struct { int32_t rank; } enquire;
        struct { int32_t rank; int64_t step; const char *tensor; bool known, lacks_values; } missing;
        struct {
            const char *job, *phase, *mode;
            uint64_t term, epoch, refused;
            int64_t step, steps, snapshot; /* steps: that the loop makes in all; 0: not known */
            double uptime_s, steps_per_s;
            uint32_t n_members, n_waiting, n_replicas, n_events, n_shards;
            const wire_member_status *member;
            const char *const *waiting;
            const wire_replica *replica;
            const wire_event *event;     /* the newest, oldest first */
            const uint64_t *shard_bytes; /* [n_shards] of the model */
            wire_member scheduler;
        } status;
        struct { /* role, rank: the receiver; after the scheduler: the asker */
            uint64_t id, asker, done_below;
            int32_t role, rank, head;
            const void *body;
            size_t body_size;
        } command;
        struct { /* role, rank: the asker; after the scheduler: the one that answers */
            uint64_t id, asker;
            int32_t role, rank;
            pen_status status;
            const char *text;
            const void *data;
            size_t data_size;
        } reply;
        struct { int32_t rank; uint64_t incarnation; pen_error why; } lost;
        wire_fault fault; /* FAULT and FAULTED */
        struct {
            const char *what; /* "barrier 'epoch end' (call 212)" */
            uint64_t waited_ms;
            uint32_t n_missing;
            const int32_t *missing;
            bool quiet; /* log nothing, and answer with no NOTICE */
        } overdue;
        struct { uint64_t group; uint32_t n_ranks; const int32_t *rank; } shrink;
        struct {
            uint64_t group, new_group;
            uint32_t n_ranks; /* the survivors, in the order of the group */
            const int32_t *rank;
            pen_status status;
            const char *text;
        } shrunk;
        struct { /* data: of SET, delta: of ADD */
            uint64_t id, done_below;
            int32_t op; /* wire_store_op */
            const char *key;
            const void *data;
            size_t data_size;
            int64_t delta;
        } store;
        struct {
            uint64_t id;
            pen_status status;
            const char *text;
            const void *data;
            size_t data_size;
            int64_t value;
        } stored;
        struct { uint64_t id, asker; } record_ask;
        struct { /* data: lines of JSON, one per call, oldest first */
            uint64_t id, asker;
            int32_t rank;
            pen_status status;
            const char *text;
            const void *data;
            size_t data_size;
        } record;
        struct { uint64_t term, epoch; } seal;
        struct {
            uint64_t term, epoch;
            uint32_t n_reports;
            const wire_sealed_report *report;
        } sealed;
        struct { uint32_t shard; int32_t server; } caught_up;
        struct { uint32_t shard; int32_t server; uint64_t waited_ms; } suspect;
        struct { int32_t workers, servers; } scale; /* -1: unchanged */
        struct { int32_t server; } drain;
        struct { pen_status status; const char *text; } resized; /* answer to SCALE and DRAIN */
        struct { uint64_t round; uint32_t n_workers; const wire_member *worker; } prove;
        struct { /* numbers read in the memory of these ranks */
            uint64_t round;
            uint32_t n_ranks, n_numbers;
            const int32_t *rank;
            const uint64_t *number;
        } proven;
        struct { int32_t role, rank; const char *address, *words; } unreached;
    } u;
} wire_control;
/* clang-format on */

/* As for the data plane.  Strings are never NULL after decoding; NULL is encoded as "". */
pen_status wire_control_encode(const wire_control *c, wire_out *out, pen_error *why);
pen_status wire_control_decode(const void *head, size_t size, wire_arena *arena, wire_control *c,
                               pen_error *why);

/* A deep copy that lives as long as *arena, which is made anew; *arena before, or NULL, is destroyed.  False: no memory, or
 * it cannot be encoded; then *arena and *copy are unchanged.  Cost: that of encoding and decoding. */
bool wire_control_copy(const wire_control *c, wire_arena **arena, wire_control *copy);

const char *wire_kind_name(int kind); /* of both planes; "?" when unknown */

#endif
