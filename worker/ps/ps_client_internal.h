/* ps_client_internal.h - the state of the ps client, shared by ps_client*.c only. */
#ifndef WORKER_PS_CLIENT_INTERNAL_H
#define WORKER_PS_CLIENT_INTERNAL_H

#include "worker/ps/ps_client.h"

#include <stdbool.h>

enum {
    PACK_BYTES      = 256 << 10, /* of small chunks in one message         */
    ALONE_BYTES     = 64 << 10,  /* a chunk of this size travels by itself */
    PACK_CHUNKS_MAX = 4096,
    CREDIT_BYTES    = 16 << 20, /* of large pushes on one lane that no shard has answered */
    PS_CLIENT_SLAB  = 256       /* operations or requests that are made at a time */
};
#define NEVER UINT64_MAX

typedef enum {
    OP_QUEUED, /* behind another operation on its chunk          */
    OP_READY,  /* in its lane's outbox                           */
    OP_SENT,
    OP_RECEIVED, /* the shard has it, the answer is to come        */
    OP_PREPARED, /* its partition's record is in (STEP_TWO_PHASE)     */
    OP_BUFFERED, /* its values are here, the step is not closed yet */
    OP_DONE      /* answered; the transport may still read its bytes */
} op_state;

typedef struct inputs { /* what a push carries, shared by operations */
    uint32_t refs;
    wire_inputs wire;
    double rate[];
} inputs;

typedef struct op {
    ps_client_request *request;
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
    bool pulling;     /* PS_STEP: decided, wants values */
    bool is_returned; /* its shard has the bytes, and `from` is the program's again */
    buf *body;        /* OP_BUFFERED */
    size_t body_at;
    uint32_t crc, staleness;
    uint64_t version;
    size_t credit; /* bytes of its lane's credit that it uses */
} op;

struct ps_client_request {
    ps_client_request *prev, *next;
    void *token;
    op *ops;
    uint64_t opened_ms, deadline_ms, ask_ms;
    uint32_t left, holds; /* left: operations, and idle shards to be told */
    bool closed, is_step, asked, warned, ending;
    pen_status status;
    pen_error *why;
    ps_client_result result;
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
    ps_client_request *request; /* NULL: none open */
    uint64_t index;
    inputs *in;
    bool closing, decided, told; /* told: the program knows the verdict */
    bool is_final;               /* nothing can undo it */
    uint32_t n_free;             /* operations on chunks that no decision closes, unanswered */
    uint32_t n_votes, asks;
    uint64_t ask_ms; /* for records of partitions that others of our node push */
    wire_vote *vote; /* [n_partitions] */
    double **sums;   /* [n_partitions] */
    bool *has;       /* [n_partitions] */
    wire_decision decision;
    ps_client_outcome outcome; /* once decided */
    wire_scalars scalars;      /* of all ranks, once they are known */
    void *token;
} step_state;

typedef struct {   /* values that stay with the shards, and gradients that go there for good */
    bool has;      /* some step was decided: */
    uint64_t step; /* the newest one, and what PS_FETCH says of it */
    wire_decision decision;
    uint64_t *hash;  /* [n_partitions] of its records */
    bool *tells;     /* [n_lanes] the shard is to be told of it there */
    uint32_t *reads; /* [n_tensors] pushes of the open step whose bytes may be read */
} away_state;

struct slab { /* or an item of one that is free */
    struct slab *next;
};

struct ps_client {
    ps_client_setup setup;
    ps_client_actions act;
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
    ps_client_request *requests;
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
    uint64_t *column_seq, *vote_hash;
    ps_client_piece *piece;
    uint32_t stamp_now;
};

/* ---- what a chunk is, and what an operation on it does --------------------------------------- */
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

static inline size_t ps_client_value_size(const ps_client *self, uint32_t chunk)
{
    return ps_client_chunk(self, chunk)->count *
           plan_dtype_bytes(ps_client_tensor(self, chunk)->dtype);
}

