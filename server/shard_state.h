/* shard_state.h - the inside of a shard, shared by shard*.c only. */
#ifndef SERVER_SHARD_STATE_H
#define SERVER_SHARD_STATE_H

#include "server/core.h"
#include "server/shard.h"

#include "common/why.h"

enum {
    SHARD_SMALL_BYTES = 64 << 10,  /* replies below this are packed together        */
    SHARD_BATCH_BYTES = 256 << 10, /* one packed reply                              */
    SHARD_NONE        = UINT32_MAX,
    SHARD_CUTS_MAX    = 2 /* snapshots that may be taken at one time        */
};

/* ---- accumulators: shard_pool.c -------------------------------------------------------------- */
enum { SHARD_POOL_CLASSES = 12 + 257 };

typedef struct shard_spare shard_spare;
typedef struct {
    shard_spare *spare[SHARD_POOL_CLASSES];
} shard_pool;

float *shard_pool_take(shard_pool *pool, size_t count); /* NULL: no memory */
void shard_pool_give(shard_pool *pool, float *numbers, size_t count);
void shard_pool_fini(shard_pool *pool);

/* ---- chunks ---------------------------------------------------------------------------------- */
typedef struct shard_kept { /* a contribution that waits for its turn */
    struct shard_kept *next;
    int32_t rank;
    double weight;
    const void *data;
    buf *holder;
} shard_kept;

typedef struct {
    uint32_t number, tensor, group; /* number: in the plan */
    uint64_t start, count;
    uint32_t first_block, blocks; /* place of its sums of squares in its partition */
    pen_dtype dtype, push_dtype;  /* of values and of gradients as they travel     */
    bool trained, decided;        /* decided: its rule averages                    */

    buf *values, *slot[OPTIM_SLOTS_MAX]; /* float32 [count] each */
    buf *encoded; /* values in dtype, once somebody asked for them; NULL when dtype is f32 */
    uint32_t crc; /* of what travels, if has_crc */
    bool has_crc;
    uint64_t version;

    /* The open round's sum: NULL, or in the message in `holder`, or in `accumulator`. */
    const float *sum;
    buf *holder;
    float *accumulator;
    int32_t base_rank, bad_rank; /* bad_rank: who made the sum not finite; -1 */
    double weight_sum;
    shard_kept *kept;
} shard_chunk;

typedef struct {
    uint32_t number; /* in the plan */
    double *squares; /* [blocks]; 0 for chunks that no decision closes */
    uint32_t blocks;
    bool is_fresh; /* prepared in this turn: everybody is told at the flush */
    wire_record record;
    uint64_t step;
} shard_partition;

typedef struct {
    const optim_ops *optim;
    optim_hyper hyper;
} shard_group;

/* ---- replies: shard_reply.c ------------------------------------------------------------------ */
typedef struct {
    uint32_t chunk, staleness; /* chunk: within the shard */
    uint64_t seq;
    bool repeated;
} shard_line;

typedef enum {
    SHARD_VALUES,
    SHARD_FIRST_VALUES,
    SHARD_APPLIED,
    SHARD_RECEIPT,
    SHARD_FIRST_RECEIPT,
    SHARD_LISTS
} shard_list_kind;

typedef struct {
    shard_line *line;
    uint32_t n, capacity;
    size_t bytes; /* of payload */
} shard_list;

typedef struct { /* what one peer is to get */
    uint32_t peer;
    int32_t rank;
    bool is_dirty;
    shard_list list[SHARD_LISTS];
} shard_outbox;

typedef struct { /* columns of one message, reused */
    uint32_t capacity;
    uint32_t *chunk, *crc, *staleness;
    uint64_t *seq, *version;
} shard_columns;

typedef struct { /* refusals of one message, gathered while they have the same reason */
    pen_status status;
    const char *reason;
    uint32_t n;
} shard_refusals;

typedef struct {
    shard_cut *cut;
    uint32_t left; /* trained chunks that are not in it yet */
} shard_open_cut;

struct shard {
    shard_options options;
    shard_outside outside;
    shard_setup setup;
    server_core *core;
    uint64_t term, epoch;
    bool has_failed, is_eager, has_fresh; /* has_fresh: some partition is_fresh */

