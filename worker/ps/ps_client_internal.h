/* ps_client_internal.h - the state of the ps client, shared by ps_client*.c only. */
#ifndef WORKER_PS_CLIENT_INTERNAL_H
#define WORKER_PS_CLIENT_INTERNAL_H

#include "proto/rows.h"
#include "worker/ps/ps_client.h"

#include <stdbool.h>

enum {
    PACK_BYTES      = 256 << 10, /* small chunks in one message */
    ALONE_BYTES     = 64 << 10,  /* a chunk of this size gets its own message */
    PACK_CHUNKS_MAX = 4096,
    CREDIT_BYTES    = 16 << 20,           /* unanswered large pushes on one lane */
    ROWS_WINDOW     = ROWS_IN_FLIGHT_MAX, /* operations of a part of a table in progress */
    PS_CLIENT_SLAB  = 256                 /* operations or requests allocated at a time */
};
#define NEVER UINT64_MAX
#define ROWS_PULL                                                                                  \
    (UINT64_C(1) << 63) /* in the number of a pull of rows; those of pushes are less */

typedef enum {
    OP_QUEUED, /* behind another operation on its chunk */
    OP_READY,  /* in its lane's outbox */
    OP_SENT,
    OP_RECEIVED, /* the shard has it and answers later */
    OP_PREPARED, /* its partition's vote has come (STEP_TWO_PHASE) */
    OP_BUFFERED, /* its values have come, the step is not closed yet */
    OP_DONE      /* answered; the transport may still read its bytes */
} op_state;

typedef struct inputs { /* of a push; shared by operations */
    uint32_t refs;
    wire_inputs wire;
    double rate[];
} inputs;

typedef struct op {
    ps_client_request *request;
    struct op *chunk_next;            /* queue of its chunk */
    struct op *out_next;              /* outbox of its lane */
    struct op *live_prev, *live_next; /* all operations that are not DONE */
    struct op *request_next;          /* all operations of its request */
    inputs *in;
    const void *from;
    void *to;
    uint64_t seq, due_ms;
    uint32_t chunk, tries, holds;
    uint32_t place;   /* among the operations of its chunk that have started */
    int32_t priority; /* higher goes first */
    uint8_t verb, state;
    bool pulling;     /* PS_STEP: decided, waits for values */
    bool is_numbered; /* rows: seq is set */
    bool is_returned; /* its shard has the bytes; `from` belongs to the program again */
    buf *body;        /* OP_BUFFERED */
    size_t body_at;
    uint32_t crc, staleness;
    uint32_t rows_bytes; /* of `from`, for a part of a table; 0: a tensor's chunk */
    uint64_t version;
    size_t credit; /* bytes it uses of its lane's credit */
} op;

struct ps_client_request {
    ps_client_request *prev, *next;
    void *token;
    op *ops;
    uint64_t opened_ms, deadline_ms, ask_ms;
    uint32_t left, holds; /* left: operations, and idle shards to notify */
    int32_t priority;     /* of its operations; 0: that of their tensors */
    bool closed, is_step, asked, warned, ending;
    pen_status status;
    pen_error *why;
    ps_client_result result;
    struct { /* the newest WAITING message */
        bool known;
        uint64_t step;
        char tensor[128];
        uint32_t n;
        int32_t rank[32];
    } waiting;
};

typedef struct {
    op *head, *tail;   /* those that have started come first */
    uint32_t started;  /* operations so far: not OP_QUEUED */
    uint64_t next_seq; /* STEP_EAGER, STEP_ASYNC */
    bool unknown;      /* a push ended without an answer: the next number is unknown */
} chunk_queue;

typedef struct {
    op *head, *tail; /* outbox */
    bool up;
    uint64_t blocked_until_ms;
    size_t spent; /* of CREDIT_BYTES */
} lane_state;

/* A shard that no push reaches, because it has no trained chunks.  A PUSH without chunks announces a snapshot to it. */
typedef struct {
    uint32_t shard, tries;
    bool is_told; /* also when no snapshot is wanted */
    bool is_due;
    uint64_t due_ms;
} idle_shard;

typedef struct {
    ps_client_request *request; /* NULL: none open */
    uint64_t index;
    inputs *in;
    bool closing, decided, told; /* told: the program knows the verdict */
    bool is_final;               /* nothing can undo it */
    uint32_t n_free;             /* unanswered operations on chunks that no decision closes */
    uint32_t n_votes, asks;
    uint64_t ask_ms;   /* for votes of partitions that other ranks of our node push */
    wire_vote *vote;   /* [n_partitions] */
    double **sums;     /* [n_partitions] */
    uint32_t *awaited; /* [n_tensors] operations whose values have not been stored */
    bool *has;         /* [n_partitions] */
    wire_decision decision;
    ps_client_outcome outcome; /* once decided */
    wire_scalars scalars;      /* of all ranks, once known */
    void *token;
} step_state;

