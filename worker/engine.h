/* engine.h - what trains: alone in this process, or with servers.
 *
 * Both members do the same steps on the same cuts with the same decision and the same update rules,
 * so one worker on its own gets the bits that one worker with servers gets.
 */
#ifndef WORKER_ENGINE_H
#define WORKER_ENGINE_H

#include "proto/wire.h"
#include "worker/request.h"

typedef struct {
    const char *name; /* "local", "servers" */

    /* Prepares; REQUEST_JOIN follows.  Must leave ctx safe for close() when it fails. */
    pen_status (*open)(pen_ctx *ctx, pen_error *why);

    /* Begins a request of any kind but REQUEST_STEP; request_end() and request_tell() follow, here
     * or later. */
    void (*start)(pen_ctx *ctx, request *r);

    /* The step, in this order: open once, ready once per trained tensor, start(REQUEST_STEP) once.
     * inputs are BORROWED until the step has ended.  grad NULL: zeros. */
    void (*step_open)(pen_ctx *ctx, uint64_t index, const wire_inputs *inputs);
    void (*ready)(pen_ctx *ctx, pen_tensor *t, const void *grad);

    /* pen_reply() has filled the call; in any thread. */
    void (*answer)(pen_ctx *ctx, pen_call *call);

    void (*abort)(pen_ctx *ctx); /* async-signal-safe; ctx->abort_why is set */

    /* Frees everything; no thread, socket or descriptor is left.  Called once. */
    void (*close)(pen_ctx *ctx);
} engine_ops;

extern const engine_ops engine_local;   /* train/local.c */
extern const engine_ops engine_servers; /* client.c */

#endif
