/* api.h - what the public functions share. */
#ifndef WORKER_API_H
#define WORKER_API_H

#include "worker/context.h"
#include "worker/api/last_error.h"

/* Reserved words and range of what a caller gave; NULL is fine. */
pen_status api_check_opts(const pen_opts *o);

/* Whether this build and this machine have a device whose streams and memory calls may name. */
bool api_has_device(void);

/* "pen_reduce is not in this version: ..." */
pen_status api_unsupported(const char *function);

/* Values of the last step may still be on their way (step.lazy): the parameters are not whole
 * before. */
pen_status api_wait_for_values(pen_ctx *ctx, const char *call);
pen_status api_values_came(pen_ctx *ctx); /* the same, with the step's lock held */

/* The step's lock: released by the caller.  WRONG_STATE in a callback while another thread has it. */
pen_status api_lock_step(pen_ctx *ctx, const char *call);

bool api_is_last_micro(const pen_ctx *ctx);

/* A gradient that was on a device is in host memory: what is left of its pen_ready(); see mirror.h. */
void api_deliver(pen_ctx *ctx, pen_tensor *t, const void *grad, const pen_error *failure);

/* Whether the program may do this with the gradient now; takes the step's lock. */
pen_status api_ask(pen_ctx *ctx, pen_tensor *t, grad_event event, pen_error *why);

/* pen_step_end(), without the step's lock: sums of earlier micro-batches that are on a device and have no gradient in the
 * last one are on their way to the host. */
void api_send_sums(pen_ctx *ctx);
/* pen_step_end(), with it: what counts as zeros is handed over; or which gradient is missing. */
pen_status api_close_gradients(pen_ctx *ctx, pen_error *why);

/* Hands a request to whoever does it; then waits for it (req NULL), or lets *req stand for it. */
pen_status api_start(request *r, const pen_opts *o, pen_req *req);

/* Begins a request that needs nothing filled in, and starts it. */
pen_status api_run(pen_ctx *ctx, const char *call, request_kind kind, const pen_opts *o,
                   pen_req *req);

/* Calls once what o->done asks for, of a call that was waited for. */
void api_tell(const pen_opts *o, const pen_result *result);

#endif
