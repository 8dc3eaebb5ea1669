/* engine_internal.h - what the files of the engine share.
 *
 * DESIGN
 * Locks.     `lock` guards groups, their queues and the flight recorder; it is never held while a path works or foreign
 *            code is called.  `mesh_lock` is the engine's lock of mesh.h: it is held around every function of mesh.h
 *            and of the wire path.  No thread holds both.
 * Drivers.   One thread at a time drives a group (is_driven): a thread that waits for one of its calls, or "pen-coll"
 *            if none does.  engine_drive() is a turn; it releases the lock in one place.
 * Callbacks. An ended call is set aside; its callback runs without the lock.
 */
#ifndef WORKER_COLL_ENGINE_INTERNAL_H
#define WORKER_COLL_ENGINE_INTERNAL_H

#include "worker/collective/device/device.h"
#include "worker/collective/engine/engine.h"
#include "worker/collective/engine/group.h"
#include "worker/collective/engine/recorder.h"
#include "worker/collective/hier/hier.h"
#include "worker/collective/net/mesh.h"
#include "worker/collective/shm/node.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    ENGINE_NAP_US       = 20000, /* longest sleep: deadlines and failures are checked after it */
    ENGINE_NAP_IDLE_US  = 80000, /* the same when nothing has happened for a while */
    ENGINE_NAP_CROWD    = 64,  /* workers of a host: with more, all sleeps are longer by as much */
    ENGINE_POLL_US      = 500, /* how long a device is asked again and again, before naps */
    ENGINE_NAP_POLL_US  = 100, /* with two kinds of link (a thread sleeps on one), or a device */
    ENGINE_SPIN_US      = 200, /* on the mesh, before a sleep; adding up a piece takes less */
    ENGINE_SPIN_BUSY_US = 50,  /* the same with more workers than cores */
    ENGINE_CROWD        = 4,   /* workers for each core: more do not spin */
    ENGINE_ECHO_MS      = 200, /* time for a peer that gave up to report why */
    ENGINE_FAULT_MS     = 500, /* minimum wait for the scheduler's verdict */
    ENGINE_LOGGED_CALLS = 10,  /* after a failure */
    ENGINE_ADDRESSES    = 5,
    ENGINE_ADDRESS_SIZE = 512,
    CALL_NAME_BYTES     = 160
};

/* engine_call.c has the table of what each does. */
typedef enum {
    CALL_QUEUED,    /* behind others of its group, or chooses its path */
    CALL_AGREEING,  /* members vote whether all can reach each other's devices */
    CALL_STAGING,   /* device buffers are copied to host memory, for a path of the host */
    CALL_RUNNING,   /* the path works */
    CALL_RETURNING, /* results are copied from host memory to device buffers */
    CALL_FAULTING,  /* the job looks for the sentence of all members */
    CALL_ENDED,
    CALL_FAILED
} call_state;

typedef struct engine_call {
    struct engine_call *next, *prev;
    pen_group *g;
    coll_call call;
    call_state state;      /* only its driver uses it */
    bool has_ended;        /* under the lock */
    const coll_path *path; /* its group's, or the device path */
    void *team;
    uint64_t path_seq; /* counts the calls of this path's team */
    bool on_mesh;
    struct engine_stage *stage; /* the copies in host memory of device buffers; else NULL */
    const device_ops *ops;      /* of its buffers */
    coll_call vote;             /* AGREEING: the call that runs first */
    int32_t can, all_can;       /* the vote's input and output */
    bool is_one_sided;          /* a mismatch that other members may not have found */
    uint64_t seq, begun_ms, deadline_ms, warn_at_ms, tell_at_ms, report_at_ms, fault_until_ms;
    uint64_t begun_ns, since_ns; /* for the timeline, for the counters; 0: off */
    bool is_reported;            /* the job knows of its failure here */
    uint64_t entry;              /* in the flight recorder */
    pen_status status;
    coll_done_fn done; /* NULL: the waiting thread owns the call */
    void *user;
    size_t *counts, *out_counts; /* copies, OWNED */
    pen_error why;
    char label[COLL_LABEL_BYTES];
    _Alignas(64) uint8_t op[COLL_OP_BYTES];
} engine_call;

/* The device of a call's buffers; without any, that of the calling thread. */
static inline int engine_device_of(const coll_call *call, const device_ops *ops)
{
    const void *data = call->in != NULL ? call->in : call->out;
    return data != NULL ? ops->device(data) : ops->current();
}

typedef struct engine_message { /* a send or receive that the thread "pen-coll" drives */
    struct engine_message *next, *prev;
    pen_group *g;
    mesh_message *message;
    uint64_t deadline_ms, begun_ms;
    void (*done)(void *user, const mesh_result *result);
    void *user;
    mesh_result result;
} engine_message;

