/* liaison.h - what a worker says to the scheduler: a pure state machine.
 *
 * DESIGN.  A member (membership/membership.h) that registers a model, trains, and asks for what only the scheduler
 * can say.  Like the exchange it has no socket, clock or thread: connection events, decoded messages and the time go
 * in, messages and news come out.  Everything that is not answered is said again, once a second and after each
 * reconnect; the scheduler recognises what it has heard.
 * READY is the shell's to say, by liaison_ready(): when it has the plan and has reached all that it needs.
 */
#ifndef WORKER_LIAISON_H
#define WORKER_LIAISON_H

#include "membership/membership.h"

typedef struct liaison liaison;

typedef struct {
    int32_t rank, world_size, servers, pid;
    int32_t local_rank, local_world_size, node; /* as its launcher says; -1: it does not */
    uint64_t nonce;                             /* drawn once per process */
    uint64_t number; /* in its memory, for who can map it; 0: nobody may */
    bool
        holds_state; /* it can be sealed: a job without servers changes its epoch when all workers can */
    uint64_t lease_ms, init_timeout_ms;
    uint64_t answer_ms; /* longest silence before the scheduler's first word; 0: init_timeout_ms */
    uint64_t beat_ms_max;   /* longest time between beats; 0: what the lease makes of it */
    const char *host, *job; /* copied */
    const char *machine;    /* what fails together; copied */
    const char *scheduler;  /* "10.0.0.7:29500", for sentences; copied */
    uint32_t n_addresses;
    const char *const *address; /* where other workers reach this one; BORROWED */
} liaison_setup;

/* Called from within the functions below; must not call them. */
typedef struct {
    void (*send)(void *user, const wire_control *message);
    /* All members are here; later again, each time that they, or who holds which shard, have changed.
     * Only newer ones than before. */
    void (*epoch)(void *user, const wire_control *message);
    void (*plan)(void *user, const wire_control *message); /* where partitions lie          */
    void (*committed)(void *user, int64_t step,
                      int64_t applied); /* servers are ready             */
    void (*snapshot_done)(void *user, int64_t step, pen_status status, const char *text);
    void (*snapshot_please)(void *user); /* rank 0: with the next step    */
    void (*left)(void *user);            /* BYED, or nobody is there to say it */
    void (*failed)(void *user, const pen_error *why);
    void (*fill_beat)(void *user, wire_control *beat); /* everything but seq            */
    const char *(*describe_silence)(void *user);       /* "(...)": what a probe of the port finds */
    void (*log)(void *user, int level, const char *line);

    /* Those that follow may be NULL where nobody asks. */
    void (*lost)(void *user, int32_t rank, const pen_error *why);   /* the job goes on; once each */
    void (*record_please)(void *user, uint64_t id, uint64_t asker); /* answered by liaison_say() */
    void (*renew)(void *user); /* nothing is heard: open another connection beside this one */
    void (*stop)(void *user);  /* this worker shall leave in good order, after its step */
    /* Which of these can this one map?  Their ranks and the numbers read there, [n] each; how many. */
    uint32_t (*prove)(void *user, const wire_member *worker, uint32_t n, int32_t *rank,
                      uint64_t *number);
    /* With holds_state: it stands still until an epoch comes; how many steps have been applied here. */
    int64_t (*seal)(void *user);
} liaison_actions;

liaison *liaison_create(const liaison_setup *setup, const liaison_actions *actions, void *user,
                        uint64_t now_ms, pen_error *why);
void liaison_destroy(liaison *self); /* NULL is fine */

void liaison_up(liaison *self, uint64_t now_ms);
void liaison_down(liaison *self, uint64_t now_ms);
void liaison_receive(liaison *self, const wire_control *message, uint64_t now_ms);
void liaison_tick(liaison *self, uint64_t now_ms);
uint64_t liaison_due(const liaison *self);

void liaison_register(liaison *self, const wire_model *model,
                      uint64_t now_ms); /* BORROWED until committed or failed */

/* After `plan`: all connections that it needs are there.  COMMITTED follows when that is so everywhere. */
void liaison_ready(liaison *self, uint64_t now_ms);

/* What the liaison has no part in, such as what requests.h asks; may be lost, and is while it is not joined. */
void liaison_say(liaison *self, const wire_control *message);

/* Answered by a line in the log. */
void liaison_overdue(liaison *self, const char *what, uint64_t waited_ms, const int32_t *missing,
                     uint32_t n, bool is_quiet);

void liaison_snapshot(liaison *self);

/* In liaison_actions.committed: what the snapshot that the job goes on from keeps of the workers; BORROWED. */
const void *liaison_states(const liaison *self, size_t *size);
void liaison_report(liaison *self, const pen_error *why); /* FAILURE: this member cannot go on */
/* BYE, until `left`; within two seconds, or while the scheduler is away, within its grace. */
void liaison_leave(liaison *self, uint64_t now_ms);

/* Its incarnation, how long the scheduler has been silent, and the like. */
const membership *liaison_membership(const liaison *self);

/* Where WELCOME puts a worker that is in no record yet; -1: it does not. */
void liaison_place(const liaison *self, int32_t *local_rank, int32_t *node);

#endif
