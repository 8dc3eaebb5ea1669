/* engine.h - what trains: alone in this process, with servers, or with other workers only.
 *
 * All members do the same steps on the same cuts with the same decision and the same update rules,
 * so one worker on its own gets the bits that one worker with servers gets.
 */
#ifndef WORKER_ENGINE_H
#define WORKER_ENGINE_H

#include "proto/wire.h"
#include "worker/request.h"
#include "worker/train/holding.h"

typedef struct {
    const char *name; /* "local", "servers", "allreduce", "two_level", "sharded" */

    /* Prepares; REQUEST_JOIN follows.  Must leave ctx safe for close() when it fails. */
    pen_status (*open)(pen_ctx *ctx, pen_error *why);

    /* In pen_commit's thread, when REQUEST_COMMIT has ended well; may wait.  NULL: nothing is left to
     * do. */
    pen_status (*committed)(pen_ctx *ctx, pen_error *why);

    /* Snapshots without servers (train/keeper.h); both or neither.  NULL: servers keep them.
     * holding: what this rank holds, as it is between two steps.
     * restored: that was overwritten, versions too, and so many updates had been applied; makes the
     * values that the program sees of it. */
    pen_status (*holding)(pen_ctx *ctx, holding *h, pen_error *why);
    pen_status (*restored)(pen_ctx *ctx, int64_t applied, pen_error *why);

    /* Begins a request of any kind but REQUEST_STEP; request_end() and request_tell() follow, here
     * or later. */
    void (*start)(pen_ctx *ctx, request *r);

    /* The step, in this order: open once, ready once per trained tensor, start(REQUEST_STEP) once.
     * inputs are BORROWED until the step has ended.  grad NULL: zeros. */
    void (*step_open)(pen_ctx *ctx, uint64_t index, const wire_inputs *inputs);
    void (*ready)(pen_ctx *ctx, pen_tensor *t, const void *grad);

    /* Optional, all three.  In threads of the program, without the step's lock; they may wait, each with
     * a deadline.
     *   use, release   one at a time per context; NULL: values are always where t->param says.  use: u's
     *                  are, when it returns, until as many releases came; a failed use is not counted.  step: the one in
     *                  progress,
     *                  or -1 outside of one, where nothing is foreseen (residency.h).
     *   view           any thread; a gradient that the SDK holds is about to be made: waits until there
     *                  is room for it.  NULL: there always is. */
    pen_status (*use)(pen_ctx *ctx, const pen_unit *u, pen_phase phase, int64_t step,
                      pen_error *why);
    void (*release)(pen_ctx *ctx, const pen_unit *u, pen_phase phase);
    pen_status (*view)(pen_ctx *ctx, pen_tensor *t, pen_error *why);

    /* pen_reply() has filled the call; in any thread. */
    void (*answer)(pen_ctx *ctx, pen_call *call);

    void (*abort)(pen_ctx *ctx); /* async-signal-safe; ctx->abort_why is set */

    /* Frees everything; no thread, socket or descriptor is left.  Called once. */
    void (*close)(pen_ctx *ctx);
} engine_ops;

extern const engine_ops engine_local;     /* train/local.c */
extern const engine_ops engine_servers;   /* client.c */
extern const engine_ops engine_allreduce; /* train/allreduce.c */
extern const engine_ops engine_two_level; /* train/two_level.c */
extern const engine_ops engine_sharded;   /* train/sharded.c */

#endif
