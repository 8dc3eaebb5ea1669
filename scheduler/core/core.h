/* core.h - the scheduler as a pure state machine: membership, placement and deaths.
 *
 * DESIGN.  No socket, clock, thread, file or global: messages and the time go in, actions come out.  The simulator
 * drives the same code as the process.  `peer` is the caller's number for a connection.  A member has at most one
 * connection, that of its newest HELLO; messages from any other are ignored.
 *
 * The phases of a job, in order (docs/design/protocol.md has the flow):
 *   JOINING      workers and servers come; a process that goes leaves its member slot free
 *   REGISTERING  all are here; workers register the model
 *   LOADING      the plan is out; servers allocate and restore
 *   TRAINING     the scheduler watches, collects snapshots, and changes the epoch when members or copies do
 *                (core_epoch.c)
 *   STOPPING     all workers left in good order; servers are asked to end
 *   FAILED       there is a verdict; it is sent to all, and again after a reconnect
 *   ENDED        final: nothing happens any more
 * The first cause wins: a job has at most one verdict.  A job without servers has no LOADING.  With
 * on_worker_loss=continue the death of a worker is not a verdict while another lives (core_loss.c).  With replicas the
 * death of a server is not one while a copy of each of its shards lives.
 *
 * Death is declared only here, and never because this process itself was paused: every lease gets that time back.
 */
#ifndef SCHEDULER_CORE_H
#define SCHEDULER_CORE_H

#include "proto/stuck.h"
#include "proto/wire/wire.h"
#include "scheduler/core/scheduler_settings.h"

typedef struct scheduler_core scheduler_core;

/* Called from inside the functions below; must not call them. */
typedef struct {
    /* Sends one message to n peers; its pointers are valid during the call only. */
    void (*send)(void *user, const uint32_t *peers, uint32_t n, const wire_control *message);
    void (*log)(void *user, int level, const char *line);
    /* Called once.  PEN_OK: all workers left in good order; else *why is the verdict. */
    void (*ended)(void *user, pen_status status, const pen_error *why);
    void *user;
    /* Replaces the kept state by these bytes; they are durable when it returns.  size 0: the job is over, delete the
     * state.  NULL: nothing is kept, and the job ends with its scheduler.  The shell logs why it failed. */
    pen_status (*keep)(void *user, const void *data, size_t size);
} scheduler_actions;

/* `term` grows with each start of a scheduler (milliseconds since 1970).  `master` is this host's name for others, for
 * sentences.  Settings are copied.
 * Errors  PEN_BAD_SETTING  settings that contradict each other.   PEN_NO_MEMORY */
pen_status scheduler_core_create(const scheduler_settings *settings, uint64_t term,
                                 const char *master, const scheduler_actions *actions,
                                 uint64_t now_ms, scheduler_core **core, pen_error *why);
void scheduler_core_destroy(scheduler_core *core);

/* The term in kept state: that of the next scheduler must be larger.  0: not such state.  Any bytes are safe. */
uint64_t scheduler_core_kept_term(const void *state, size_t size);

/* Continues from kept state; directly after create.  No member is declared dead for one lease, and a job that trains
 * with servers begins with an epoch change.
 * Errors   CORRUPT  not such state.   NO_MEMORY.   Then destroy the core. */
pen_status scheduler_core_load(scheduler_core *core, const void *state, size_t size,
                               uint64_t now_ms, pen_error *why);

/* now_ms never goes back.  The message is BORROWED for the call; any content is safe. */
void scheduler_core_receive(scheduler_core *core, uint32_t peer, const wire_control *message,
                            uint64_t now_ms);
void scheduler_core_peer_down(scheduler_core *core, uint32_t peer, uint64_t now_ms);
void scheduler_core_tick(scheduler_core *core, uint64_t now_ms);

/* When the next tick is due; UINT64_MAX: none.  The caller promises that tick: a late one counts as a pause of this
 * process. */
uint64_t scheduler_core_next_ms(scheduler_core *core);

/* Ends the job with this verdict, as a member's FAILURE would. */
void scheduler_core_fail(scheduler_core *core, const pen_error *why, uint64_t now_ms);

/* Before any member has joined: the job will not begin.  For this many ms every HELLO is answered by this sentence. */
void scheduler_core_decline(scheduler_core *core, const pen_error *why, uint64_t now_ms,
                            uint64_t ms);

/* Its address ("10.0.0.7:29500") and host for the last will.  Call it before any member joins; default: `master`. */
void scheduler_core_introduce(scheduler_core *core, const char *address, const char *host);

/* Calls `tell` once with the STATUS of the job; pointers are valid during the call.  False: no memory, not called. */
typedef void (*scheduler_status_fn)(void *user, const wire_control *status);
bool scheduler_core_describe(const scheduler_core *core, uint64_t now_ms, scheduler_status_fn tell,
                             void *user);

enum { SCHEDULER_POINTS_MAX = 256, SCHEDULER_METRICS_MAX = 8 };
typedef struct { /* of a job's curve; bytes of all workers since its beginning */
    double at_s, push_bytes, pull_bytes, coll_bytes;
    int64_t step;
    double metric[SCHEDULER_METRICS_MAX]; /* mean over the lowest ranks; NaN: none */
} scheduler_point;
typedef struct {
    uint32_t n, n_metrics;
    const scheduler_point *point;              /* [n], oldest first */
    const char *metric[SCHEDULER_METRICS_MAX]; /* [n_metrics] names */
} scheduler_history;
/* BORROWED until the next call of any function here. */
void scheduler_core_history(const scheduler_core *core, scheduler_history *out);

/* ask: asks all workers for their last calls.  records: the answers so far, merged; NULL before the first ask, BORROWED
 * until the next. */
void scheduler_core_ask_recorders(scheduler_core *core, uint64_t now_ms);
const stuck *scheduler_core_recorders(const scheduler_core *core);

/* Whether this connection belongs to a worker or server of the job. */
bool scheduler_core_is_member(const scheduler_core *core, uint32_t peer);

/* Counts a frame that the caller could not decode; STATUS shows the count. */
void scheduler_core_refused(scheduler_core *core);

#endif
