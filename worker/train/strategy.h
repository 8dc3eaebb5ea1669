/* strategy.h - how a step trains: with servers, or with other workers only; a worker alone is a group of one.
 *
 * All strategies use the same steps, partitions, decision and update rules.  So one worker alone gets the same bits as
 * one worker with servers.
 */
#ifndef WORKER_TRAIN_STRATEGY_H
#define WORKER_TRAIN_STRATEGY_H

#include "proto/wire/wire.h"
#include "worker/io/request.h"
#include "worker/train/state_ranges.h"

typedef struct strategy strategy;

typedef struct {
    /* Snapshots without servers (snapshot/snapshot_writer.h); both or neither.  NULL: servers write them.
     * state_ranges: this rank's state between two steps, with all that have ended: it settles them.
     * restored: the state was overwritten, with its versions, and has `applied` updates.  Makes the
     * program's values from it. */
    pen_status (*state_ranges)(strategy *s, state_ranges *h, pen_error *why);
    pen_status (*restored)(strategy *s, int64_t applied, pen_error *why);

    /* Waits until at most `most` steps that have ended are undecided, and reports the others with step_decided().  NULL:
     * steps end decided. */
    pen_status (*settle)(strategy *s, uint32_t most, pen_error *why);

    /* Begins a request of STEP, VERB or PULL_FREE; request_end() and request_notify() follow, now or later. */
    void (*start)(strategy *s, request *r);

    /* In "pen-io": all values of a tensor that this step pulls are in their place.  May be NULL. */
    void (*values_came)(strategy *s, const pen_tensor *t);

    /* The step, in this order: open once, ready once per trained tensor, start(REQUEST_STEP) once.
     * inputs are BORROWED until the step has ended.  grad NULL: zeros. */
    void (*step_open)(strategy *s, uint64_t index, const wire_inputs *inputs);
    void (*ready)(strategy *s, pen_tensor *t, const void *grad);

    /* All three are optional.  They run in threads of the program, without the step's lock, and may wait,
     * with a deadline.
     *   use, release   one at a time per context; NULL: values are always in t->param.  u's values are
     *                  there from the return of use until as many releases; a failed use is not counted.
     *                  step: the current one, or -1 outside a step, where nothing is prefetched
     *                  (residency.h).
     *   view           any thread; waits for room before the SDK allocates a gradient.  NULL: there is
     *                  always room. */
    pen_status (*use)(strategy *s, const pen_unit *u, pen_phase phase, int64_t step,
                      pen_error *why);
    void (*release)(strategy *s, const pen_unit *u, pen_phase phase);
    pen_status (*view)(strategy *s, pen_tensor *t, pen_error *why);

    /* Once, after the link was closed: no other thread uses its memory. */
    void (*close)(strategy *s);
} strategy_ops;

struct strategy { /* the first member of an implementation's struct */
    const strategy_ops *ops;
    bool tells_values; /* those of a step come tensor by tensor: request_values_come() for each */
    pthread_mutex_t lock; /* alone: steps, verbs and snapshots, one at a time */
};

/* Chooses a strategy and sets ctx->strategy, even if it fails later, so that it can be closed.  In pen_commit's thread,
 * after REQUEST_COMMIT has succeeded; may wait. */
pen_status strategy_open(pen_ctx *ctx, pen_error *why);
void strategy_close(pen_ctx *ctx); /* ctx->strategy NULL is fine */

/* Whether ranks of a node add their gradients before they push: two_level_open() rather than ps_open(). */
bool strategy_sums_in_nodes(const pen_ctx *ctx);

/* ---- for implementations ---- */
void strategy_init(strategy *s, const strategy_ops *ops, pen_ctx *ctx); /* sets ctx->strategy */
/* Ends r with status, and its lazy verdict if that is still open. */
void strategy_end(request *r, pen_status status, const pen_error *why);

/* The model can be trained on the device of its tensors: all trained ones and their gradients are on it, have one name, and
 * are decided together; members do not change. */
bool strategy_may_be_on_device(const pen_ctx *ctx);

pen_status strategy_refuse_push(const pen_tensor *t, pen_error *why); /* without servers */

pen_status ps_open(pen_ctx *ctx, pen_error *why);
pen_status two_level_open(pen_ctx *ctx, pen_error *why);
pen_status sharded_open(pen_ctx *ctx, pen_error *why);

#endif
