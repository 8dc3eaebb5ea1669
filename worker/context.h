/* context.h - what a pen_ctx is: one member of one job, whoever trains for it. */
#ifndef WORKER_CONTEXT_H
#define WORKER_CONTEXT_H

#include "common/base/stat.h"
#include "worker/collective/engine/engine.h"
#include "worker/collective/engine/group.h"
#include "worker/io/job_link.h"
#include "worker/io/members.h"
#include "worker/io/progress.h"
#include "worker/io/request.h"
#include "worker/ps/ps_client.h"
#include "worker/tensor/model.h"
#include "worker/tensor/residency/own_state.h"
#include "worker/tensor/residency/state_table.h"
#include "worker/train/schedule/loss_scale.h"
#include "worker/train/strategy.h"
#include "worker/worker_env.h"
#include "worker/worker_settings.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum { CONTEXT_METRICS_MAX = 64 };

typedef struct {
    char name[64];
    double value;
} context_metric;

typedef void (*context_event_fn)(pen_ctx *ctx, const pen_event *event, void *user);

typedef enum { CONTEXT_OPEN, CONTEXT_COMMITTED } context_phase;

typedef struct { /* between pen_step_begin and pen_step_end */
    pthread_mutex_t lock;
    pen_step *given; /* the program's; read at the first pen_ready */
    int64_t next_index;
    bool is_begun;
    uint64_t begun_ns; /* for the timeline; 0: off */
    bool is_open;      /* something was sent: weight and rates are fixed */
    int64_t applied;   /* updates so far: what rates are a function of */
    uint64_t since_ns; /* it began, for the counters; 0: nobody looks at them */
    loss_scale scale;
    double weight, lr_scale;
    int micro;      /* micro-batch in progress */
    uint32_t flags; /* PEN_STEP_*, for the next pen_step_begin */
    wire_inputs inputs;
    wire_scalars scalars,
        totals; /* what this rank gives with it; of the newest one that ended, all ranks' */
    bool has_last_gradients;   /* some of the last micro-batch: scalars are on their way */
    double *rate;              /* [n_groups] */
    pen_error remembered;      /* of pen_ready and friends; status PEN_OK: none */
    ps_client_outcome outcome; /* written by the strategy before REQUEST_STEP ends */
    void *states;              /* that travel with its pushes; NULL: none */
    pen_req values;            /* lazy: values that are still on their way */
    progress progress;
} context_step;

typedef struct { /* the snapshot that this job goes on from */
    bool is_there;
    int64_t step, applied;
} context_restored;

struct pen_ctx {
    worker_settings settings;
    worker_env env;
    worker_mode mode;
    int stage; /* how much is sharded: 1, 2, 3 of zero1 to zero3; 0: nothing.  Over servers mode is then MODE_PS_BSP */
    bool has_servers;
    bool reduces_each; /* pen_ready() of every micro-batch reaches the strategy; set as it opens */
    ps_client_rule rule; /* of groups that average */
    char sync[CONFIG_TEXT_BYTES], host[256], job[48];
    pid_t pid;
    job_link *link;     /* from pen_init() on */
    strategy *strategy; /* from pen_commit() on */
    struct scheduler *hosted;
    struct loop *io_loop;    /* of "pen-io"; NULL: alone */
    struct monitor *monitor; /* worker_monitor.h; NULL: nothing is shown */
    struct auth *auth;       /* of its endpoints; NULL: clear text, or alone */
    context_phase phase;
    struct device_copies *device_copies; /* tensors in memory of a device; NULL: there are none */
    pthread_mutex_t grad_lock;           /* of memory that the SDK holds: param_memory.h */
    pthread_cond_t grads_returned;
    uint64_t lent_bytes;      /* gradients that strategies have been lent */
    pthread_mutex_t use_lock; /* one pen_use() or pen_release() at a time: unit_use.c */
    model model;
    pen_error remembered; /* of pen_register and friends */
    request_table requests;
    context_step step;
    stat_set stats;
    uint64_t committed_ms;
    /* From context_create() on; another one from the step on whose members are others.  The groups of
     * other kinds are made when first asked for. */
    _Atomic(pen_group *) world;
    pen_group **old_world; /* [n_old_worlds] that no engine owns */
    uint32_t n_old_worlds;
    member_list members;    /* empty when alone */
    atomic_uint n_samplers; /* made so far: names of their positions in snapshots */
    state_table states;     /* bytes that belong to a snapshot and are no tensors */
    own_state own;          /* what of it is ours */
    context_restored restored;
    bool is_saved; /* with the step that has just ended a snapshot was taken; see api_state.c */
    struct snapshot_writer *snapshot_writer; /* NULL: servers keep snapshots */
    atomic_bool stop_wanted;                 /* pen_step_begin says END */
    int64_t digest_step;                     /* of the newest pen_digest() */
    uint32_t n_digests;                      /* before it, at the same step */
    struct coll_engine *coll;                /* the link's */
    atomic_bool snapshot_wanted;
    _Atomic int64_t step_index; /* of the step in progress or next; -1 before commit */

    atomic_bool has_failed; /* set after `failure` was written, once */
    pthread_mutex_t failure_lock;
    pen_error failure;

    atomic_bool is_aborting;
    char abort_why[256];

    pthread_mutex_t monitor_lock;
    context_metric metric[CONTEXT_METRICS_MAX];
    uint32_t n_metrics;
    pen_command_fn command; /* of pen_on_command; under monitor_lock, as is its argument */
    void *command_user;
    context_event_fn event; /* of pen_on_event(); likewise */
    void *event_user;
    _Atomic(const char *) call; /* newest call, for heartbeats */
    atomic_bool in_call;
    atomic_uint_fast64_t call_since_ms;
};

/* What a user would say: "zero2", also where servers do it. */
const char *context_mode_name(const pen_ctx *ctx);

pen_status context_create(const char *const *settings, pen_ctx **ctx, pen_error *why);
/* ctx->coll; destroyed by who made it. */
pen_status context_make_coll(pen_ctx *ctx, const coll_job *job, void *user, pen_error *why);
void context_destroy(pen_ctx *ctx); /* link, strategy and snapshot writer are closed */

/* Its members may come and go while it trains: it goes on without a worker, waits for another in its
 * place, or takes more. */
bool context_is_elastic(const pen_ctx *ctx);

/* It goes on after the loss of a worker, with servers or without: PEN_CAP_ELASTIC. */
bool context_outlives_loss(const pen_ctx *ctx);

/* The group of that kind; NULL: *why. */
pen_group *context_group(pen_ctx *ctx, pen_group_kind kind, pen_error *why);

/* When a call that begins now must have ended, by the setting deadline_ms; 0: never. */
uint64_t context_deadline(const pen_ctx *ctx);

/* A step begins: the world, and the step's flags, are of the members that it is seen with. */
void context_follow_members(pen_ctx *ctx); /* world.c */

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
