/* api.h - shared by the public functions. */
#ifndef WORKER_API_H
#define WORKER_API_H

#include "worker/context.h"
#include "common/base/why.h"

/* Checks reserved fields and ranges of the caller's options; NULL is fine. */
pen_status api_check_opts(const pen_opts *o);
/* UNSUPPORTED: the stream cannot take work, because it is being captured. */
pen_status api_check_stream(const char *function, void *stream, pen_error *why);

/* WRONG_STATE after pen_commit(). */
pen_status api_check_open(const pen_ctx *ctx, const char *call, pen_error *why);
/* WRONG_STATE before pen_commit(). */
pen_status api_check_committed(const pen_ctx *ctx, const char *call);

/* Waits for values of the last step that have not arrived (step.lazy); then the parameters are complete. */
pen_status api_wait_for_values(pen_ctx *ctx, const char *call);
/* The same for the values of u only, where they come one by one; else for all. */
pen_status api_wait_for_unit(pen_ctx *ctx, const pen_unit *u, const char *call);
pen_status api_values_came(pen_ctx *ctx); /* the same, with the step's lock held */

/* Takes the step's lock; the caller releases it. WRONG_STATE in a callback while another thread holds it. */
pen_status api_lock_step(pen_ctx *ctx, const char *call);

bool api_is_last_micro(const pen_ctx *ctx);

/* The rest of pen_ready() for a gradient that was copied from a device; see device_copies.h. */
void api_deliver(pen_ctx *ctx, pen_tensor *t, const void *grad, const pen_error *failure);

/* Whether the program may do this with the gradient now. Takes the step's lock. */
pen_status api_ask(pen_ctx *ctx, pen_tensor *t, grad_event event, pen_error *why);

/* For pen_step_end(), without the step's lock: starts copying sums of earlier micro-batches that are on a device
 * and got no gradient in the last one. */
void api_send_sums(pen_ctx *ctx);
/* For pen_step_end(), with the lock: hands over gradients that count as zeros, or names the missing one. */
pen_status api_close_gradients(pen_ctx *ctx, pen_error *why);

/* After a step, without its lock: writes the 16-bit parameters if the step took a snapshot. */
pen_status api_state_stepped(pen_ctx *ctx);

/* Hands a request to the part that runs it. req NULL: waits for it. */
pen_status api_start(request *r, const pen_opts *o, const pen_req *req);

/* Calls o->done, if there is one, for a call that was waited for. */
void api_notify(const pen_opts *o, const pen_result *result);

/* Refuses what the job keeps to a worker that was asked to leave. */
pen_status api_check_stays(const pen_ctx *ctx, const char *call);

#endif
