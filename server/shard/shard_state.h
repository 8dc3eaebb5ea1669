/* shard_state.h - the inside of a shard, shared by shard*.c only. */
#ifndef SERVER_SHARD_STATE_H
#define SERVER_SHARD_STATE_H

#include "server/shard/core/core.h"
#include "server/shard/recycler.h"
#include "server/shard/table/row_store.h"
#include "server/shard/shard.h"

#include "common/base/why.h"

enum {
    SHARD_SMALL_BYTES = 64 << 10,  /* replies below this are packed together */
    SHARD_BATCH_BYTES = 256 << 10, /* one packed reply */
    SHARD_NONE        = UINT32_MAX,
    SHARD_CUTS_MAX    = 2 /* snapshots in progress at one time */
};

/* ---- accumulators: shard_pool.c -------------------------------------------------------------- */
enum { SHARD_POOL_CLASSES = 12 + 257 };

typedef struct shard_spare shard_spare;
typedef struct {
    shard_spare *spare[SHARD_POOL_CLASSES];
    shard_spare *lent[SHARD_POOL_CLASSES]; /* still referenced */
} shard_pool;

/* Returns room for count numbers, which is its size; one reference, the pool's.  NULL: no memory. */
buf *shard_pool_take(shard_pool *pool, size_t count);
void shard_pool_give(shard_pool *pool, buf *numbers);
void shard_pool_fini(shard_pool *pool);

/* ---- chunks ---------------------------------------------------------------------------------- */
typedef struct shard_kept { /* a contribution waiting for its turn */
    struct shard_kept *next, *prev;
    int32_t rank;
    double weight;
    pen_dtype dtype;
    const void *data;
    buf *holder;
} shard_kept;

typedef struct { /* a sum that is set aside */
    const float *sum;
    buf *holder, *accumulator;
    double weight;
    int32_t base_rank;
} shard_sum;

typedef struct shard_table shard_table; /* shard_table.c */

typedef struct {
    uint32_t number, index, tensor, group; /* number: in the plan; index: here */
    uint32_t partition, slots;             /* partition: index here */
    uint64_t start, count;
    uint32_t first_block, blocks; /* index of its sums of squares in its partition */
    pen_dtype dtype, push_dtype;  /* of values and of gradients as sent */
    bool trained, decided;        /* decided: its rule averages */

    buf *values, *slot[OPTIM_SLOTS_MAX]; /* float32 [count] each; NULL: out, see shard_offload.c */
    /* Of values, then slots; OFFLOAD_NO_EXTENT: always in memory. */
    uint32_t extent[1 + OPTIM_SLOTS_MAX];
    buf *encoded; /* values in dtype, once requested; NULL if dtype is f32 */
    uint32_t crc; /* of the sent bytes, if has_crc */
    bool has_crc;
    uint64_t version;
    shard_table *table;    /* a part of a table has its rows there, */
    handler_part *handler; /* or here; both NULL: a tensor's chunk */
    uint32_t rows_crc;     /* of the rows that changed last */

    bool is_filled; /* a learner has its values */

    /* The open round's sum: NULL, or in the message in `holder`, or in `accumulator`. */
    const float *sum;
    buf *holder;
    buf *accumulator;
    int32_t base_rank, bad_rank; /* bad_rank: rank that made the sum infinite or NaN; -1 */
    double weight_sum;
    /* With deterministic=node: the sum above is whole up to a node's last rank; `before`: while it is that of the next
     * node alone, those of the nodes before. */
    bool is_node_complete;
    shard_sum before;
    shard_kept *kept;
} shard_chunk;

typedef struct {
    uint32_t number; /* in the plan */
    double *squares; /* [blocks]; 0 for chunks that no decision closes */
    uint32_t blocks;
    bool is_fresh; /* prepared in this turn: sent to all at the flush */
    wire_vote vote;
    uint64_t step;
} shard_partition;

typedef struct {
    const optim_ops *optim;
    optim_hyper hyper;
} shard_group;

/* ---- replies: shard_reply.c ------------------------------------------------------------------ */
typedef struct {
    uint32_t chunk, staleness; /* chunk: within the shard */
    uint32_t size;             /* of rows */
    uint64_t seq;
    bool repeated;
} shard_line;

