/* ps_client.h - the worker's side of the parameter-server protocol: a pure state machine.
 *
 * DESIGN.  The ps client knows chunks, identities and answers.  It has no socket, thread, clock, file
 * or global.  Its owner (worker/io/thread, or a simulator) feeds events in and carries out actions:
 *
 *   in   requests of the program   ps_client_open, ps_client_add, ps_client_close;
 *                                  ps_client_step_open, ps_client_step_close
 *        messages                  ps_client_receive
 *        connections               ps_client_up, ps_client_down
 *        epochs                    ps_client_install
 *        time                      ps_client_tick, at ps_client_due()
 *   out  ps_client_actions, called from within those functions and from ps_client_flush
 *
 * A request is a set of operations, one per chunk.  Operations on one chunk form a queue and only
 * the first is in progress.  So a rank has at most one push of a chunk in flight: the shard's counter
 * is the whole window.  Of a part of a table several are, unless its rule averages: they are numbered as
 * they leave, one lane keeps their order, and the shard refuses one that overtakes another, which is then
 * sent again.  An operation is sent until it is answered.  Its identity stays the same, so
 * the shard recognises a repeat.  A request ends once: when all its operations are answered, when its
 * deadline passes or when ps_client_fail() is called.  It never ends while its buffers are still read.
 *
 * A shard is a fixed part of the model.  A new epoch may move it to another server.  Epoch and term
 * are fences: messages of another epoch or term are refused.  They do not belong to the identity: an
 * unanswered operation is sent again, under its old number, to the server that now holds the shard.
 * A step restarts if members change before it is committed.  Its gradients still belong to the ps
 * client, so the program does not notice.
 *
 * The ps client never touches payload bytes: it hands pointers to `send` and `store`.
 */
#ifndef WORKER_PS_CLIENT_H
#define WORKER_PS_CLIENT_H

#include "common/base/stat.h"
#include "common/containers/buf.h"
#include "proto/decision.h"
#include "proto/plan.h"
#include "proto/wire/wire.h"
#include "worker/ps/retry.h"

typedef struct ps_client ps_client;
typedef struct ps_client_request ps_client_request;

/* Rule of a parameter group. */
typedef enum {
    STEP_TWO_PHASE, /* bsp: one decision clips or skips the step of the whole model */
    STEP_EAGER,     /* bsp: each chunk is applied when all ranks have pushed it */
    STEP_ASYNC      /* ssp and async: each push is applied on its own */
} ps_client_rule;

typedef enum {
    PS_INIT,      /* sends first values              (from) */
    PS_LOAD,      /* fetches first values            (to) */
    PS_PUSH,      /*                                 (from) */
    PS_PULL,      /*                                 (to) */
    PS_PUSH_PULL, /* one message each way            (from, to) */
    PS_STEP,      /* in the open step (from, to); to NULL: the values stay on the shard */
    PS_FETCH      /* values as of the newest decided step (to) */
} ps_client_verb;

typedef struct {
    const plan *plan; /* this and all pointers below: BORROWED while the ps client lives */
    const wire_model *model;
    const uint32_t *shard; /* [n_partitions] */
    ps_client_rule rule;   /* of groups that average; the others are STEP_ASYNC */
    int32_t rank;
    uint32_t n_shards, lanes;
    uint64_t term, epoch;
    uint64_t from;      /* this worker's incarnation */
    const uint64_t *to; /* [n_shards] incarnations of their servers */
    uint32_t n_workers;
    const uint64_t *worker;         /* [n_workers] incarnations by rank, 0: absent; NULL: unknown */
    const char *const *worker_host; /* [n_workers] for error sentences */
    const char *const *server;      /* [n_shards] "server 1 (devbox)" */
    uint64_t warn_ms;
    retry_policy retry;
    int64_t step, applied; /* where to continue; 0, 0 for a new model */
    bool may_lose_members; /* `decided` then waits until nothing can undo the verdict */
    /* The job was already running.  First values may show that a chunk is past a step: then this rank
     * does not take part in that chunk's step, and its values are not older. */
    bool is_late;
    /* A shard never asks again for a push that it has: `returned` is called then. */
    bool gives_back;
} ps_client_setup;

