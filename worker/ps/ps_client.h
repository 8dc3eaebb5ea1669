/* ps_client.h - what a worker says to the shards: a pure state machine.
 *
 * DESIGN.  The ps client knows chunks, identities and answers; it has no socket, thread, clock, file
 * or global.  Its owner (the shell in io_thread.c, or a simulator) feeds events in and carries actions
 * out:
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
 * the first is under way, so a rank has at most one push of a chunk in flight: the shard's counter
 * is the whole window.  An operation is sent until it is answered; its identity stays the same, so
 * the shard recognises a repeat.  A request ends once, when all its operations are answered, when
 * its deadline passes or when ps_client_fail() ends everything; and never while somebody still reads
 * its buffers.
 *
 * A shard is a part of the model for the life of the job; which server holds it may change, by a new
 * epoch.  Epoch and term are fences: messages of another are not taken.  They are no part of an
 * identity: what had no answer is said again, with the number it had, to whoever holds the shard now.
 * A step whose members changed before it was committed begins anew, from gradients that are still
 * the ps client's; the program sees nothing of it.
 *
 * Payload bytes are never touched here: pointers are handed to `send` and `store`.
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

typedef enum {                 /* of a parameter group */
               STEP_TWO_PHASE, /* bsp: steps over the whole model, clipped or skipped as one        */
               STEP_EAGER, /* bsp: each chunk is applied when all ranks have pushed it          */
               STEP_ASYNC  /* ssp and async: each push is applied on its own                    */
} ps_client_rule;

typedef enum {
    PS_INIT,      /* sends first values              (from)     */
    PS_LOAD,      /* fetches first values            (to)       */
    PS_PUSH,      /*                                 (from)     */
    PS_PULL,      /*                                 (to)       */
    PS_PUSH_PULL, /* one message each way            (from, to) */
    PS_STEP,      /* of the open step                (from, to); to NULL: its values stay away */
    PS_FETCH      /* values as of the newest decided step  (to) */
} ps_client_verb;

typedef struct {
    const plan *plan; /* this and all below BORROWED while the ps client lives */
    const wire_model *model;
    const uint32_t *shard; /* [n_partitions] */
    ps_client_rule rule;   /* of groups that average: DECIDE or EAGER; the others are FREE */
    int32_t rank;
    uint32_t n_shards, lanes;
    uint64_t term, epoch;
    uint64_t from;      /* this worker's incarnation */
    const uint64_t *to; /* [n_shards] incarnations of their servers */
    uint32_t n_workers;
    const uint64_t *worker;         /* [n_workers] incarnations by rank, 0: absent; NULL: unknown */
    const char *const *worker_host; /* [n_workers] for sentences */
    const char *const *server;      /* [n_shards] "server 1 (devbox)" */
    uint64_t warn_ms;
    retry_policy retry;
    int64_t step, applied; /* to go on with; 0, 0 for a new model */
    bool may_lose_members; /* members may change: a verdict is told when nothing can undo it */
    /* The job was under way.  Of a step that a chunk is beyond, as its first values say, this rank has
     * no part in that chunk, and the values are not older. */
    bool is_late;
    /* Pushes are not asked for again once a shard has them: `returned` is called then. */
    bool gives_back;
} ps_client_setup;

typedef struct { /* what a record of an epoch says; arrays as in ps_client_setup */
    uint64_t term, epoch;
    const uint64_t *to;
    bool
        members_changed; /* what shards held of `step` is forgotten: it is pushed again.  Also where
                           * `worker` is another than before: records may be skipped */
    int64_t step; /* all lower ones are over everywhere; -1: there are none of whole models */
    uint32_t n_workers;
    const uint64_t *worker;
    const char *const *worker_host, *const *server;
} ps_client_view;

typedef struct {
    const void *data;
    size_t size;      /* bytes that travel */
    void *op;         /* for ps_client_tx_ref() */
    pen_dtype encode; /* not DEFAULT: data is float32 and travels in this type, of 16 bits */
} ps_client_piece;

typedef struct {
    uint64_t version;   /* smallest of the chunks */
    uint32_t staleness; /* largest  */
    uint64_t bytes;     /* delivered */
} ps_client_result;

typedef struct {
    int32_t outcome; /* pen_outcome */
    double norm, clip;
    int64_t applied; /* after this step */
    bool has_bad;
    uint32_t bad_tensor;
    int32_t bad_rank;
    wire_scalars scalars; /* what all ranks gave */
} ps_client_outcome;

/* Called with the `user` of ps_client_create().  None may call back into the ps client, except that
 * `send` may call ps_client_tx_ref(). */