typedef enum {
    SHARD_VALUES,
    SHARD_FIRST_VALUES,
    SHARD_ROWS, /* of tables */
    SHARD_APPLIED,
    SHARD_RECEIPT,
    SHARD_FIRST_RECEIPT,
    SHARD_LISTS
} shard_list_kind;

typedef struct {
    shard_line *line;
    uint32_t n;
    size_t capacity, bytes; /* bytes: of payload */
} shard_list;

typedef struct { /* the pending answers to one peer */
    uint32_t peer;
    int32_t rank;
    bool is_dirty;
    shard_list list[SHARD_LISTS];
    buf *rows; /* of list SHARD_ROWS; NULL: none yet */
} shard_outbox;

typedef struct { /* columns of one message, reused */
    void *block; /* of all columns */
    uint32_t capacity;
    uint32_t *chunk, *crc, *staleness, *size;
    uint64_t *seq, *version;
} shard_columns;

typedef struct { /* refusals in one message, gathered while the reason is the same */
    pen_status status;
    const char *reason;
    uint32_t n;
} shard_refusals;

typedef struct {
    shard_capture *capture;
    uint32_t left; /* trained chunks not yet captured */
} shard_open_capture;

/* ---- the log: shard_log.c, shard_gate.c, shard_fill.c ---------------------------------------- */
typedef struct {
    wire_entry e;
    void *lists;     /* OWNED: the lists of e */
    buf *payload;    /* exactly e.bytes; NULL */
    int32_t only;    /* the server it fills; -1: all */
    uint64_t digest; /* after it was applied */
    uint64_t before; /* bytes of all earlier entries */
} shard_entry;

typedef struct {
    uint64_t index;  /* newest; on a copy: the newest it has applied */
    uint64_t digest; /* of the effects of all entries */
    uint64_t bytes;  /* appended in total */
    uint64_t ungated;
    /* index of the newest SETTLE: copies resolved with the epoch, before it came */
    uint64_t settled_at;
    shard_entry *entry; /* a ring of the newest `n` */
    uint32_t first, n, capacity;
} shard_log;

typedef struct { /* the primary's record of another copy */
    int32_t server;
    uint64_t incarnation;
    bool is_learner, has_stream, is_fresh; /* is_fresh: the stream starts empty */
    uint64_t stream, base;                 /* base: index before the stream's first entry */
    uint64_t acked, sent;
    uint64_t resent; /* acknowledged index at the last resend for a gap */

    uint32_t filled;       /* chunks whose values are in the log */
    bool is_filled;        /* all chunks */
    uint64_t filled_at;    /* index of the fill's last entry */
    uint64_t fill_mark[2]; /* index after each of the last two batches of the fill */

    uint64_t seen_acked, waits_ms, resend_ms, said_ms,
        say_ms; /* of the resend timer; 0: not running */
} shard_copy;

typedef struct shard_parked { /* a message waiting for the backups */
    struct shard_parked *next, *prev;
    uint64_t stamp;
    uint32_t peer;
    size_t bytes;
    buf *payload;
    wire_data d; /* its lists follow it in memory */
} shard_parked;

struct shard {
    shard_options options;
    shard_outside outside;
    shard_setup setup;
    shard_core *core;
    uint64_t term, epoch;

    shard_role role;
    uint64_t primary;                   /* incarnation */
    uint64_t sealed_term, sealed_epoch; /* 0: not sealed */
    shard_log log;
    shard_copy copy[SHARD_COPIES_MAX];
    uint32_t n_copies, n_backups, streams;
    uint64_t open_to; /* acknowledged by every backup */
    shard_parked *parked;
    bool is_settling;

    uint64_t stream,
        mark_epoch; /* on a copy: the stream it follows; the epoch its primary is sealed for */
    uint64_t mark_index;
    uint32_t primary_peer; /* sender of LOG; SHARD_NONE */
    uint32_t early_peer;   /* the same, for an epoch that has not come yet */
    uint64_t early_epoch, early_from;
    bool is_whole, owes_ack, has_gap;
    uint32_t n_unfilled;
    uint64_t settled_epoch;

