/* context.h - a pen_ctx: one worker of one job, with any strategy. */
#ifndef WORKER_CONTEXT_H
#define WORKER_CONTEXT_H

#include "common/base/stat.h"
#include "common/launch/position.h"
#include "worker/collective/engine/engine.h"
#include "worker/collective/engine/group.h"
#include "worker/data/step_log.h"
#include "worker/io/job_link.h"
#include "worker/io/members.h"
#include "worker/io/progress.h"
#include "worker/io/request.h"
#include "worker/ps/ps_client.h"
#include "worker/tensor/model.h"
#include "worker/tensor/device_copy/space.h"
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
    bool is_fresh;  /* since the last step that was logged */
    bool is_scalar; /* of pen_step_scalar(), not of pen_metric() */
    bool is_mean;   /* the program asked for its mean, not for its sum */
    bool has_value;
} context_metric;

typedef void (*context_event_fn)(pen_ctx *ctx, const pen_event *event, void *user);

typedef enum { CONTEXT_OPEN, CONTEXT_COMMITTED } context_phase;

enum { CONTEXT_DECIDED_MAX = 8 }; /* newest steps whose outcome is kept */

typedef struct {
    int64_t index;
    bool is_there;
    ps_client_outcome outcome;
} context_decided;

typedef struct { /* between pen_step_begin and pen_step_end */
    pthread_mutex_t lock;
    pen_step *given; /* the program's; read at the first pen_ready */
    int64_t next_index;
    bool is_begun;
    uint64_t begun_ns; /* for the timeline; 0: off */
    bool is_open;      /* a gradient was sent: weight and rates are fixed */
    int64_t applied;   /* updates so far, as if undecided steps were applied; rates depend on it */
    uint64_t since_ns; /* begin of the step, for the counters; 0: they are off */
    loss_scale scale;
    double weight, lr_scale;
    int micro;      /* micro-batch in progress */
    uint32_t flags; /* PEN_STEP_*, for the next pen_step_begin */
    wire_inputs inputs;
    /* scalars: of this rank, sent with the step; totals: of all ranks, from the newest ended step */
    wire_scalars scalars, totals;
    bool has_last_gradients;   /* a gradient of the last micro-batch was sent, with the scalars */
    double *rate;              /* [n_groups] */
    pen_error remembered;      /* of pen_ready and friends; status PEN_OK: none */
    ps_client_outcome outcome; /* written by the strategy before REQUEST_STEP ends */
    context_decided decided[CONTEXT_DECIDED_MAX]; /* by index; step_decided.h */
    void *states;                                 /* sent with its pushes; NULL: none */
    pen_req values;                               /* lazy: values that have not arrived */
    progress progress;
} context_step;

/* Blocks of dropped values and gradients, for the next ones of the same size (param_memory.h). */
enum { CONTEXT_SPARE_MAX = 32 };
typedef struct {
    struct {
        void *data;
        size_t bytes;
    } block[CONTEXT_SPARE_MAX]; /* [n], the oldest first */
    uint32_t n;
    uint64_t bytes;      /* of these blocks */
    uint64_t held, most; /* bytes of the blocks that tensors have: now, and at most */
} context_spare;

typedef struct {
    /* Where the strategy works on gradients and new values; the host until it opens. */
    memory_space work;
    struct device_copies *device_copies; /* tensors in device memory; NULL: none */
    struct buffers *buffers;             /* train/buffers.h; NULL: no tensor is one */
    pthread_mutex_t grad_lock;           /* of memory of the SDK: param_memory.h */
    pthread_cond_t grads_returned;
    uint64_t lent_bytes; /* gradients lent to the strategy */
    context_spare spare;
} context_memory;

typedef struct { /* the snapshot that this job resumed from */
    bool is_there;
    int64_t step, applied;
} context_restored;