typedef struct {
    /* Sends one message on one lane: d without crc and payload_bytes, which the callee fills in
     * from the pieces.  The pieces are valid during the call only, unless ps_client_tx_ref() is called
     * for them.  Not PEN_OK: nothing was sent, the ps client tries again. */
    pen_status (*send)(void *user, uint32_t shard, uint32_t lane, const wire_data *d,
                       const ps_client_piece *pieces, uint32_t n_pieces);
    /* Forgets what is queued on this lane and still holds a buffer: its request has ended.
     * ps_client_release() follows for each, now or later. */
    void (*cut)(void *user, uint32_t shard, uint32_t lane);
    /* Writes a chunk's values into the program's memory.  False: the checksum does not match. */
    bool (*store)(void *user, void *to, const void *from, size_t size, uint32_t crc);
    /* The open step's verdict is known, and final; its values are still to come.  token as given to
     * ps_client_step_close().  Once for each step. */
    void (*decided)(void *user, void *token, const ps_client_outcome *outcome);
    /* why is NULL when status is PEN_OK.  The request is gone. */
    void (*completed)(void *user, void *token, pen_status status, const ps_client_result *result,
                      const pen_error *why);
    void (*log)(void *user, int level, const char *line);
    void (*count)(void *user, stat_id id, uint64_t n);
    /* With gives_back: the open step reads this tensor's `from` no more, in any event.  Not called for
     * one whose step failed. */
    void (*returned)(void *user, uint32_t tensor);
} ps_client_actions;

ps_client *ps_client_create(const ps_client_setup *setup, const ps_client_actions *actions,
                            void *user, pen_error *why);
void ps_client_destroy(ps_client *self); /* completes nothing; NULL is fine */

/* What pushes outside a step carry. */
pen_status ps_client_set_inputs(ps_client *self, const wire_inputs *inputs);

/* A request: open, add any tensors, close.  from and to lie in the program's memory, BORROWED until
 * completed().  deadline_ms is a time, 0 = none.  Errors, NO_MEMORY included, end the request after
 * its close.  A request without operations completes in ps_client_close(). */
ps_client_request *ps_client_open(ps_client *self, uint64_t now_ms); /* NULL: no memory */
void ps_client_add(ps_client *self, ps_client_request *r, ps_client_verb verb, uint32_t tensor,
                   const void *from, void *to);
void ps_client_close(ps_client *self, ps_client_request *r, void *token, uint64_t deadline_ms,
                     uint64_t now_ms);

/* The step: one at a time.  Its PS_STEP operations are sent as they are added; values are
 * written only after ps_client_step_close(), which calls decided() and, when all values are in,
 * completed().  One step drives groups of every rule: those of DECIDE end with the decision, the
 * others with the answers to their pushes, also where the decision is to skip.  inputs->snapshot is
 * told to shards without trained chunks, too, and the step waits until they have heard it. */
ps_client_request *ps_client_step_open(ps_client *self, uint64_t step, const wire_inputs *inputs,
                                       uint64_t now_ms);

/* With inputs->is_node_sum this rank pushes and pulls a part of the chunks only; the others of its
 * node bring the rest, and the decision is over all.  The node's weight, whether it asks for a
 * snapshot, and its scalars may be said once more, before the first of: */
void ps_client_step_weigh(ps_client *self, double weight, bool snapshot,
                          const wire_scalars *scalars);
/* One chunk; from and to are its own bytes, not its tensor's. */
void ps_client_add_chunk(ps_client *self, ps_client_request *r, ps_client_verb verb, uint32_t chunk,
                         const void *from, void *to);

void ps_client_step_close(ps_client *self, void *token, uint64_t deadline_ms, uint64_t now_ms);

/* One decoded message of this shard; body as it came, may be NULL.  The ps client takes its own
 * reference when it needs the bytes later.  What does not fit is dropped and counted. */
void ps_client_receive(ps_client *self, uint32_t shard, const wire_data *d, buf *body,
                       uint64_t now_ms);

/* A new epoch: pointers of the view replace those of the setup, and are BORROWED in their place.
 * What is unanswered is sent again.  The caller then closes the connections to shards whose `to`, or
 * address, is another (ps_client_down) and dials them anew. */
void ps_client_install(ps_client *self, const ps_client_view *view, uint64_t now_ms);

/* Lanes begin down.  What is unanswered is sent again when one comes (back) up. */
void ps_client_up(ps_client *self, uint32_t shard, uint32_t lane, uint64_t now_ms);
void ps_client_down(ps_client *self, uint32_t shard, uint32_t lane);

/* Sends what has gathered; call before sleeping. */
void ps_client_flush(ps_client *self, uint64_t now_ms);

/* To be called at ps_client_due(); UINT64_MAX = not before something else happens. */
void ps_client_tick(ps_client *self, uint64_t now_ms);
uint64_t ps_client_due(const ps_client *self);

/* Ends every request, and every later one, with *why. */
void ps_client_fail(ps_client *self, const pen_error *why, uint64_t now_ms);

/* The transport reads a piece's bytes beyond `send`: its request does not end before as many
 * releases. */
void ps_client_tx_ref(ps_client *self, void *op);
void ps_client_release(ps_client *self, void *op);

#endif