struct coll_engine {
    coll_setup setup;
    coll_job job;
    void *user;
    int world_size, rank;
    bool is_alone;
    sum_order order;
    int two_level; /* worker_two_level */
    uint64_t warn_ms;
    uint64_t verdict_ms; /* how long to wait for the job's verdict */

    pthread_mutex_t mesh_lock;
    mesh *mesh;
    /* to sleep on; news_fd: an eventfd that wakes threads asleep on the mesh */
    int mesh_fd, news_fd;
    atomic_int mesh_sleepers;
    bool has_core;   /* the workers of this host do not outnumber its cores */
    bool is_crowded; /* they do by far */
    double stretch;  /* of sleeps */
    schedule_table *table;
    node_place *place;          /* NULL: no shared memory */
    device_place *device_place; /* NULL: a build without devices, or no shared memory */
    char address_text[ENGINE_ADDRESSES][ENGINE_ADDRESS_SIZE];
    const char *address[ENGINE_ADDRESSES];
    uint32_t n_addresses;

    /* The members; written once, by coll_engine_joined(). */
    int n_members;
    void *members, *texts;                               /* the memory of the arrays [n_members] */
    const char **host, **node_address, **device_address; /* [n_members] */
    int *local_rank, *node_of;                           /* [n_members] from the scheduler */
    int *place_of; /* [n_members] lowest rank of the set that can map each other's memory */
    bool *is_lost; /* under the lock, [n_members] */
    /* under the lock, [n_members] how each was lost; NULL: none was, or memory ran out */
    pen_error *loss;

    /* guards the groups that are made on first use; taken before the other locks */
    pthread_mutex_t making;
    pthread_mutex_t lock;
    /* ended: a call ended or a group can be driven; work: "pen-coll" has work */
    pthread_cond_t ended, work;
    pen_group **group;
    int n_groups;
    pen_group *node_group, *across_group;
    engine_message *messages;
    struct self_message *self_sent, *self_waiting; /* of groups of one */
    engine_call *over;                             /* ended calls whose callbacks have not run */
    bool has_failed, is_stopping, has_thread;
    pen_error failure;
    pthread_t thread;
    record record;
};

/* ---- engine_sleep.c ------------------------------------------------------------------------------------------ */
/* What a driver of groups sleeps on. */
typedef struct {
    bool node, wire, polled; /* doorbell, mesh, a link without a wake-up */
    bool may_spin;           /* its thread has nothing else to do */
    uint64_t idle_ns;        /* since when nothing has happened; 0: unknown */
} engine_links;
bool engine_mesh_advance(coll_engine *e);
/* Wakes other threads that sleep on the mesh: messages that this thread read may be for them. */
void engine_pass_on(coll_engine *e);
/* What a driver has seen before its turn: news since then keep it awake. */
typedef struct {
    uint32_t node, mesh;
} engine_seen;
engine_seen engine_see(const coll_engine *e);
void engine_nap(coll_engine *e, engine_seen seen, engine_links links);
/* Wakes all threads in engine_nap() and those that wait for work; not with mesh_lock held. */
void engine_wake(coll_engine *e);
/* With the lock held: waits for `ended` until until_ms (0: no limit).  Not 0: the time is over. */
int engine_await(coll_engine *e, uint64_t until_ms);

/* ---- engine_begin.c ------------------------------------------------------------------------------------------ */
/* Fills a call; what it points to stays BORROWED.  patience_ms: the time until its deadline; 0: it has none. */
void engine_call_fill(engine_call *c, pen_group *g, const coll_call *call, uint64_t patience_ms);
/* With the lock held: queues it.  Not PEN_OK: the call has not begun. */
pen_status engine_call_begin(engine_call *c, pen_error *why);
/* Begins a call, and drives its group until it has ended. */
pen_status engine_run(pen_group *g, const coll_call *call, uint64_t patience_ms, pen_error *why);
/* OK: the stream waits for the call that coll_submit() got `user` for, whose done() is never called; a later failure is
 * the group's.  AGAIN: done() has been or will be called.  First drives the group until the call is enqueued. */
pen_status engine_follow(pen_group *g, const void *user, device_stream stream, pen_error *why);

/* ---- engine_call.c ------------------------------------------------------------------------------------------- */
/* By the driver, without the lock, of the group's oldest call.  due: the queued call with the first deadline; NULL: none.
 * True: it made progress.  CALL_ENDED and CALL_FAILED (c->why) are the driver's to record. */
bool engine_call_advance(engine_call *c, const engine_call *due);
/* The group has failed: ENDED if the call has all it needs, else FAILED. */
void engine_call_give_up(engine_call *c);
/* OK: the stream waits for the call.  AGAIN: it cannot yet. */
pen_status engine_call_follow(engine_call *c, device_stream stream, pen_error *why);
void engine_call_name(const engine_call *c,
                      char name[CALL_NAME_BYTES]); /* "barrier 'epoch end' (call 212)" */

