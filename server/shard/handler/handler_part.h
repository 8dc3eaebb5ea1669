/* handler_part.h - one part of a table whose rows are the program's own: the state that a pen_handler keeps, and the
 * requests of ranks to it.
 *
 * DESIGN.  The shard gives each request once, in the order of a rank's numbers, as it does with pushes.  The answer comes
 * inside the function or later, from any thread, and is kept: the last ROWS_IN_FLIGHT_MAX of each rank, the most that may
 * be asked for again.  A request counts when it is answered.  What save() writes is the state without those that are not,
 * and they are given again to the state that load() makes elsewhere.  A saved state that moves has the kept answers in it.
 * Other threads may answer while it is saved: then it is saved again, until none did.
 * Thread: one at a time, except pen_reply().
 */
#ifndef SERVER_HANDLER_PART_H
#define SERVER_HANDLER_PART_H

#include "common/base/call.h"
#include "common/containers/buf.h"
#include "proto/rows.h"

#include <stdatomic.h>

typedef struct handler_part handler_part;

typedef enum {
    HANDLER_CALL_WAITS,
    HANDLER_CALL_IS_TAKEN,
    HANDLER_CALL_IS_ANSWERED
} handler_call_state;

typedef struct handler_call { /* a request */
    pen_call call;
    handler_part *part; /* NULL: it was closed meanwhile */
    int32_t rank;
    uint32_t peer; /* the latest that asked */
    uint64_t incarnation, seq;
    uint32_t n; /* keys */
    bool pulls, is_ready;
    bool is_new;               /* for the owner */
    bool is_chosen;            /* it moves with the state */
    bool is_left;              /* its rank begins anew */
    struct handler_call *next; /* of those */
    atomic_int state;          /* handler_call_state */
    buf *answer;               /* rows_reply, and rows */
} handler_call;

typedef struct { /* where a thread is while it runs code of the program */
    const char *handler, *plugin, *table, *what; /* BORROWED until leave(); what: "request" */
    uint32_t part;
} handler_place;

typedef struct {           /* the handlers of a server; all BORROWED */
    const pen_handler *at; /* [n] */
    uint32_t n;
    const char *plugin; /* where they are from; "": this program */
    /* Around each call of one of their functions, for who watches over them; NULL: nobody. */
    void (*enter)(const handler_place *place);
    void (*leave)(void);
} handler_set;

typedef struct {
    handler_set set;
    const pen_handler *handler; /* of set; BORROWED, like the name */
    const char *table;
    uint32_t part, parts, dim, world_size, index; /* index: for the owner */
    pen_dtype dtype;
    int32_t server;
    void *owner;
    /* A request was answered, in the thread of the part, inside a function of a handler of the same owner. */
    void (*answered)(void *owner, handler_call *call);
    /* The same from anywhere: answered() must then be called for it in the part's thread.  False: no memory. */
    bool (*post)(void *owner, handler_call *call);
} handler_setup;

pen_status handler_part_open(const handler_setup *setup, handler_part **part, pen_error *why);
void handler_part_close(handler_part *part); /* NULL is fine; drops requests without an answer */
void *handler_call_owner(const handler_call *call);

/* For answered(): whose request it is; NULL: nobody waits for its answer, and it is freed. */
const handler_setup *handler_call_settle(handler_call *call);

/* The request of this rank with this number; NULL: none is kept. */
handler_call *handler_part_find(handler_part *part, int32_t rank, uint64_t incarnation,
                                uint64_t seq);

/* Whether the answer with this number may be forgotten: the rank cannot ask for it again. */
bool handler_part_has_room(const handler_part *part, int32_t rank, uint64_t incarnation,
                           uint64_t seq);

/* Runs a request.  NO_MEMORY: it was not run. */
pen_status handler_part_request(handler_part *part, const handler_call *from, const rows_call *c,
                                const rows *r, pen_error *why);

bool handler_part_can_save(const handler_part *part);

/* The state as blocks of at most 16 MiB.  blocks[n] and *blocks are OWNED by the caller.  clock, for a state that moves:
 * [world_size] numbers of each rank's next request here; then, with which it goes on there.  NULL: for a snapshot. */
pen_status handler_part_save(handler_part *part, uint64_t *clock, buf ***blocks, uint32_t *n,
                             pen_error *why);

/* A block of a saved state, in order, each checked; the last one loads it into a newly opened state. */
pen_status handler_part_take(handler_part *part, uint32_t block, const void *data, size_t size,
                             bool is_last, pen_error *why);

/* ---- commands -------------------------------------------------------------------------------- */
typedef struct {
    int32_t head;
    const void *body; /* BORROWED for the call */
    size_t size;
    void *user;
    uint32_t token;
    /* In any thread, once; data is OWNED, malloc.  False: no memory to pass it on; data stays the caller's. */
    bool (*answered)(void *user, uint32_t token, pen_status status, void *data, size_t size);
} handler_command;

/* PEN_OK: the handler has it, and its answer comes.  PEN_NOT_FOUND: it takes no commands.  PEN_NO_MEMORY. */
pen_status handler_part_command(handler_part *part, const handler_command *c);

#endif
