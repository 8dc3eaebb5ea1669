/* exchange_internal.h - the state of the exchange, shared by exchange*.c only. */
#ifndef WORKER_EXCHANGE_INTERNAL_H
#define WORKER_EXCHANGE_INTERNAL_H

#include "worker/ps/exchange.h"

#include <stdbool.h>

enum {
    PACK_BYTES      = 256 << 10, /* of small chunks in one message         */
    ALONE_BYTES     = 64 << 10,  /* a chunk of this size travels by itself */
    PACK_CHUNKS_MAX = 4096,
    CREDIT_BYTES    = 16 << 20, /* of large pushes on one lane that no shard has answered */
    EXCHANGE_SLAB   = 256       /* operations or requests that are made at a time */
};
#define NEVER UINT64_MAX

typedef enum {
    OP_QUEUED, /* behind another operation on its chunk          */
    OP_READY,  /* in its lane's outbox                           */
    OP_SENT,
    OP_RECEIVED, /* the shard has it, the answer is to come        */
    OP_PREPARED, /* its partition's record is in (EXCHANGE_DECIDE)     */
    OP_HELD,     /* its values are here, the step is not closed yet */
    OP_DONE      /* answered; the transport may still read its bytes */
} op_state;

typedef struct inputs { /* what a push carries, shared by operations */
    uint32_t refs;
    wire_inputs wire;
    double rate[];
} inputs;

typedef struct op {
    exchange_request *request;
    struct op *chunk_next;            /* queue of its chunk          */
    struct op *out_next;              /* outbox of its lane          */
    struct op *live_prev, *live_next; /* all that are not DONE       */
    struct op *request_next;          /* all of its request          */
    inputs *in;
    const void *from;
    void *to;
    uint64_t seq, due_ms;
    uint32_t chunk, tries, holds;
    uint8_t verb, state;
    bool pulling;     /* EXCHANGE_STEP: decided, wants values */
    bool is_returned; /* its shard has the bytes, and `from` is the program's again */
    buf *body;        /* OP_HELD */
    size_t body_at;
    uint32_t crc, staleness;
    uint64_t version;
    size_t credit; /* bytes of its lane's credit that it uses */
} op;

struct exchange_request {
    exchange_request *prev, *next;
    void *token;
    op *ops;
    uint64_t opened_ms, deadline_ms, ask_ms;
    uint32_t left, holds; /* left: operations, and idle shards to be told */
    bool closed, is_step, asked, warned, ending;
    pen_status status;
    pen_error *why;
    exchange_result result;
    struct { /* newest WAITING */
        bool known;
        uint64_t step;
        char tensor[128];
        uint32_t n;
        int32_t rank[32];
    } waiting;
};

typedef struct {
    op *head, *tail;
    uint64_t next_seq; /* EAGER, FREE */
    bool unknown;      /* a push ended without an answer: nobody can say which number comes next */
} chunk_queue;

typedef struct {
    op *head, *tail; /* outbox */
    bool up;
    uint64_t blocked_until_ms;
    size_t spent; /* of CREDIT_BYTES */
} lane_state;

/* A shard that no push reaches, because none of its server's has trained chunks, and that is told
 * of a snapshot by a PUSH without chunks. */
typedef struct {
    uint32_t shard, tries;
    bool is_told; /* or there is nothing to tell */
    bool is_due;
    uint64_t due_ms;
} idle_shard;

typedef struct {
    exchange_request *request; /* NULL: none open */
    uint64_t index;
    inputs *in;
    bool closing, decided, told; /* told: the program knows the verdict */
    bool is_final;               /* nothing can undo it */
    uint32_t n_free;             /* operations on chunks that no decision closes, unanswered */
    uint32_t n_records, asks;
    uint64_t ask_ms;     /* for records of partitions that others of our node push */
    wire_record *record; /* [n_partitions] */
    double **sums;       /* [n_partitions] */
    bool *has;           /* [n_partitions] */
    wire_decision decision;
    exchange_outcome outcome; /* once decided */
    wire_scalars scalars;     /* of all ranks, once they are known */
    void *token;
} step_state;