    bool has_failed, is_eager, has_handlers, has_fresh; /* has_fresh: some partition is_fresh */
    uint64_t seed;                                      /* of the job */

    uint32_t n_chunks, n_partitions, n_trained;
    shard_chunk *chunk;
    shard_partition *partition;
    shard_group *group;
    uint32_t *index_of;        /* [plan chunks]     number -> index here, SHARD_NONE */
    uint32_t *partition_index; /* [plan partitions] likewise */
    uint64_t *incarnation;     /* [world_size] */
    int32_t *node;             /* [world_size] */
    uint32_t *peer_of;         /* [world_size] latest peer of each rank; SHARD_NONE */
    int32_t *missing;          /* [world_size] scratch */
    uint64_t *parked_bytes;    /* [world_size + 1] that wait for each rank; for others */

    shard_pool pool;
    offload *offload; /* NULL: everything is in memory */
    struct {
        buf *seen; /* by the latest reader */
    } * look;
    recycler *recycler; /* for values and slots copied for a snapshot */
    shard_kept *spare_kept;
    optim_span *span; /* scratch for whole-tensor rules */
    double *scratch;
    shard_outbox *outbox;
    uint32_t n_outboxes, last_outbox;
    size_t outboxes_capacity;
    shard_columns columns, refused;
    shard_refusals refusals;
    shard_open_capture captures[SHARD_CUTS_MAX];
    struct shard_states *states; /* of the newest steps; shard_states.c */
    struct {                     /* shard_scalars.c */
        uint32_t chunk;          /* the chunk they come with; SHARD_NONE: another shard sums them */
        wire_scalars *newest;    /* [world_size] latest of each rank, if no decision closes it */
        wire_scalars sum;        /* of the newest round */
    } scalars;
    uint64_t ended, skipped; /* steps since first_step */
    struct {                 /* for the counters */
        uint64_t step,
            begun_ns; /* the newest step with a message, and when it came; begun_ns 0: none */
        uint64_t lag_entries, lag_bytes; /* as last reported */
    } watch;
};

/* The message being handled, and one of its chunks. */
typedef struct {
    uint32_t peer;
    const wire_data *d;
    buf *payload;
    const uint8_t *data; /* this chunk's bytes */
    const rows
        *rows; /* the same, and their size and number, of a part of a table; NULL: a tensor's */
    const rows_call *call; /* of a request to a handler */
    size_t size;
    uint64_t seq;
} shard_arrival;

static inline bool shard_is_part(const shard_chunk *k)
{
    return k->table != NULL || k->handler != NULL;
}

static inline const char *shard_tensor_name(const shard *s, const shard_chunk *k)
{
    return s->setup.model->tensor[k->tensor].name;
}

/* A chunk of the plan; NULL: not here. */
static inline shard_chunk *shard_find(const shard *s, uint32_t number)
{
    const bool is_here = number < s->setup.plan->n_chunks && s->index_of[number] != SHARD_NONE;
    return is_here ? &s->chunk[s->index_of[number]] : NULL;
}

/* Of chunk i of a message. */
static inline uint64_t shard_seq(const wire_data *d, uint32_t i)
{
    return d->seq != NULL ? d->seq[i] : d->step;
}

static inline bool shard_is_sealed(const shard *s)
{
    return s->sealed_epoch != 0;
}

/* Reported once to the server; then all messages are ignored. */
static inline void shard_fail(shard *s, const pen_error *error)
{
    if (s->has_failed) return;
    s->has_failed = true;
    s->outside.report(s->outside.user, error);
}

/* The same, returns false. */
static inline bool shard_no_memory(shard *s)
{
    pen_error error;
    why_set(&error, PEN_NO_MEMORY,
            "a shard of %u chunks ran out of memory; give the job more servers or memory",
            s->n_chunks);
    why_culprit(&error, PEN_SERVER, -1, -1, NULL);
    shard_fail(s, &error);
    return false;
}

/* shard_states.c: workers' bytes that belong to a snapshot. */
typedef struct shard_states shard_states;
void shard_states_take(shard *s, const wire_data *d);     /* those in a push */
void shard_states_give(shard *s, shard_capture *capture); /* those of its step */
void shard_states_fini(shard *s);