typedef struct {   /* values that stay on the shards, gradients that are given back early */
    bool has;      /* a step was decided */
    uint64_t step; /* the newest decided step, as PS_FETCH sends it */
    wire_decision decision;
    uint64_t *hash;  /* [n_partitions] of its votes */
    bool *tells;     /* [n_lanes] the decision must be sent to the shard on this lane */
    uint32_t *reads; /* [n_tensors] pushes of the open step whose bytes may still be read */
} away_state;

struct slab { /* also a free item of one */
    struct slab *next;
};

struct ps_client {
    ps_client_setup setup;
    ps_client_actions act;
    void *user;
    void *arrays;        /* one block for all arrays of fixed size, below and in the step */
    chunk_queue *chunk;  /* [n_chunks] */
    lane_state *lane;    /* [n_shards * lanes] */
    uint8_t *push_dtype; /* [n_tensors] pen_dtype */
    uint8_t *window;     /* [n_tensors] operations of a chunk that may be in progress */
    bool sums_are_wide;  /* sums of nodes are float32 instead */
    uint32_t n_lanes;
    uint32_t scalars_chunk; /* its pushes carry the program's scalars; n_chunks: none is pushed */
    uint32_t n_decided;     /* partitions that a decision closes; 0: no step is decided */
    bool *is_trained;       /* [n_shards] has a trained chunk */
    idle_shard *idle;       /* [n_idle], room for n_shards */
    uint32_t n_idle;
    op live; /* ring */
    ps_client_request *requests;
    uint64_t n_requests;
    inputs *plain;
    step_state step;
    away_state away;
    int64_t applied;
    uint64_t tick_ms, draws, pulls;
    uint64_t *worker; /* [n_worker] incarnations of the newest view that had them */
    uint32_t n_worker;
    bool failed;
    bool is_new_to_shards; /* a shard may not know yet where to send votes */
    pen_error why;
    struct slab *free_ops, *free_requests, *slabs;
    uint32_t *column_chunk, *column_size, *partition, *stamp;
    uint64_t *column_seq, *vote_hash, row_pulls;
    ps_client_piece *piece;
    uint32_t stamp_now;
};

/* ---- chunks and operations ------------------------------------------------------------------- */
static inline const plan_chunk *ps_client_chunk(const ps_client *self, uint32_t chunk)
{
    return &self->setup.plan->chunk[chunk];
}

static inline const wire_tensor *ps_client_tensor(const ps_client *self, uint32_t chunk)
{
    return &self->setup.model->tensor[ps_client_chunk(self, chunk)->tensor];
}

static inline uint32_t ps_client_shard(const ps_client *self, uint32_t chunk)
{
    return self->setup.shard[ps_client_chunk(self, chunk)->partition];
}

static inline lane_state *ps_client_lane(ps_client *self, uint32_t chunk)
{
    return &self->lane[ps_client_shard(self, chunk) * self->setup.lanes +
                       chunk % self->setup.lanes];
}

/* Operations on its chunk that may have started since the oldest in progress, with o. */
static inline uint32_t ps_client_window(const ps_client *self, const op *o)
{
    return o->rows_bytes > 0 ? self->window[ps_client_chunk(self, o->chunk)->tensor] : 1;
}

/* So a shard that remembers its answers to that many numbers forgets none that is asked for again. */
static inline bool ps_client_has_room(const ps_client *self, const chunk_queue *queue, const op *o)
{
    return queue->head->state == OP_QUEUED ||
           queue->started - queue->head->place < ps_client_window(self, o);
}

static inline size_t ps_client_value_size(const ps_client *self, uint32_t chunk)
{
    return ps_client_chunk(self, chunk)->count *
           plan_dtype_bytes(ps_client_tensor(self, chunk)->dtype);
}

/* For an operation that pushes or belongs to a step. */
static inline ps_client_rule ps_client_rule_of(const ps_client *self, const op *o)
{
    return ps_client_chunk(self, o->chunk)->blocks > 0 ? self->setup.rule : STEP_ASYNC;
}

/* The operation belongs to a step and a decision closes it. */
static inline bool ps_client_is_decided(const ps_client *self, const op *o)
{
    return o->verb == PS_STEP && ps_client_rule_of(self, o) == STEP_TWO_PHASE;
}

