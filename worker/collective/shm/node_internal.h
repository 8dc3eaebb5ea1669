/* node_internal.h - the layout of a control segment, and what the files of node.h share. */
#ifndef WORKER_COLL_NODE_INTERNAL_H
#define WORKER_COLL_NODE_INTERNAL_H

#include "common/system/segment.h"
#include "worker/collective/fault_point.h"
#include "worker/collective/shm/node.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum {
    NODE_SLOTS        = 64,       /* groups alive at a time, in one process */
    NODE_REFUSED      = 256,      /* newest groups for which this process can make no team */
    NODE_INLINE_BYTES = 32 << 10, /* payload that travels in the slot */
    /* a round of a window: two of them stay in a second-level cache */
    NODE_PIECE_BYTES  = 256 << 10,
    NODE_BLOCK_MIN    = 4 << 10,
    NODE_ROUND_MIN    = 128 << 10, /* shorter rounds cost more than they overlap */
    NODE_ROUNDS       = 8,
    NODE_DIRECT_BYTES = 128 << 10, /* between two checks for revoked calls, on mapped memory */
    NODE_GRACE_MS     = 1000,      /* for a better sentence than "a peer gave up" */
    NODE_TURN_BYTES   = 8 << 20,   /* moved in one advance() */
    /* from this size on, the caches hold too little of a call's memory */
    NODE_PAST_FROM_BYTES   = 8 << 20,
    NODE_WHOLE_BELOW_BYTES = 4 << 20, /* in, scratch and out of two members stay in the caches */
    NODE_LINE_BYTES        = 64 /* what is saved is counted in lines; blocks are whole lines */
};

/* ---- shared memory --------------------------------------------------------------------------- */
typedef enum { NODE_NOTHING, NODE_INLINE, NODE_MAPPED, NODE_WINDOW } node_publish;

/* One call of one member; calls alternate between two of these. */
typedef struct {
    _Alignas(64) _Atomic uint64_t arrived; /* seq of the call; written after the rest */
    uint64_t hash;                         /* of the header */
    double scale;
    uint32_t publish;    /* node_publish: how peers read the input */
    uint32_t out_mapped; /* whether they may write the output */
    uint32_t has_counts; /* all_to_all */
    uint32_t saves;      /* who overwrites the output saves its old contents in `save` first */
    uint32_t is_whole;   /* it would fold all elements, if the others do */
    uint32_t holds_all;  /* `save` is a window as long as the input: no round waits for another */
    _Alignas(64) coll_header header;
    segment_ref in, out, window, save;
    uint64_t sends[NODE_MEMBERS_MAX], receives[NODE_MEMBERS_MAX]; /* all_to_all: elements */
    _Alignas(64) unsigned char payload[NODE_INLINE_BYTES];
} node_entry;

/* One member of one group.  Counters are seq << 32 | rounds (saved: lines), so they only grow.  What peers read in each
 * call has a line to itself. */
typedef struct {
    _Alignas(64) _Atomic uint64_t revoked; /* seq of the call it gave up */
    _Alignas(64) _Atomic uint64_t ended;   /* seq of its last call that ended; all ones: it left */
    _Atomic uint64_t busy;                 /* seq while it works on memory of peers */
    _Alignas(64) _Atomic uint64_t filled;  /* rounds in its window */
    _Atomic uint64_t worked;               /* rounds of inputs it has used up */
    _Atomic uint64_t taken;                /* rounds of results it has copied */
    _Atomic uint64_t saved;                /* of its slice, in the `save` of all that have one */
    node_entry entry[2];
} node_slot;

typedef struct {
    uint64_t magic, bytes;
    uint64_t number; /* for node_read_number() */
    _Alignas(64) _Atomic uint32_t doorbell;
    _Atomic uint32_t sleeping;
    _Alignas(64) _Atomic uint64_t group[NODE_SLOTS]; /* id; 0: free */
    _Atomic uint64_t refused[NODE_REFUSED];          /* ids, in a ring */
    node_slot slot[NODE_SLOTS];
} node_control;

/* ---- this process ---------------------------------------------------------------------------- */
typedef struct {
    segment_ref ref;
    node_control *control;
} node_peer;

/* A slot whose team is gone; slower peers may still read it. */
typedef struct node_leftover {
    struct node_leftover *next, *prev;
    int slot, size, rank;
    uint64_t id, last;
    void *arrays;    /* its team's, OWNED */
    node_peer *peer; /* [size], in arrays */
} node_leftover;

struct node_place {
    node_control *control;
    segment_ref ref;
    char address[192];
    _Atomic uint32_t spin;
    int cores;
    pthread_mutex_t lock; /* guards which slots are taken, and what is refused */
    node_leftover *leftovers;
    uint32_t n_refused; /* in total */
};

/* A member's description of its input: read once from its entry, which any member may write at any time, and checked. */
typedef struct {
    uint32_t publish; /* node_publish */
    bool out_mapped, saves, is_whole, holds_all;
    size_t bytes; /* of the whole input */
    /* all_to_all, in elements: offset and n of the part for this member; the longest part */
    size_t offset, n, most;
} node_said;