/* Of one that pushes or is a step's. */
static inline ps_client_rule ps_client_rule_of(const ps_client *self, const op *o)
{
    return ps_client_chunk(self, o->chunk)->blocks > 0 ? self->setup.rule : STEP_ASYNC;
}

/* Of a step that a decision closes. */
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

/* To that shard, without contents. */
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

/* ---- the files, each calls those above it only ----------------------------------------------- */
/* ps_client_idle.c */
bool ps_client_idle_find(ps_client *self); /* false: no memory */
void ps_client_idle_open(ps_client *self); /* the open step asks for a snapshot */
void ps_client_idle_flush(ps_client *self, uint64_t now_ms);
bool ps_client_idle_receipt(ps_client *self, uint32_t shard,
                            uint64_t step); /* true: the step waits for one less */
void ps_client_idle_tick(ps_client *self, uint64_t now_ms);
void ps_client_idle_up(ps_client *self, uint32_t shard);
void ps_client_idle_again(ps_client *self);  /* servers changed: who is idle, and has it heard? */
void ps_client_idle_forget(ps_client *self); /* the step ends early */
const idle_shard *ps_client_idle_waited_for(const ps_client *self); /* NULL: all have heard */

/* ps_client_away.c */
bool ps_client_away_init(ps_client *self); /* false: no memory */
void ps_client_away_fini(ps_client *self);
void ps_client_away_let_go(ps_client *self, op *o); /* its state or holds changed */
void ps_client_away_decided(ps_client *self);
void ps_client_away_notify(ps_client *self, uint32_t shard); /* with the next flush */
void ps_client_away_flush(ps_client *self);
/* Which step's values an PS_FETCH asks for; false: none was decided, and it is a plain pull. */
bool ps_client_away_ask(ps_client *self, wire_data *d);
bool ps_client_away_is_over(const ps_client *self,
                            const wire_data *d); /* a refusal that says nothing new */

/* ps_client_send.c */
/* Zeroed, from a list of free ones, which grows by slabs: a steady state allocates nothing.  NULL: no memory. */
static inline void ps_client_free(struct slab **free_items, void *item)
{
    ((struct slab *)item)->next = *free_items;
    *free_items                 = item;
}
void *ps_client_new(ps_client *self, struct slab **free_items, size_t size);
void ps_client_send_later(ps_client *self, op *o); /* into the outbox */
/* Out of the outbox, if it is there; its bytes have arrived, or never will, and use no credit of its lane. */
void ps_client_unqueue(ps_client *self, op *o);
/* Its first failure is r's; the request ends when it is closed. */
void ps_client_refuse(ps_client_request *r, const pen_error *why);
/* No push of it may follow one that ended without an answer. */
void ps_client_refuse_unknown(const ps_client *self, ps_client_request *r, uint32_t tensor);

/* ps_client.c */
void ps_client_finish(ps_client *self, op *o); /* answered */
void ps_client_note_result(op *o);             /* in that of its request */
void ps_client_take_values(ps_client *self, op *o, const void *data, uint64_t now_ms);
void ps_client_complete_if_over(ps_client *self, ps_client_request *r);
/* Ends it early; why NULL: it was refused. */
void ps_client_end(ps_client *self, ps_client_request *r, const pen_error *why);
void ps_client_step_notify(ps_client *self); /* the verdict, if there is one; once */
bool ps_client_know_workers(ps_client *self, const uint64_t *worker,
                            uint32_t n); /* true: others than before */
inputs *ps_client_inputs_new(const wire_inputs *in);
void ps_client_inputs_release(inputs *in);

/* ps_client_wait.c */
void ps_client_note_waiting(ps_client *self, const wire_data *d, uint64_t now_ms);
void ps_client_ask_for_votes(ps_client *self, uint64_t due_ms); /* once the step is closing */

/* ps_client_step.c */
void ps_client_step_vote(ps_client *self, uint32_t shard, const wire_data *d, const buf *body);
bool ps_client_step_reopen(ps_client *self, uint64_t now_ms); /* false: it is committed somewhere */

#endif
