/* api_coll.h - what the public functions of collectives share. */
#ifndef WORKER_API_COLL_H
#define WORKER_API_COLL_H

#include "worker/api/api.h"
#include "worker/collective/engine/engine_internal.h"

/* Group, options and context; the sentence is kept.  waits: the caller will wait. */
pen_status api_coll_enter(const pen_group *g, const char *function, const pen_opts *o, bool waits);

/* Checks the call and carries it out: waiting, as *req, or with the batch of this thread. */
pen_status api_coll_run(pen_group *g, const char *function, const coll_call *call,
                        const pen_opts *o, pen_req *req);

/* The same for a call of the SDK's own, of which a batch of this thread takes no notice. */
pen_status api_coll_wait(pen_group *g, const coll_call *call, const pen_opts *o);

/* A time, or 0 for none, as coll_submit() and engine_run() are told: o's, or the setting's. */
uint64_t api_coll_patience(const pen_group *g, const pen_opts *o); /* a span */
uint64_t api_coll_deadline(const pen_group *g, const pen_opts *o); /* a time */

/* ---- api_batch.c: calls that are collected ---------------------------------------------------- */
bool api_batch_is_open(const pen_ctx *ctx);
pen_status api_batch_add_call(pen_group *g, const coll_call *call, uint64_t patience_ms);
pen_status api_batch_add_transfer(pen_group *g, const engine_transfer *t, uint64_t patience_ms);

#endif