/* shard_scalars.c: program scalars summed over a step. */
bool shard_scalars_init(shard *s); /* false: no memory */
void shard_scalars_fini(shard *s);
bool shard_scalars_are_of(const shard *s, const shard_chunk *k);
/* A push of the chunk was taken; its round was closed, or its push applied; scalars from the primary. */
void shard_scalars_take(shard *s, const shard_chunk *k, int32_t rank, const wire_inputs *inputs);
void shard_scalars_close(shard *s, const shard_chunk *k);
void shard_scalars_follow(shard *s, const shard_chunk *k, const wire_scalars *sum);
/* Adds the scalars of a VALUES about these chunks: number of records, 0 or 1. */
uint32_t shard_scalars_notify(const shard *s, const shard_line *line, uint32_t n, wire_vote *vote);

/* shard_install.c */
void shard_settle(shard *s, int64_t step, const wire_decision *decision); /* NULL: none came */
void shard_restart(shard *s); /* drops everything staged */
bool shard_join_listed(shard *s, const uint64_t *ranks, uint32_t n);

/* shard_log.c */
bool shard_is_logging(const shard *s);
/* Appends an entry; payload is OWNED by the callee, NULL: none.  only: see shard_entry. */
void shard_log_append(shard *s, const wire_entry *e, int32_t only, buf *payload);
/* The effects of the last entry were applied. */
void shard_log_applied(shard *s);
void shard_log_changed(shard *s, shard_chunk *k); /* adds its values to the digest */
void shard_log_send(shard *s);
bool shard_log_send_to(shard *s, shard_copy *copy); /* false: its queue is full */
void shard_log_mark(shard *s);                      /* nothing follows before the next epoch */
void shard_log_trim(shard *s);
void shard_log_notify_lag(shard *s); /* counts entries that copies have not acknowledged */
void shard_log_fini(shard *s);
shard_entry *shard_log_at(shard *s, uint64_t index); /* NULL: dropped, or not appended yet */
/* Log entries for the primary's own actions. */
void shard_log_first(shard *s, shard_chunk *k);
void shard_log_sum(shard *s, shard_chunk *k, int32_t only);
void shard_log_prepared(shard *s, uint32_t partition, int32_t only);
void shard_log_commit(shard *s, uint32_t partition, uint64_t step, const wire_decision *decision);
void shard_log_update(shard *s, shard_chunk *k, uint64_t round, const wire_inputs *inputs);
void shard_log_apply(shard *s, shard_chunk *k, int32_t rank, uint64_t seq,
                     const wire_inputs *inputs, const void *data, size_t size, buf *holder);
void shard_log_rows(shard *s, shard_chunk *k, uint64_t round, const wire_inputs *inputs,
                    double weight_sum, buf *sum);

/* shard_gate.c */
void shard_gate_open(shard *s);   /* backups have acknowledged more */
void shard_gate_forget(shard *s); /* drops all waiting messages */
void shard_gate_forget_peer(shard *s, uint32_t peer);

/* shard_fill.c.  only: see shard_entry. */
void shard_fill_partition(shard *s, int32_t only, uint32_t index);
void shard_fill_array(shard *s, int32_t only, shard_chunk *k, uint32_t array, bool is_last);
void shard_fill_stream(shard *s, shard_copy *copy, bool is_fresh); /* starts after the log */
void shard_fill_begin(shard *s, shard_copy *copy);
void shard_fill_go_on(shard *s, shard_copy *copy);

/* shard_copies.c */
void shard_copies_heard(shard *s, const wire_data *d); /* LOGGED */

/* shard_follow.c */
void shard_follow_receive(shard *s, uint32_t peer, const wire_data *d, buf *payload);
void shard_follow_acknowledge(shard *s);

/* shard_push.c */
void shard_receive_push(shard *s, uint32_t peer, const wire_data *d, buf *payload);
void shard_receive_init(shard *s, uint32_t peer, const wire_data *d, buf *payload);

