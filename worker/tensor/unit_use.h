/* unit_use.h - uses and releases the units that a handle covers.
 *
 * A program names handles, strategies know units (unit.h).  One use or release at a time per context, in threads of the
 * program, without the step's lock.
 */
#ifndef WORKER_UNIT_USE_H
#define WORKER_UNIT_USE_H

#include "worker/context.h"
#include "worker/tensor/residency/residency.h"

/* Uses all units or none.  step: the one in progress; -1: outside a step. */
pen_status unit_use(pen_ctx *ctx, const pen_unit *handle, pen_phase phase, int64_t step,
                    pen_error *why);
void unit_release(pen_ctx *ctx, const pen_unit *handle, pen_phase phase);

/* Calls fn for each tensor in registration order, with t->param whole while fn runs; stops at the first failure.
 * Outside a step; called by all ranks when other workers hold the values. */
typedef pen_status (*unit_tensor_fn)(pen_tensor *t, void *user, pen_error *why);
pen_status unit_each_tensor(pen_ctx *ctx, unit_tensor_fn fn, void *user, pen_error *why);

/* For strategies that fetch and drop values: allocates and frees values of a unit that do not stay,
 * and makes a residency of all units by the settings (NULL and *why: no memory). */
typedef void (*unit_number_fn)(void *user, uint32_t number);
pen_status unit_make(pen_ctx *ctx, uint32_t number, pen_error *why);
void unit_drop(pen_ctx *ctx, uint32_t number);
residency *unit_residency(const pen_ctx *ctx, unit_number_fn fetch, unit_number_fn drop, void *user,
                          pen_error *why);

#endif