static inline bool ps_client_is_pushing(const op *o)
{
    const ps_client_verb verb = (ps_client_verb)o->verb;
    return verb == PS_INIT || verb == PS_PUSH || verb == PS_PUSH_PULL ||
           (verb == PS_STEP && !o->pulling);
}

/* An empty message to that shard. */
static inline wire_data ps_client_message(const ps_client *self, wire_kind kind, uint32_t shard)
{
    return (wire_data){.kind  = kind,
                       .shard = shard,
                       .term  = self->setup.term,
                       .epoch = self->setup.epoch,
                       .from  = self->setup.from,
                       .to    = self->setup.to[shard],
                       .rank  = self->setup.rank,
                       .text  = ""};
}

static inline void ps_client_due_at(ps_client *self, op *o, uint64_t due_ms)
{
    o->due_ms = due_ms;
    if (due_ms < self->tick_ms) self->tick_ms = due_ms;
}

/* ---- the files: each calls only those listed above it ---------------------------------------- */
/* ps_client_idle.c */
bool ps_client_idle_find(ps_client *self); /* false: no memory */
void ps_client_idle_open(ps_client *self); /* the open step asks for a snapshot */
void ps_client_idle_flush(ps_client *self, uint64_t now_ms);
/* True: the step waits for one shard less. */
bool ps_client_idle_receipt(ps_client *self, uint32_t shard, uint64_t step);
void ps_client_idle_tick(ps_client *self, uint64_t now_ms);
void ps_client_idle_up(ps_client *self, uint32_t shard);
void ps_client_idle_again(ps_client *self);  /* servers changed: finds and notifies them again */
void ps_client_idle_forget(ps_client *self); /* the step ends early */
const idle_shard *ps_client_idle_waited_for(const ps_client *self); /* NULL: all have answered */

/* ps_client_away.c */
bool ps_client_away_init(ps_client *self); /* false: no memory */
void ps_client_away_fini(ps_client *self);
void ps_client_away_let_go(ps_client *self, op *o); /* call when o's state or holds changed */
void ps_client_away_decided(ps_client *self);
void ps_client_away_notify(ps_client *self, uint32_t shard); /* with the next flush */
void ps_client_away_flush(ps_client *self);
/* Writes the step whose values a PS_FETCH wants; false: none was decided, so it is a plain pull. */
bool ps_client_away_ask(ps_client *self, wire_data *d);
/* The refusal is outdated. */
bool ps_client_away_is_over(const ps_client *self, const wire_data *d);

/* ps_client_send.c */
static inline void ps_client_free(struct slab **free_items, void *item)
{
    ((struct slab *)item)->next = *free_items;
    *free_items                 = item;
}
/* A zeroed item of a free list that grows by slabs: a steady state allocates nothing.  NULL: no memory. */
void *ps_client_new(ps_client *self, struct slab **free_items, size_t size);
void ps_client_send_later(ps_client *self, op *o); /* into the outbox */
/* Removes o from the outbox, if queued, and returns its credit: its bytes have arrived or never will. */
void ps_client_unqueue(ps_client *self, op *o);
/* Keeps the first error of r; the request ends when it is closed. */
void ps_client_refuse(ps_client_request *r, const pen_error *why);
/* Refuses pushes of this tensor after one ended without an answer. */
void ps_client_refuse_unknown(const ps_client *self, ps_client_request *r, uint32_t tensor);

/* ps_client.c */
void ps_client_finish(ps_client *self, op *o); /* answered */
void ps_client_note_result(op *o);             /* into its request's result */
void ps_client_take_values(ps_client *self, op *o, const void *data, size_t size, uint64_t now_ms);
void ps_client_complete_if_over(ps_client *self, ps_client_request *r);
/* Ends r early; why NULL: r was refused. */
void ps_client_end(ps_client *self, ps_client_request *r, const pen_error *why);
void ps_client_step_notify(ps_client *self); /* calls `decided` once there is a final verdict */
/* True: the workers changed. */
bool ps_client_know_workers(ps_client *self, const uint64_t *worker, uint32_t n);
inputs *ps_client_inputs_new(const wire_inputs *in);
void ps_client_inputs_release(inputs *in);

/* ps_client_wait.c */
void ps_client_note_waiting(ps_client *self, const wire_data *d, uint64_t now_ms);
void ps_client_ask_for_votes(ps_client *self, uint64_t due_ms); /* once the step is closing */

/* ps_client_step.c */
void ps_client_step_vote(ps_client *self, uint32_t shard, const wire_data *d, const buf *body);
bool ps_client_step_reopen(ps_client *self, uint64_t now_ms); /* false: a shard has committed it */

#endif