typedef struct { /* an epoch; arrays as in ps_client_setup */
    uint64_t term, epoch;
    const uint64_t *to;
    /* Shards forgot their sums of `step`: it is pushed again.  A changed `worker` means the same,
     * because an epoch may be skipped. */
    bool members_changed;
    int64_t step; /* all lower steps are over everywhere; -1: no group is STEP_TWO_PHASE */
    uint32_t n_workers;
    const uint64_t *worker;
    const char *const *worker_host, *const *server;
} ps_client_view;

typedef struct {
    const void *data;
    size_t size;      /* bytes on the wire */
    void *op;         /* for ps_client_tx_ref() */
    pen_dtype encode; /* not DEFAULT: data is float32 and is sent as this 16-bit type */
} ps_client_piece;

typedef struct {
    uint64_t version;   /* smallest of all chunks */
    uint32_t staleness; /* largest of all chunks */
    uint64_t bytes;     /* delivered */
} ps_client_result;

typedef struct {
    int32_t outcome; /* pen_outcome */
    double norm, clip;
    int64_t applied; /* after this step */
    bool has_bad;
    uint32_t bad_tensor;
    int32_t bad_rank;
    wire_scalars scalars; /* summed over all ranks */
} ps_client_outcome;

/* Where the answer to an operation of rows goes: ps_client_add_rows(). */
typedef struct ps_client_sink {
    bool (*store)(struct ps_client_sink *self, const void *answer,
                  size_t size); /* false: does not fit */
} ps_client_sink;

/* Called with the `user` of ps_client_create().  They must not call the ps client; only `send` may
 * call ps_client_tx_ref(). */
typedef struct {
    /* Sends one message on one lane.  The callee fills in crc and payload_bytes of d from the pieces.
     * The pieces are valid during the call only, unless ps_client_tx_ref() is called for them.
     * Any status but PEN_OK: nothing was sent, the ps client tries again. */
    pen_status (*send)(void *user, uint32_t shard, uint32_t lane, const wire_data *d,
                       const ps_client_piece *pieces, uint32_t n_pieces);
    /* Drops queued messages of this lane that still refer to a buffer: their request has ended.
     * ps_client_release() follows for each, now or later. */
    void (*disconnect)(void *user, uint32_t shard, uint32_t lane);
    /* Writes a chunk's values into the program's memory.  False: the checksum does not match. */
    bool (*store)(void *user, void *to, const void *from, size_t size, uint32_t crc);
    /* The open step's verdict is known and final; its values may not have arrived yet.  token as given
     * to ps_client_step_close().  Once for each step. */
    void (*decided)(void *user, void *token, const ps_client_outcome *outcome);
    /* why is NULL when status is PEN_OK.  The request no longer exists. */
    void (*completed)(void *user, void *token, pen_status status, const ps_client_result *result,
                      const pen_error *why);
    void (*log)(void *user, int level, const char *line);
    void (*count)(void *user, stat_id id, uint64_t n);
    /* With gives_back: the open step never reads this tensor's `from` again.  Not called for a
     * tensor whose step failed. */
    void (*returned)(void *user, uint32_t tensor);
    /* All values of this tensor that the step pulls have been stored.  The step may not be over.  Not called for a
     * tensor whose step failed.  NULL: nobody asks. */
    void (*arrived)(void *user, uint32_t tensor);
    /* As store(), for an answer of any size: of a part of a table, or a slot (proto/rows.h). */
    bool (*store_rows)(void *user, ps_client_sink *to, const void *from, size_t size, uint32_t crc);
} ps_client_actions;

ps_client *ps_client_create(const ps_client_setup *setup, const ps_client_actions *actions,
                            void *user, pen_error *why);
void ps_client_destroy(ps_client *self); /* completes nothing; NULL is fine */

/* The inputs of pushes outside a step. */
pen_status ps_client_set_inputs(ps_client *self, const wire_inputs *inputs);

/* A request: open, add any tensors, close.  from and to point into the program's memory, BORROWED
 * until completed().  deadline_ms is a point in time, 0: none.  Errors, NO_MEMORY included, end the
 * request after its close.  A request without operations completes in ps_client_close(). */