/* What one member sends to another in a call: bytes in the sender's input. */
typedef struct {
    size_t offset, bytes;
} node_part;

struct node_team {
    node_place *place;
    uint64_t id, last; /* last: seq of the last call begun */
    int size, rank, own_slot;
    int refuser;  /* position of a member that cannot map the others; -1: none is known */
    void *arrays; /* all below that are marked [size] */
    int *ranks;
    node_peer *peer;  /* [size] */
    node_slot **slot; /* [size]; NULL: that peer has not created its slot yet */

    unsigned char *window; /* NULL until the first large call */
    segment_ref window_ref;
    unsigned char *scratch; /* for calls in place: results, or what they overwrite */
    size_t scratch_bytes;

    /* Of the call in progress; all [size]. */
    const unsigned char **in; /* mapped inputs; NULL: through the window */
    unsigned char **out;      /* outputs that are written directly */
    unsigned char **save;     /* where their old contents go first; NULL: nobody needs them */
    unsigned char **windows;  /* of peers */
    node_said *said;
    double *scale;
    node_part *from, *to;  /* received from, sent to each member */
    size_t *put;           /* offset in the output of what each member sends */
    const void **operands; /* of one fold */
    void **results;
    const coll_header **headers;
    const reduce_order *order; /* of all folds; NULL: rank order */
    segment_ref *mapped;       /* [4 * size] counted mappings */
    int n_mapped;
};

typedef enum { NODE_ARRIVING, NODE_WORKING, NODE_OVER } node_stage;

typedef struct {
    node_team *team;
    const coll_call *call;
    uint64_t seq;
    node_stage stage;
    int came;
#ifdef PENSTOCK_FAULT_POINTS
    int step;
#endif
    size_t element, in_bytes, out_bytes, block;
    node_said own;      /* as published; peers can write to our entry too */
    unsigned char *out; /* where results go: the caller's, or the scratch */
    bool is_small, is_scaled;
    bool is_whole;                 /* each member folds all elements, not only its slice */
    bool holds_all;                /* its window is the scratch, and saves what is overwritten */
    bool is_apart;                 /* in place, with results in the scratch until the end */
    bool saves;                    /* in place, with what is overwritten in the scratch */
    bool by_window, pushes, takes; /* inputs; results */
    bool is_shared;                /* all members get the same bytes of an input */
    uint64_t rounds, fill, work, take, kept; /* kept: rounds of the whole buffer in the scratch */
    int lost;             /* 1 + position of a peer whose memory could not be opened, 0: none */
    uint64_t given_up_ms; /* when this member learned that a peer gave up; 0: none did */
} node_op;

_Static_assert(sizeof(node_op) <= COLL_OP_BYTES, "an op fits into what the engine gives");

/* ---- node_place.c ---------------------------------------------------------------------------- */
void node_ring(node_control *control);
node_slot *node_find_slot(node_control *control, uint64_t id);
bool node_has_refused(const node_control *control, uint64_t id);
pen_status node_take_slot(node_place *place, uint64_t id, int *slot, pen_error *why);
void node_leave_slot(node_place *place, node_leftover *leftover); /* OWNED */
pen_status node_open_peer(const char *address, node_peer *peer, pen_error *why);
bool node_is_alive(pid_t pid);

/* ---- node_team.c ----------------------------------------------------------------------------- */
bool node_find_peers(node_team *team); /* true: all have created their slots */
pen_status node_need_window(node_team *team, size_t bytes, pen_error *why);
pen_status node_need_scratch(node_team *team, size_t bytes, pen_error *why);
void node_drop_scratch(node_team *team);

/* ---- node_plan.c: what a call moves ---------------------------------------------------------- */
bool node_folds(const node_op *op);         /* results are sums of all inputs */
bool node_gets(const node_op *op, int who); /* whether `who` gets results that others folded */
size_t node_inline_max(const node_op *op);
node_part node_slice(const node_op *op, int who); /* of a large reduce or all_reduce */
size_t node_window_bytes(const node_team *team);
void node_plan(node_op *op); /* from, to, put, rounds: after all have arrived */
pen_status node_check_counts(const node_op *op, pen_error *why);
/* CORRUPT: the description is impossible. */
pen_status node_read_said(node_op *op, int who, pen_error *why);

/* ---- node_work.c: moving and folding --------------------------------------------------------- */
coll_state node_work(node_op *op, pen_error *why);

/* ---- node_end.c ------------------------------------------------------------------------------ */
#define NODE_FAULT_POINT(op) FAULT_POINT("node", (op)->seq, (op)->step++)
coll_state node_end(node_op *op, coll_state state);
coll_state node_turn_back(node_op *op, pen_error *why); /* a member refused the team */
void node_give_up(node_op *op);                         /* waits until peers leave our memory */
bool node_is_revoked(const node_op *op);                /* a peer gave the call up */
coll_state node_given_up(node_op *op, pen_error *why);  /* fails, after a grace, naming that peer */

static inline node_slot *node_own_slot(const node_team *team)
{
    return team->slot[team->rank];
}

static inline node_entry *node_entry_of(const node_op *op, int who)
{
    return &op->team->slot[who]->entry[op->seq & 1];
}

#endif
