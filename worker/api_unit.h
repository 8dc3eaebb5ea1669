/* api_unit.h - values of tensors that come and go, for calls that need them whole. */
#ifndef WORKER_API_UNIT_H
#define WORKER_API_UNIT_H

#include "worker/api.h"

/* Calls fn for each tensor in registration order, with t->param whole for as long as fn runs; ends with the first
 * failure.  Outside of a step, in the program's thread; where other workers hold the values, by all ranks. */
typedef pen_status (*api_tensor_fn)(pen_tensor *t, void *user, pen_error *why);
pen_status api_each_tensor(pen_ctx *ctx, api_tensor_fn fn, void *user, pen_error *why);

#endif