struct pen_ctx {
    worker_settings settings;
    worker_env env;
    worker_mode mode;
    int stage; /* 1, 2, 3 in zero1 to zero3, else 0; with servers `mode` is MODE_PS_BSP then */
    bool has_servers;
    bool reduces_each;   /* the strategy gets every micro-batch; set when it opens */
    ps_client_rule rule; /* of groups that average */
    char sync[CONFIG_TEXT_BYTES], host[256], job[48];
    pid_t pid;
    job_link *link;     /* from pen_init() on */
    strategy *strategy; /* from pen_commit() on */
    struct job_host *hosted;
    struct loop *io_loop;    /* of "pen-io"; NULL: alone */
    struct monitor *monitor; /* worker_monitor.h; NULL: off */
    struct auth *auth;       /* of its endpoints; NULL: plain text, or alone */
    context_phase phase;
    context_memory memory;
    _Atomic bool names_units; /* pen_unit_get() was called, so a use means its unit only */
    pthread_mutex_t use_lock; /* one pen_use() or pen_release() at a time: unit_use.c */
    model model;
    pen_error remembered; /* of pen_register and friends */
    request_table requests;
    context_step step;
    stat_set stats;
    uint64_t committed_ms;
    /* From context_create() on; replaced at the first step with other members.  Groups of other kinds
     * are made when first used. */
    _Atomic(pen_group *) world;
    pen_group **old_world; /* [n_old_worlds] not owned by an engine */
    uint32_t n_old_worlds;
    member_list members;    /* empty when alone */
    atomic_uint n_samplers; /* made so far; names their positions in snapshots */
    state_table states;     /* snapshot state that is not a tensor */
    own_state own;          /* the SDK's row of it */
    context_restored restored;
    bool is_saved; /* the step that has just ended took a snapshot; see api_state.c */
    struct snapshot_writer *snapshot_writer; /* NULL: servers write snapshots */
    atomic_bool stop_wanted;                 /* pen_step_begin() returns END */
    atomic_bool has_stopped;                 /* it has, and others go on */
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
    step_log *step_log;     /* of the setting log_to, opened when it is first written; NULL: none */
    bool has_step_log;      /* it was opened, or could not be */
    pen_command_fn command; /* of pen_on_command; under monitor_lock, as is its argument */
    void *command_user;
    context_event_fn event; /* of pen_on_event(); likewise */
    void *event_user;
    launch_position *position;  /* for the launcher; NULL: none */
    _Atomic(const char *) call; /* newest call, for heartbeats */
    atomic_bool in_call;
    atomic_uint_fast64_t call_since_ms;
};

/* The user's word for the mode: "zero2", also with servers. */
const char *context_mode_name(const pen_ctx *ctx);

pen_status context_create(const char *const *settings, pen_ctx **ctx, pen_error *why);
/* Sets ctx->coll; the caller destroys it. */
pen_status context_make_coll(pen_ctx *ctx, const coll_job *job, void *user, pen_error *why);
void context_destroy(pen_ctx *ctx); /* after link, strategy and snapshot writer are closed */

/* Members may change while the job trains: it continues without a lost worker, waits for its
 * replacement, or accepts more workers. */
bool context_is_elastic(const pen_ctx *ctx);

/* The job continues after the loss of a worker, with servers or without: PEN_CAP_ELASTIC. */
bool context_outlives_loss(const pen_ctx *ctx);

/* The group of that kind; NULL: *why. */
pen_group *context_group(pen_ctx *ctx, pen_group_kind kind, pen_error *why);

/* How long a call with these options may take, in ms; else, or with NULL, by the setting deadline_ms.  0: any time. */
static inline uint64_t context_patience(const pen_ctx *ctx, const pen_opts *o)
{
    const int64_t span =
        o != NULL && o->deadline_ms != 0 ? o->deadline_ms : ctx->settings.deadline_ms;
    return span > 0 ? (uint64_t)span : 0;
}

/* A step begins: updates the world and the step's flags to its members. */
void context_follow_members(pen_ctx *ctx); /* makes the world anew when members came or went */

/* Every call begins with it: refuses NULL, a forked child, an earlier failure.  Sets
 * pen_last_error(). */
pen_status context_check(const pen_ctx *ctx, const char *call);

/* The same; a call that waits is refused in callbacks.  Heartbeats show `call` until
 * context_leave(). */
pen_status context_enter(pen_ctx *ctx, const char *call, bool waits);
pen_status context_leave(pen_ctx *ctx, pen_status status);

/* The row of this name, new if there is room; NULL: there is none, or the name is not clean UTF-8.  Call it under
 * monitor_lock. */
context_metric *context_find_metric(pen_ctx *ctx, const char *name);
/* A step has ended: the totals of its scalars are metrics of the lowest live rank.  Under the step's lock. */
void context_note_scalars(pen_ctx *ctx);
/* Writes what is new since the last call to the setting log_to, as of the newest ended step. */
void context_log_step(pen_ctx *ctx);

/* The function of pen_on_command(); NULL: none. */
pen_command_fn context_command(pen_ctx *ctx, void **user);

/* Records the first failure of the job; every later call returns it. */
void context_fail(pen_ctx *ctx, const pen_error *why);

/* Keeps the first of several errors.  Returns its own status. */
pen_status context_remember(pen_error *kept, const pen_error *why);

#endif