/* After how long the scheduler is told that a call waits, which then finds waits that cannot end: 1 s, then doubling. */
static inline uint64_t engine_tell_after(const coll_engine *e, uint64_t waited_ms)
{
    const uint64_t most = e->verdict_ms / 2, next = waited_ms > 1000 ? waited_ms : 1000;
    return next < most ? next : most;
}

/* ---- engine_drive.c ------------------------------------------------------------------------------------------ */
typedef struct {      /* wants a stream to wait for a call, instead of its thread */
    const void *user; /* the call's */
    device_stream stream;
    pen_status status; /* AGAIN: not yet */
    pen_error *why;
} engine_follower;
/* NULL: it has ended, or f is NULL. */
engine_call *engine_find_followed(const pen_group *g, const engine_follower *f);
/* A turn of a driver: called with the lock held; releases it while calls are worked on.  f: NULL, or who wants to follow
 * a call.  True: it made progress. */
bool engine_drive(coll_engine *e, pen_group *g, engine_follower *f);
/* It has a call, or it has failed and work of its device waits for other members. */
bool engine_must_drive(const pen_group *g);
void engine_add_links(const pen_group *g, engine_links *links); /* under the lock */
void engine_notify(coll_engine *e); /* without the lock: callbacks of calls that ended */
void engine_call_free(engine_call *c);

/* ---- engine_path.c: by the driver, without the lock ----------------------------------------------------------- */
/* Set path, team, on_mesh and path_seq of a call, and return its next state: AGREEING (c->vote), STAGING or RUNNING. */
call_state engine_choose_path(engine_call *c);
call_state engine_settle_device(engine_call *c); /* after the vote */
/* True: the first call on devices failed on all members and moved nothing; STAGING is next.  False: another failure. */
bool engine_goes_round_device(engine_call *c);
/* True: a call failed in shared memory because a member cannot map the others; it and all later calls use sockets, and it
 * starts again.  False: another failure. */
bool engine_goes_round_node(engine_call *c);
pen_status engine_compare_memory(engine_call *c, pen_error *why); /* across members: OK, MISMATCH */

/* ---- engine_stage.c ------------------------------------------------------------------------------------------ */
pen_status engine_stage_begin(engine_call *c, pen_error *why); /* copies in */
coll_state engine_stage_state(engine_call *c, pen_error *why); /* of the copy in progress */
pen_status engine_stage_return(engine_call *c, pen_error *why);
pen_status engine_stage_follow(const engine_call *c, device_stream stream,
                               pen_error *why); /* the copy in progress */
void engine_stage_end(engine_call *c);          /* does nothing without a stage */
void engine_stages_free(pen_group *g);          /* waits for the copies in progress */

/* ---- engine_fault.c ------------------------------------------------------------------------------------------ */
void engine_group_fail(pen_group *g, const pen_error *why, bool names_call); /* under the lock */
/* Fails a new group that has a lost member: that loss is not reported again.  Under the lock. */
void engine_group_inherit(coll_engine *e, pen_group *g);
void engine_stop_free(pen_group *g);
/* Why no call can begin on the group; PEN_OK: it can.  Under the lock. */
pen_status engine_refuse(const coll_engine *e, const pen_group *g, pen_error *why);

typedef struct self_message self_message;

/* ---- engine_message.c: point to point ------------------------------------------------------------------------ */
typedef struct {
    bool is_send;
    int peer, tag;
    void *data;
    size_t n;
    pen_dtype dtype;
    const char *label;
} engine_transfer;
pen_status engine_transfer_run(pen_group *g, const engine_transfer *t, uint64_t deadline_ms,
                               mesh_result *result, pen_error *why);
pen_status engine_transfer_begin(pen_group *g, const engine_transfer *t, uint64_t deadline_ms,
                                 void (*done)(void *user, const mesh_result *result), void *user,
                                 pen_error *why);

/* ---- engine_thread.c ----------------------------------------------------------------------------------------- */
pen_status engine_thread_start(coll_engine *e, pen_error *why); /* under the lock; starts it once */
bool engine_message_look(engine_message *m); /* without the lock: whether it has ended, and how */

/* ---- engine_agree.c ------------------------------------------------------------------------------------------ */
/* "same:coll_lanes=2|": one of the addresses; "": all settings are the defaults. */
void engine_write_agreed(const coll_engine *e, char *text, size_t size);
/* MISMATCH: names the setting, its values and two ranks, with one sentence on all.  by_rank[n]: no host is NULL. */
pen_status engine_compare_agreed(const coll_member *by_rank, int n, pen_error *why);

/* ---- self.c -------------------------------------------------------------------------------------------------- */
extern const coll_path coll_path_self; /* a group of one: its team is NULL */
extern const coll_path
    coll_path_self_device; /* the same on device memory: its team is the device_ops */

#endif