/* The checks of a push.  shard_is_intact(), shard_is_admitted(): false: refused. */
pen_status shard_check_inputs(const shard *s, const wire_data *d, pen_error *why);
bool shard_is_intact(shard *s, uint32_t peer, const wire_data *d, uint32_t i, const uint8_t *data,
                     size_t size);
bool shard_is_admitted(shard *s, const shard_arrival *in, const shard_chunk *k, const void *data,
                       uint64_t count);
void shard_report_mismatch(shard *s, shard_core_actions actions, const wire_data *d);

/* table/shard_table.c: parts of tables.  A chunk without a table is not for it. */
pen_status shard_table_new(shard *s, shard_chunk *k, pen_error *why);
void shard_table_free(shard_chunk *k);
void shard_table_drop_staged(shard_chunk *k);
row_store *shard_table_rows(const shard_chunk *k);
/* Keeps the keys of a question that this message asks and the core does not answer now. */
void shard_table_ask(shard *s, shard_chunk *k, const shard_arrival *in);
pen_status shard_table_read(const shard_chunk *k, const shard_arrival *in, rows *r, pen_error *why);
/* The core's verbs. */
void shard_table_stage(shard *s, shard_chunk *k, const shard_core_action *a,
                       const shard_arrival *in);
void shard_table_update(shard *s, shard_chunk *k, const shard_core_action *a,
                        const shard_arrival *in);
void shard_table_serve(shard *s, shard_chunk *k, const shard_core_action *a,
                       const shard_arrival *in);
/* UPDATE and APPLY of the primary's log; false: it does not fit. */
bool shard_table_follow(shard *s, shard_chunk *k, const wire_entry *e, const void *data);

/* handler/shard_handler.c: parts of tables that have a handler. */
pen_status shard_handler_new(shard *s, shard_chunk *k, pen_error *why);
void shard_handler_request(shard *s, shard_chunk *k, const shard_core_action *a,
                           const shard_arrival *in);
void shard_handler_serve(shard *s, const shard_chunk *k, const shard_core_action *a);
bool shard_handlers_can_move(const shard *s);
void shard_handlers_hand_over(shard *s); /* before it is sealed: into the log */
bool shard_handler_follow(shard *s, shard_chunk *k, const wire_entry *e, const void *data);
void shard_handlers_check(shard *s, uint64_t epoch); /* a copy becomes the primary */
void shard_handler_capture(shard_capture_chunk *to, const shard_chunk *k);

/* table/shard_rows.c: PUSH and PULL of parts of tables. */
void shard_receive_rows(shard *s, uint32_t peer, const wire_data *d, buf *payload);

/* shard_slots.c: a PULL with sizes about a chunk of a tensor. */
void shard_slots_receive(shard *s, const shard_arrival *in, shard_chunk *k);

/* shard_pull.c */
void shard_receive_pull(shard *s, uint32_t peer, const wire_data *d);
void shard_receive_inquiry(shard *s, uint32_t peer, const wire_data *d);

/* shard_act.c */
void shard_act(shard *s, shard_core_actions actions, const shard_arrival *arrival);
void shard_update_with_mean(shard *s, shard_chunk *k, const wire_inputs *inputs);
void shard_update_with_one(shard *s, shard_chunk *k, const wire_inputs *inputs, const void *data);

/* shard_sum.c.  One rank's contribution; holder: owner of data, kept while the bytes are needed; NULL: copies them. */
typedef struct {
    int32_t rank;
    double weight;
    pen_dtype dtype; /* shard_push_dtype() */
    const void *data;
    buf *holder;
} shard_part;
/* The type of a push's gradients. */
pen_dtype shard_push_dtype(const shard *s, const shard_chunk *k, const wire_inputs *inputs);
void shard_fold(shard *s, shard_chunk *k, const shard_part *part);
/* The sum of the node of `rank` is complete: adds it to those before.  The next shard_fold() begins another node's. */
void shard_fold_node(shard *s, shard_chunk *k, int32_t rank);
void shard_fold_kept(shard *s, shard_chunk *k, int32_t rank);
void shard_keep(shard *s, shard_chunk *k, const shard_part *part);
void shard_drop_sum(shard *s, shard_chunk *k);
void shard_drop_kept(shard *s, shard_chunk *k);
void shard_drop_staged(shard *s, shard_chunk *k); /* both */
/* NULL: no memory.  Free with shard_drop_sum(). */
const float *shard_as_f32(shard *s, shard_chunk *k, const void *data);