typedef struct {   /* values that stay with the shards, and gradients that go there for good */
    bool has;      /* some step was decided: */
    uint64_t step; /* the newest one, and what EXCHANGE_FETCH says of it */
    wire_decision decision;
    uint64_t *hash;  /* [n_partitions] of its records */
    bool *tells;     /* [n_lanes] the shard is to be told of it there */
    uint32_t *reads; /* [n_tensors] pushes of the open step whose bytes may be read */
} away_state;

struct slab { /* or an item of one that is free */
    struct slab *next;
};

struct exchange {
    exchange_setup setup;
    exchange_actions act;
    void *user;
    void *arrays;        /* those below, and of the step, whose size never changes */
    chunk_queue *chunk;  /* [n_chunks] */
    lane_state *lane;    /* [n_shards * lanes] */
    uint8_t *push_dtype; /* [n_tensors] pen_dtype */
    uint32_t n_lanes;
    uint32_t scalars_chunk; /* whose pushes bring the program's numbers; n_chunks: none is pushed */
    uint32_t n_decided;     /* partitions that a decision closes; 0: no step is decided */
    bool *is_trained;       /* [n_shards] some chunk of it is */
    idle_shard *idle;       /* [n_idle], room for n_shards */
    uint32_t n_idle;
    op live; /* ring */
    exchange_request *requests;
    uint64_t n_requests;
    inputs *plain;
    step_state step;
    away_state away;
    int64_t applied;
    uint64_t tick_ms, draws, pulls;
    uint64_t *worker; /* [n_worker] incarnations, as in the newest view that had them */
    uint32_t n_worker;
    bool failed;
    pen_error why;
    struct slab *free_ops, *free_requests, *slabs;
    uint32_t *column_chunk, *partition, *stamp;
    uint64_t *column_seq, *record_hash;
    exchange_piece *piece;
    uint32_t stamp_now;
};

/* ---- what a chunk is, and what an operation on it does --------------------------------------- */
static inline const plan_chunk *exchange_chunk(const exchange *self, uint32_t chunk)
{
    return &self->setup.plan->chunk[chunk];
}

static inline const wire_tensor *exchange_tensor(const exchange *self, uint32_t chunk)
{
    return &self->setup.model->tensor[exchange_chunk(self, chunk)->tensor];
}

static inline uint32_t exchange_shard(const exchange *self, uint32_t chunk)
{
    return self->setup.shard[exchange_chunk(self, chunk)->partition];
}

static inline lane_state *exchange_lane(exchange *self, uint32_t chunk)
{
    return &self->lane[exchange_shard(self, chunk) * self->setup.lanes + chunk % self->setup.lanes];
}

static inline size_t exchange_value_size(const exchange *self, uint32_t chunk)
{
    return exchange_chunk(self, chunk)->count *
           plan_dtype_bytes(exchange_tensor(self, chunk)->dtype);
}

/* Of one that pushes or is a step's. */
static inline exchange_rule exchange_rule_of(const exchange *self, const op *o)
{
    return exchange_chunk(self, o->chunk)->blocks > 0 ? self->setup.rule : EXCHANGE_FREE;
}

/* Of a step that a decision closes. */
static inline bool exchange_is_decided(const exchange *self, const op *o)
{
    return o->verb == EXCHANGE_STEP && exchange_rule_of(self, o) == EXCHANGE_DECIDE;
}

static inline bool exchange_is_pushing(const op *o)
{
    const exchange_verb verb = (exchange_verb)o->verb;
    return verb == EXCHANGE_INIT || verb == EXCHANGE_PUSH || verb == EXCHANGE_PUSH_PULL ||
           (verb == EXCHANGE_STEP && !o->pulling);
}

