/* context.h - what a pen_ctx is: one member of one job, whoever trains for it. */
#ifndef WORKER_CONTEXT_H
#define WORKER_CONTEXT_H

#include "common/stat.h"
#include "worker/engine.h"
#include "worker/exchange.h"
#include "worker/model.h"
#include "worker/request.h"
#include "worker/worker_env.h"
#include "worker/worker_settings.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

struct pen_group {
    pen_ctx *ctx;
};

enum { CONTEXT_METRICS_MAX = 64 };

typedef struct {
    char name[64];
    double value;
} context_metric;

typedef enum { CONTEXT_OPEN, CONTEXT_COMMITTED } context_phase;

typedef struct { /* between pen_step_begin and pen_step_end */
    pthread_mutex_t lock;
    pen_step *given; /* the program's; read at the first pen_ready */
    int64_t next_index;
    bool is_begun;
    bool is_open; /* something was sent: weight and rates are fixed */
    double weight, lr_scale;
    uint32_t n_ready;
    wire_inputs inputs;
    double *rate;             /* [n_groups] */
    pen_error remembered;     /* of pen_ready and friends; status PEN_OK: none */
    exchange_outcome outcome; /* written by the engine before REQUEST_STEP ends */
    pen_req values;           /* lazy: values that are still on their way */
} context_step;

struct pen_ctx {
    worker_settings settings;
    worker_env env;
    worker_mode mode;
    exchange_rule rule; /* of groups that average */
    char sync[CONFIG_TEXT_BYTES], host[256], job[48];
    pid_t pid;
    const engine_ops *engine;
    void *state; /* the engine's */
    struct scheduler *hosted;
    context_phase phase;
    model model;
    pen_error remembered; /* of pen_register and friends */
    request_table requests;
    context_step step;
    stat_set stats;
    uint64_t committed_ms;
    pen_group world;
    atomic_bool snapshot_wanted;
    _Atomic int64_t step_index; /* of the step in progress or next; -1 before commit */

    atomic_bool has_failed; /* set after `failure` was written, once */
    pthread_mutex_t failure_lock;
    pen_error failure;

    atomic_bool is_aborting;
    char abort_why[256];

    pthread_mutex_t watch_lock;
    context_metric metric[CONTEXT_METRICS_MAX];
    uint32_t n_metrics;
    pen_command_fn command; /* of pen_on_command; under watch_lock, as is its argument */
    void *command_user;
    pen_call *unanswered;       /* alone: calls the program still has a pointer to */
    _Atomic(const char *) call; /* newest call, for heartbeats */
    atomic_bool in_call;
    atomic_uint_fast64_t call_since_ms;
};

pen_status context_create(const char *const *settings, pen_ctx **ctx, pen_error *why);
void context_destroy(pen_ctx *ctx); /* after engine->close() */

/* What every call begins with: NULL, a forked child, an earlier failure.  The sentence is kept for
 * pen_last_error(). */
pen_status context_check(const pen_ctx *ctx, const char *call);

/* The same, and waiting: not in a callback; `call` is what heartbeats show until
 * context_leave(). */
pen_status context_enter(pen_ctx *ctx, const char *call, bool waits);
pen_status context_leave(pen_ctx *ctx, pen_status status);

/* What pen_on_command() gave; NULL: nothing. */
pen_command_fn context_command(pen_ctx *ctx, void **user);

/* The first failure of the job is that of every later call. */
void context_fail(pen_ctx *ctx, const pen_error *why);

/* Keeps the first of several errors.  Returns its own status. */
pen_status context_remember(pen_error *kept, const pen_error *why);

#endif
