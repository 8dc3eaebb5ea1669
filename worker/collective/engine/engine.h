/* engine.h - groups and their calls in progress; which thread drives them; deadlines; the flight recorder.
 *
 * DESIGN
 * Groups.    pen_group.  The world exists after joining; pen_group_new(), _split() and _shrink() make others.  A new
 *            group picks its path: node if all members share memory, wire if none do, else hier.  Calls on device
 *            memory take `device` if all share memory, else they are staged through host memory.
 * Driving.   Calls of a group run one after another in call order.  A blocking caller advances its own group and sleeps
 *            on the doorbell (node) or in poll (mesh).  The thread "pen-coll" advances calls that no thread waits for,
 *            and sleeps when it has none.
 * Verdicts.  A failed call fails its group.  The member that notices asks the scheduler (coll_job.fault), and all
 *            members get the first answer as their sentence.  Without an answer within the lease, the local one stands.
 */
#ifndef WORKER_COLL_ENGINE_H
#define WORKER_COLL_ENGINE_H

#include "common/base/stat.h"
#include "worker/collective/coll.h"
#include "worker/worker_env.h"

#include <stdatomic.h>

typedef struct coll_engine coll_engine;

typedef struct {
    int rank, local_rank, node;
    int sharing; /* lowest rank of the set that can map each other's memory; own rank: no other can */
    uint64_t incarnation;
    const char *host;
    uint32_t n_addresses;
    const char *const *address; /* from coll_engine_addresses() of that member */
} coll_member;

/* What the engine needs from the job.  Called on any thread; must not wait.  All are optional (NULL: alone). */
typedef struct {
    /* This member's call failed (TIMED_OUT, CORRUPT, ...): coll_engine_fault() follows with the sentence for all. */
    void (*fault)(void *user, uint64_t group, uint64_t call, const int *ranks, int n,
                  const pen_error *why);
    /* The call is overdue: the job logs the missing members, alive or not.  what: "barrier 'epoch end' (call 212)".
     * is_quiet: not logged; the job only checks whether the call can end. */
    void (*overdue)(void *user, const char *what, uint64_t waited_ms, const int *missing, int n,
                    bool is_quiet);
    /* The survivors of the group must agree on their list: coll_engine_shrunk() follows. */
    void (*shrink)(void *user, uint64_t group, const int *ranks, int n);
    /* Connecting to that worker fails: the job finds one sentence for all. */
    void (*unreached)(void *user, int rank, const char *address, const char *words);
} coll_job;

/* BORROWED while the engine lives. */
typedef struct {
    pen_ctx *ctx; /* of the groups; opaque here */
    const worker_settings *settings;
    const worker_env *env;
    const struct auth *auth; /* may be NULL */
    stat_set *stats;
    /* The group of all workers: usable after joining, at once when alone; NULL after the engine has freed it. */
    _Atomic(pen_group *) *world;
    void (*begin_thread)(void); /* first in each thread of the engine */
} coll_setup;

pen_status coll_engine_create(const coll_setup *setup, const coll_job *job, void *user,
                              coll_engine **engine, pen_error *why);
void coll_engine_destroy(coll_engine *engine); /* every call in progress has ended */

/* For `penstock bench tune`, on all members, between two calls: other rules for algorithms, and how many of the
 * connections of coll_lanes are used. */
pen_status coll_engine_tune(coll_engine *engine, const char *rules, uint64_t lanes, pen_error *why);

/* Call it periodically, from any thread: reads the network while no call is in progress, so that strangers cannot fill
 * this worker's memory with their messages. */
bool coll_engine_look(coll_engine *engine); /* true: it has read something */

/* Whether all connections that the present groups need are up.  Any thread. */
bool coll_engine_is_linked(coll_engine *engine);

/* For HELLO, before joining: "tcp://HOST:PORT", "node:...", "cuda:..." with a device, "host:ID" with a host_id, and
 * "same:...", the settings that must be equal on all members, where they are not the defaults. */
const char *const *coll_engine_addresses(const coll_engine *engine, uint32_t *n);

/* Settings let NCCL carry calls on this device's memory, and it is installed. */
bool coll_engine_may_use_nccl(const coll_engine *engine, const device_ops *ops);

/* For HELLO: a number in this process's memory, for peers that can map it; 0: it shares no memory. */
uint64_t coll_engine_number(const coll_engine *engine);
/* Opens the memory of others by their addresses.  Writes the ranks of the readable ones and their numbers, [n] each,
 * and returns how many.  Skips members with another host_id: the user has separated them. */
uint32_t coll_engine_prove(const coll_engine *engine, const coll_member *members, int n,
                           int32_t *rank, uint64_t *number);

/* From the thread "pen-io".  A failure is that of every call from here on. */
pen_status coll_engine_joined(coll_engine *engine, const coll_member *members, int n, uint64_t job,
                              pen_error *why);
/* The job continues without this member. */
void coll_engine_lost(coll_engine *engine, int rank, const pen_error *why);
/* A call failed because the members have changed: the scheduler decides whether the job can continue.  Any thread. */
void coll_engine_report_change(coll_engine *engine, uint64_t group, const pen_error *why);
void coll_engine_fault(coll_engine *engine, uint64_t group, uint64_t call, const pen_error *why);
void coll_engine_shrunk(coll_engine *engine, uint64_t group, uint64_t new_group,
                        const int *survivors, int n, const pen_error *why);
/* The job is over: every call ends with this sentence. */
void coll_engine_fail(coll_engine *engine, const pen_error *why);

/* The last 1,000 calls as JSON lines, oldest first, for `penstock status --stuck`; async-signal-unsafe.  malloc()ed. */
char *coll_engine_recorder(coll_engine *engine);

#endif