/* To that shard, without contents. */
static inline wire_data exchange_message(const exchange *self, wire_kind kind, uint32_t shard)
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

static inline void exchange_due_at(exchange *self, op *o, uint64_t due_ms)
{
    o->due_ms = due_ms;
    if (due_ms < self->tick_ms) self->tick_ms = due_ms;
}

/* ---- the files, each calls those above it only ----------------------------------------------- */
/* exchange_idle.c */
bool exchange_idle_find(exchange *self); /* false: no memory */
void exchange_idle_open(exchange *self); /* the open step asks for a snapshot */
void exchange_idle_flush(exchange *self, uint64_t now_ms);
bool exchange_idle_receipt(exchange *self, uint32_t shard,
                           uint64_t step); /* true: the step waits for one less */
void exchange_idle_tick(exchange *self, uint64_t now_ms);
void exchange_idle_up(exchange *self, uint32_t shard);
void exchange_idle_again(exchange *self);  /* servers changed: who is idle, and has it heard? */
void exchange_idle_forget(exchange *self); /* the step ends early */
const idle_shard *exchange_idle_waited_for(const exchange *self); /* NULL: all have heard */

/* exchange_away.c */
bool exchange_away_init(exchange *self); /* false: no memory */
void exchange_away_fini(exchange *self);
void exchange_away_let_go(exchange *self, op *o); /* its state or holds changed */
void exchange_away_decided(exchange *self);
void exchange_away_tell(exchange *self, uint32_t shard); /* with the next flush */
void exchange_away_flush(exchange *self);
/* Which step's values an EXCHANGE_FETCH asks for; false: none was decided, and it is a plain pull. */
bool exchange_away_ask(exchange *self, wire_data *d);
bool exchange_away_is_over(const exchange *self,
                           const wire_data *d); /* a refusal that says nothing new */

/* exchange_send.c */
/* Zeroed, from a list of free ones, which grows by slabs: a steady state allocates nothing.  NULL: no memory. */
static inline void exchange_free(struct slab **free_items, void *item)
{
    ((struct slab *)item)->next = *free_items;
    *free_items                 = item;
}
void *exchange_new(exchange *self, struct slab **free_items, size_t size);
void exchange_send_later(exchange *self, op *o); /* into the outbox */
/* Out of the outbox, if it is there; its bytes have arrived, or never will, and use no credit of its lane. */
void exchange_unqueue(exchange *self, op *o);
/* Its first failure is r's; the request ends when it is closed. */
void exchange_refuse(exchange_request *r, const pen_error *why);
/* No push of it may follow one that ended without an answer. */
void exchange_refuse_unknown(const exchange *self, exchange_request *r, uint32_t tensor);

/* exchange.c */
void exchange_finish(exchange *self, op *o); /* answered */
void exchange_note_result(op *o);            /* in that of its request */
void exchange_take_values(exchange *self, op *o, const void *data, uint64_t now_ms);
void exchange_complete_if_over(exchange *self, exchange_request *r);
/* Ends it early; why NULL: it was refused. */
void exchange_end(exchange *self, exchange_request *r, const pen_error *why);
void exchange_step_tell(exchange *self); /* the verdict, if there is one; once */
bool exchange_know_workers(exchange *self, const uint64_t *worker,
                           uint32_t n); /* true: others than before */
inputs *exchange_inputs_new(const wire_inputs *in);
void exchange_inputs_release(inputs *in);

/* exchange_wait.c */
void exchange_note_waiting(exchange *self, const wire_data *d, uint64_t now_ms);
void exchange_ask_for_records(exchange *self, uint64_t due_ms); /* once the step is closing */

/* exchange_step.c */
void exchange_step_record(exchange *self, uint32_t shard, const wire_data *d, const buf *body);
bool exchange_step_reopen(exchange *self, uint64_t now_ms); /* false: it is committed somewhere */

#endif