    uint32_t n_chunks, n_partitions, n_trained;
    shard_chunk *chunk;
    shard_partition *partition;
    shard_group *group;
    uint32_t *index_of;        /* [plan chunks]     number -> index here, SHARD_NONE */
    uint32_t *partition_index; /* [plan partitions] likewise                         */
    uint64_t *incarnation;     /* [world_size] */
    uint32_t *peer_of;         /* [world_size] where a rank was heard last; SHARD_NONE */
    int32_t *missing;          /* [world_size] scratch */

    shard_pool pool;
    shard_kept *spare_kept;
    optim_span *span; /* scratch for whole-tensor rules */
    double *scratch;
    shard_outbox *outbox;
    uint32_t n_outboxes, outboxes_capacity, last_outbox;
    shard_columns columns, refused;
    shard_refusals refusals;
    shard_open_cut cuts[SHARD_CUTS_MAX];
    uint64_t ended, skipped; /* steps since first_step */
};

/* What is being handled: one message, and one chunk of it. */
typedef struct {
    uint32_t peer;
    const wire_data *d;
    buf *payload;
    const uint8_t *data; /* this chunk's bytes */
} shard_arrival;

static inline const char *shard_tensor_name(const shard *s, const shard_chunk *k)
{
    return s->setup.model->tensor[k->tensor].name;
}

/* shard.c */
void shard_fail(shard *s, const pen_error *error); /* reports; then no message is taken any more */
bool shard_no_memory(shard *s);                    /* the same, returns false */

/* shard_push.c */
void shard_receive_push(shard *s, uint32_t peer, const wire_data *d, buf *payload);
void shard_receive_init(shard *s, uint32_t peer, const wire_data *d, buf *payload);

/* shard_pull.c */
void shard_receive_pull(shard *s, uint32_t peer, const wire_data *d);
void shard_receive_inquiry(shard *s, uint32_t peer, const wire_data *d);

/* shard_act.c */
void shard_act(shard *s, server_core_actions actions, const shard_arrival *arrival);
void shard_commit(shard *s, uint32_t partition, uint64_t step, const wire_decision *decision,
                  uint64_t cut);

/* shard_sum.c */
void shard_fold(shard *s, shard_chunk *k, int32_t rank, double weight, const void *data,
                buf *holder);
void shard_fold_kept(shard *s, shard_chunk *k, int32_t rank);
void shard_keep(shard *s, shard_chunk *k, int32_t rank, double weight, const void *data,
                buf *holder);
void shard_drop_sum(shard *s, shard_chunk *k);
void shard_drop_kept(shard *s, shard_chunk *k);
/* NULL: no memory.  Given back with shard_drop_sum(). */
const float *shard_as_f32(shard *s, shard_chunk *k, const void *data);

/* shard_chunk.c */
bool shard_chunk_allocate(shard_chunk *k, int slots);
void shard_chunk_free(shard_chunk *k);
void shard_chunk_first_slots(shard *s, shard_chunk *k);
bool shard_chunk_make_writable(shard *s, shard_chunk *k);
void shard_chunk_changed(shard_chunk *k);
/* BORROWED; its checksum is in k->crc.  NULL: no memory. */
buf *shard_chunk_wire(shard *s, shard_chunk *k);

/* shard_cut.c */
void shard_cut_take(shard *s, shard_chunk *k, uint64_t step);
void shard_cut_fini(shard *s);

/* shard_reply.c */
void shard_serve(shard *s, const server_core_action *a);
void shard_note(shard *s, shard_list_kind kind, const server_core_action *a);
/* Once more, to one. */
void shard_send_prepared(shard *s, uint32_t partition, uint32_t peer, int32_t rank);
void shard_refuse(shard *s, uint32_t peer, const wire_data *d, pen_status status, const char *text);
void shard_refuse_chunk(shard *s, uint32_t peer, const wire_data *d, uint32_t number, uint64_t seq,
                        pen_status status, const char *reason);
void shard_refuse_flush(shard *s, uint32_t peer, const wire_data *d);
void shard_send(shard *s, uint32_t peer, int32_t rank, wire_data *d, buf *payload);
void shard_reply_fini(shard *s);

#endif