/* shard_chunk.c */
bool shard_chunk_allocate(shard *s, shard_chunk *k);
void shard_chunk_free(shard_chunk *k);
void shard_chunk_first_slots(shard *s, shard_chunk *k);
bool shard_chunk_make_writable(shard *s, shard_chunk *k);
/* Like shard_chunk_make_writable(), for an update that walks the chunk from front to back: values and slots with
 * other holders get new memory, and *from holds what must be copied, range by range, before it is written. */
typedef struct {
    buf *values, *slot[OPTIM_SLOTS_MAX]; /* OWNED; NULL: nothing to copy */
} shard_chunk_origin;
bool shard_chunk_renew(shard *s, shard_chunk *k, shard_chunk_origin *from);
void shard_chunk_copy_range(shard_chunk *k, const shard_chunk_origin *from, uint64_t at,
                            uint64_t n);
void shard_chunk_origin_release(shard_chunk_origin *from);
void shard_chunk_changed(shard_chunk *k);
/* One reference, OWNED by the caller; its checksum is in k->crc.  NULL: failed. */
buf *shard_chunk_wire(shard *s, shard_chunk *k);

/* shard_offload.c; array 0 is a chunk's values, 1 + i its slot i.  False, NULL: failed. */
pen_status shard_offload_open(shard *s, pen_error *why); /* before arrays are allocated */
void shard_offload_close(shard *s);
void shard_offload_ahead(shard *s, const shard_chunk *k); /* needed soon */
bool shard_offload_first_in(shard *s, shard_chunk *k);    /* loads it to receive first values */
bool shard_offload_in(shard *s, shard_chunk *k);          /* loads all arrays for a change */
void shard_offload_out(shard *s, shard_chunk *k);         /* stores all arrays after a change */
pen_status shard_offload_bring_in(shard *s, shard_chunk *k, pen_error *why); /* with a status */
pen_status shard_offload_bring_out(shard *s, shard_chunk *k, pen_error *why);
buf *shard_offload_array(shard *s, shard_chunk *k,
                         uint32_t array);             /* to read; OWNED by the caller */
uint32_t shard_offload_crc(shard *s, shard_chunk *k); /* of its values as float32 */
bool shard_offload_replace(shard *s, shard_chunk *k, uint32_t array, const void *numbers);
offload_hold *shard_offload_hold(shard *s, const shard_chunk *k,
                                 uint32_t array); /* NULL: in memory */
const float *shard_offload_look(const shard *s, const shard_chunk *k, uint32_t array);

/* shard_capture.c */
void shard_capture_take(shard *s, shard_chunk *k, uint64_t step);
void shard_capture_fini(shard *s);

/* shard_reply.c */
void shard_serve(shard *s, const shard_core_action *a);
void shard_note(shard *s, shard_list_kind kind, const shard_core_action *a);
/* Sends the vote again, to one peer. */
void shard_send_prepared(shard *s, uint32_t partition, uint32_t peer, int32_t rank);
void shard_refuse(shard *s, uint32_t peer, const wire_data *d, pen_status status, const char *text);
void shard_refuse_chunk(shard *s, uint32_t peer, const wire_data *d, uint32_t number, uint64_t seq,
                        pen_status status, const char *reason);
void shard_refuse_flush(shard *s, uint32_t peer, const wire_data *d);
void shard_send(shard *s, uint32_t peer, int32_t rank, wire_data *d, buf *payload);
/* Room for the rows of one answer, to be filled before the next call.  NULL: no memory. */
uint8_t *shard_reply_rows(shard *s, const shard_core_action *a, size_t size);
/* Sends them: while the peer takes these, the next are read. */
void shard_reply_rows_flush(shard *s, uint32_t peer);
void shard_reply_flush(shard *s);
void shard_reply_forget_peer(shard *s, uint32_t peer);
void shard_reply_fini(shard *s);

#endif
