/* job_link.h - a worker's link to its job: through a scheduler, or alone in this process.
 *
 * A link joins and leaves, agrees on the model, carries commands and the key-value store, and owns the collectives
 * (ctx->coll).  Steps are the strategy's: train/strategy.h.
 */
#ifndef WORKER_JOB_LINK_H
#define WORKER_JOB_LINK_H

#include "membership/commands.h"
#include "worker/io/request.h"

typedef struct job_link job_link;

typedef struct {
    /* Begins a request: JOIN, COMMIT, SNAPSHOT (with servers), COMMAND, STORE or LEAVE.
     * request_end() and request_notify() follow, now or later.  In any thread. */
    void (*start)(job_link *l, request *r);

    /* pen_reply() has filled the call; in any thread. */
    void (*answer)(job_link *l, command_call *call);

    void (*abort)(job_link *l); /* async-signal-safe; ctx->abort_why is set */

    /* Frees everything: no thread, socket, descriptor or call on a group is left. Called once. */
    void (*close)(job_link *l);
} job_link_ops;

struct job_link { /* the first member of each implementation */
    const job_link_ops *ops;
};

/* pen_reply() to a command that is owned by a pen_ctx. */
pen_status command_reply(pen_call *call, pen_status answer, const void *data, size_t n,
                         const uint32_t *lens, pen_error *why);

/* For pen_init(); REQUEST_JOIN follows. Sets ctx->link, which the caller closes also after a failure. */
pen_status alone_open(pen_ctx *ctx, pen_error *why); /* alone.c */
pen_status io_open(pen_ctx *ctx, pen_error *why);    /* io_life.c */

#endif
