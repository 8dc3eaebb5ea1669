/* request.h - the request behind a pen_req: a thread of the program begins it, a thread of the SDK ends it.
 *
 * Lifetime: request_begin() -> api_start() -> request_end(), once -> freed by request_wait() or after the callback.
 * A request that is never waited for lives as long as its context.
 */
#ifndef WORKER_REQUEST_H
#define WORKER_REQUEST_H

#include "common/base/loop.h"
#include "penstock.h"
#include "worker/ps/ps_client.h"
#include "worker/io/unanswered.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef enum {
    REQUEST_JOIN,      /* pen_init */
    REQUEST_COMMIT,    /* pen_commit */
    REQUEST_REPORT,    /* why it has failed: ends with the job's verdict */
    REQUEST_VERB,      /* push, pull, both */
    REQUEST_STEP,      /* pen_step_end */
    REQUEST_KV,        /* push, pull, both of a table */
    REQUEST_SLOTS,     /* pen_slots_get, pen_slots_set */
    REQUEST_PULL_FREE, /* pen_digest */
    REQUEST_FETCH,     /* values of a unit */
    REQUEST_SNAPSHOT,
    REQUEST_COMMAND,
    REQUEST_STORE,
    REQUEST_COLL, /* collectives, send, recv: begun on their group */
    REQUEST_LEAVE /* pen_finalize */
} request_kind;

typedef struct request {
    loop_task task; /* carries it to the io thread */
    pen_ctx *ctx;
    struct request *next; /* free, or ended and not yet reported */
    uint64_t id;
    request_kind kind;
    bool is_done, is_awaited;
    int32_t priority; /* of pushes and pulls: higher goes first */
    pen_done_fn done;
    void *user;
    uint64_t begun_ms, deadline_ms; /* points in time; deadline 0: none */
    pen_result result;
    pen_error *why; /* of a failure; NULL: no memory for it */
    union {
        struct {
            ps_client_verb verb;
            pen_tensor *tensor;
            const void *from;
            void *to;
        } verb;
        struct table_request *kv; /* OWNED; request_end() frees it */
        struct io_slots *slots;   /* BORROWED: the caller waits */
        struct {
            pen_node to;
            int head;
            uint32_t n; /* replies */
            size_t size;
            void *body; /* OWNED */
            pen_bytes *replies;
        } command;
        struct {
            unanswered_change change; /* BORROWED like value and out: the caller waits */
            int64_t *value;           /* value, out: NULL if not wanted */
            pen_bytes *out;
        } store;
        struct {
            pen_group *group; /* a waiting thread drives its calls; NULL: it only waits */
        } coll;
        struct {
            const pen_unit *unit;
        } fetch;
        struct {
            const pen_error *why; /* BORROWED: the caller waits */
        } report;
        struct {
            struct request *decided;
        } step; /* lazy: ends with the verdict; NULL: already ended */
    } u;
} request;

enum { REQUEST_BLOCK = 1024, REQUESTS_MAX = 16384 * REQUEST_BLOCK };

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    request **block; /* of REQUEST_BLOCK each; they never move */
    uint32_t n;      /* requests that were ever used */
    request *free;   /* of those */
    uint64_t in_flight, in_flight_max;
    atomic_ullong n_tells;           /* calls of request_notify() that found ended requests */
    request *told_head, *told_tail;  /* ended since the last request_notify() */
    bool is_draining, awaits_values; /* awaits_values: one thread, which has the step's lock */
} request_table;

pen_status request_table_init(request_table *table, uint64_t in_flight_max, pen_error *why);
void request_table_fini(request_table *table);

/* o may be NULL.  req NULL: the caller waits with request_await(); else *req names the request, unless o has a
 * callback.  Waits for room, or returns AGAIN with PEN_NOWAIT or on the SDK's thread. */
pen_status request_begin(pen_ctx *ctx, request_kind kind, const pen_opts *o, pen_req *req,
                         request **r);

/* Ends r with status and error; the result fields are already set.  Also ends a lazy step's
 * verdict.  Waiters see it after request_notify(). */
void request_end(request *r, pen_status status, const pen_error *why);
void request_notify(request_table *table); /* wakes waiters, runs callbacks */

/* Waits for a request that was begun without a pen_req, and frees it. */
pen_status request_await(request *r, pen_result *result);

/* Like pen_wait() and pen_wait_any(), for requests of this table. */
pen_status request_wait(request_table *table, pen_req *req, pen_result *result);
/* Like pen_wait_stream(). */
pen_status request_wait_stream(request_table *table, pen_req *req, void *stream);
pen_status request_wait_any(request_table *table, pen_req *reqs, size_t n, int64_t timeout_ms,
                            size_t *index, pen_result *result);

/* Values of a step that come tensor by tensor: begin, then come for each, on the SDK's thread. */
void request_values_begin(request_table *table, pen_tensor *t);
void request_values_come(request_table *table, pen_tensor *t);
/* Waits until the values of these tensors have come.  False: *req has ended, or may not be waited for here; then
 * request_wait() tells. */
bool request_wait_values(request_table *table, const pen_req *req, pen_tensor *const *tensor,
                         const uint32_t *index, uint32_t n);

/* Waits until no request is in flight; each ends by its deadline. */
void request_drain(request_table *table);

void request_abandon(request *r); /* frees a request that was begun but not started */

/* True in callbacks and threads of the SDK, which must not wait. */
bool request_is_sdk_thread(void);
void request_mark_sdk_thread(void);
void request_callback(bool begins); /* around a function of the program, on any thread */

#endif
