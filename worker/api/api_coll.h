/* api_coll.h - shared by the public functions of collectives. */
#ifndef WORKER_API_COLL_H
#define WORKER_API_COLL_H

#include "worker/api/api.h"
#include "worker/collective/engine/engine_internal.h"

/* Checks group, options and context. waits: the caller will wait. */
pen_status api_coll_enter(const pen_group *g, const char *function, const pen_opts *o, bool waits);

pen_status api_coll_check(const pen_group *g, const char *function, const coll_call *call);

/* Runs a call that was checked, or one of the SDK itself, and waits; never part of a batch. */
pen_status api_coll_wait(pen_group *g, const coll_call *call, const pen_opts *o);

const char *api_coll_label(const pen_opts *o); /* "": none */

/* ---- api_batch.c ---------------------------------------------------- */
bool api_batch_is_open(const pen_ctx *ctx);
pen_status api_batch_add_call(pen_group *g, const coll_call *call, uint64_t patience_ms);
pen_status api_batch_add_transfer(pen_group *g, const engine_transfer *t, uint64_t patience_ms);

#endif