ps_client_request *ps_client_open(ps_client *self, uint64_t now_ms); /* NULL: no memory */
/* Before the first ps_client_add(): on each lane higher goes first.  0: the priority of each tensor. */
void ps_client_prefer(ps_client_request *r, int32_t priority);
void ps_client_add(ps_client *self, ps_client_request *r, ps_client_verb verb, uint32_t tensor,
                   const void *from, void *to);
/* Adds a part of a table: PS_PUSH, PS_PULL or PS_PUSH_PULL with the bytes of proto/rows.h.  Many of one part are in
 * flight at a time; pushes take effect in the order in which they were added.  Or a chunk of a tensor: PS_PULL with a
 * slots_call. */
void ps_client_add_rows(ps_client *self, ps_client_request *r, ps_client_verb verb, uint32_t chunk,
                        const void *bytes, uint32_t size, ps_client_sink *to);

/* Slots were set: the number of this rank's next push of a chunk that no decision closes, and updates from now on. */
uint64_t ps_client_next_push(const ps_client *self, uint32_t chunk);
void ps_client_applied_is(ps_client *self, int64_t applied);

void ps_client_close(ps_client *self, ps_client_request *r, void *token, uint64_t deadline_ms,
                     uint64_t now_ms);

/* The step: one at a time.  Its PS_STEP operations are sent as they are added.  Values are written
 * only after ps_client_step_close(); then decided() follows and, when all values are in, completed().
 * One step drives groups of every rule: STEP_TWO_PHASE groups end with the decision, the others with
 * the answers to their pushes, even if the decision is to skip.  inputs->snapshot is also sent to
 * shards without trained chunks, and the step waits for their receipts. */
ps_client_request *ps_client_step_open(ps_client *self, uint64_t step, const wire_inputs *inputs,
                                       uint64_t now_ms);

/* With inputs->is_node_sum this rank pushes and pulls only some of the chunks; other ranks of its node
 * do the rest, and the decision covers all.  This call replaces the node's weight, snapshot flag and
 * scalars; it comes before the first ps_client_add_chunk(). */
void ps_client_step_weigh(ps_client *self, double weight, bool snapshot,
                          const wire_scalars *scalars);
/* Adds one chunk; from and to point to the chunk's bytes, not to its tensor's.  The sum of a node is in the type of the
 * wire. */
void ps_client_add_chunk(ps_client *self, ps_client_request *r, ps_client_verb verb, uint32_t chunk,
                         const void *from, void *to);

void ps_client_step_close(ps_client *self, void *token, uint64_t deadline_ms, uint64_t now_ms);

/* One decoded message of this shard; body as received, may be NULL.  The ps client takes its own
 * reference when it needs the bytes later.  A message that does not fit is dropped and counted. */
void ps_client_receive(ps_client *self, uint32_t shard, const wire_data *d, buf *body,
                       uint64_t now_ms);

/* A new epoch: pointers of the view replace those of the setup, BORROWED likewise.  Unanswered
 * operations are sent again.  If a shard's `to` or address changed, the caller then closes its
 * connections (ps_client_down) and opens new ones. */
void ps_client_install(ps_client *self, const ps_client_view *view, uint64_t now_ms);

/* Lanes start down.  Unanswered operations are sent again when a lane comes up. */
void ps_client_up(ps_client *self, uint32_t shard, uint32_t lane, uint64_t now_ms);
void ps_client_down(ps_client *self, uint32_t shard, uint32_t lane);

/* Sends the queued messages; call before sleeping. */
void ps_client_flush(ps_client *self, uint64_t now_ms);

/* Call at ps_client_due(); UINT64_MAX: no call is needed before another event. */
void ps_client_tick(ps_client *self, uint64_t now_ms);
uint64_t ps_client_due(const ps_client *self);

/* Ends every request, open and future, with *why. */
void ps_client_fail(ps_client *self, const pen_error *why, uint64_t now_ms);

/* The transport reads a piece's bytes after `send` returned: the request of the piece ends only after
 * as many releases. */
void ps_client_tx_ref(ps_client *self, void *op);
void ps_client_release(ps_client *self, void *op);

#endif
