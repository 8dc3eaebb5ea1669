/* core.h - the scheduler as a pure state machine: who is here, what lies where, who died.
 *
 * DESIGN.  No socket, clock, thread, file or global: messages and the time go in, actions come
 * out, so the simulator drives the same code as the process does.  `peer` is the caller's number
 * for a connection; a member has at most one, the one its newest HELLO came by, and what arrives
 * by another is ignored.
 *
 * The phases of a job, in order (docs/design/protocol.md has the flow):
 *   JOINING      workers and servers come; a process that goes leaves its seat free
 *   REGISTERING  all are here; workers say what the model is
 *   LOADING      the plan is out; servers make room and restore
 *   TRAINING     from here on the scheduler watches, collects snapshots, and changes the epoch when
 *                members or copies do (core_epoch.c)
 *   STOPPING     all workers left in good order; servers are asked to end
 *   FAILED       there is a verdict; everybody is told, whoever comes back is told again
 *   ENDED        nothing happens any more
 * The first cause wins: a job has at most one verdict.  A job without servers has no LOADING.  With
 * on_worker_loss=continue the death of a worker is no verdict while another lives (core_loss.c), and with
 * replicas that of a server is none while a copy of each of its shards lives.
 *
 * Promised: death is declared only here, and never because this process was itself held up: time
 * that passed while nobody called in is given back to every lease.
 */
#ifndef SCHEDULER_CORE_H
#define SCHEDULER_CORE_H

#include "proto/stuck.h"
#include "proto/wire.h"
#include "scheduler/core/scheduler_settings.h"

typedef struct scheduler_core scheduler_core;

/* Called from inside the functions below; must not call them. */
typedef struct {
    /* One message to n peers; nothing it points to outlives the call. */
    void (*send)(void *user, const uint32_t *peers, uint32_t n, const wire_control *message);
    void (*log)(void *user, int level, const char *line);
    /* Once.  PEN_OK: all workers left in good order; else *why is the verdict. */
    void (*ended)(void *user, pen_status status, const pen_error *why);
    void *user;
    /* Keeps these bytes in the place of those before them; they are durable when it returns.  No bytes: the
     * job is over, and nothing is to be kept.  NULL: nothing ever is, and the job ends with its scheduler.  The
     * sentence of a failure is the shell's to log. */
    pen_status (*keep)(void *user, const void *data, size_t size);
} scheduler_actions;

/* `term` is larger at each start of a scheduler (milliseconds since 1970); `master` is how others
 * call this host, for sentences.  Settings are copied.
 * Errors  PEN_BAD_SETTING  settings that contradict each other.   PEN_NO_MEMORY */
pen_status scheduler_core_create(const scheduler_settings *settings, uint64_t term,
                                 const char *master, const scheduler_actions *actions,
                                 uint64_t now_ms, scheduler_core **core, pen_error *why);
void scheduler_core_destroy(scheduler_core *core);

/* The highest term that state kept by a scheduler knows of: that of the next one must be larger.  0: this is
 * no such state.  Any bytes are safe. */
uint64_t scheduler_core_kept_term(const void *state, size_t size);

/* Goes on where the scheduler was that kept this state; directly after create.  Nobody is declared dead for
 * one lease, and a job that trains with servers begins with an epoch change.
 * Errors  CORRUPT  not such a state.   NO_MEMORY.   The core is then to be destroyed. */
pen_status scheduler_core_load(scheduler_core *core, const void *state, size_t size,
                               uint64_t now_ms, pen_error *why);

/* now_ms never goes back.  The message is BORROWED for the call; any content is safe. */
void scheduler_core_receive(scheduler_core *core, uint32_t peer, const wire_control *message,
                            uint64_t now_ms);
void scheduler_core_peer_down(scheduler_core *core, uint32_t peer, uint64_t now_ms);
void scheduler_core_tick(scheduler_core *core, uint64_t now_ms);

/* When it wants the next tick; UINT64_MAX: not before something else happens.  Who asks promises
 * to call tick by then: a later call counts as a pause of this process. */
uint64_t scheduler_core_next_ms(scheduler_core *core);

/* Ends the job with this verdict, as a member's FAILURE would. */
void scheduler_core_fail(scheduler_core *core, const pen_error *why, uint64_t now_ms);

/* Before anybody has joined: the job will not begin.  Whoever says HELLO within so many ms hears this sentence. */
void scheduler_core_decline(scheduler_core *core, const pen_error *why, uint64_t now_ms,
                            uint64_t ms);

/* What its will calls it: where it listens, "10.0.0.7:29500", and the host it runs on.  Before anybody
 * joins; else it is `master`. */
void scheduler_core_introduce(scheduler_core *core, const char *address, const char *host);

/* Tells the whole job, as STATUS does: once, before it returns; nothing it points to outlives the call.
 * False: no memory, and nothing was told. */
typedef void (*scheduler_status_fn)(void *user, const wire_control *status);
bool scheduler_core_describe(const scheduler_core *core, uint64_t now_ms, scheduler_status_fn tell,
                             void *user);

enum { SCHEDULER_POINTS_MAX = 256, SCHEDULER_METRICS_MAX = 8 };
typedef struct { /* of a job's curve; bytes since its beginning, of all workers */
    double at_s, push_bytes, pull_bytes, coll_bytes;
    int64_t step;
    double metric[SCHEDULER_METRICS_MAX]; /* mean of the lowest ranks; no number: nobody said it */
} scheduler_point;
typedef struct {
    uint32_t n, n_metrics;
    const scheduler_point *point;              /* [n], oldest first */
    const char *metric[SCHEDULER_METRICS_MAX]; /* [n_metrics] names */
} scheduler_history;
/* How the job went so far.  BORROWED until the next call of anything else. */
void scheduler_core_history(const scheduler_core *core, scheduler_history *out);

/* Asks all workers for their last calls.  What has come of that so far, merged: NULL before the first time;
 * BORROWED until the next. */
void scheduler_core_ask_records(scheduler_core *core, uint64_t now_ms);
const stuck *scheduler_core_records(const scheduler_core *core);

/* Whether this connection is that of a worker or server of the job. */
bool scheduler_core_is_member(const scheduler_core *core, uint32_t peer);

/* Counts a frame the caller could not decode; shown in STATUS. */
void scheduler_core_refused(scheduler_core *core);

#endif
