/* membership_client.h - a worker's side of the protocol with the scheduler.  A pure state machine.
 *
 * DESIGN.  A member (membership/membership.h) that registers a model and trains.  Like the ps
 * client it has no socket, clock or thread: connection events, decoded messages and the time go in,
 * messages and callbacks come out.  A message without an answer is sent again once a second and
 * after each reconnect; the scheduler recognises repeats.  The shell decides on READY
 * (membership_client_ready()): it has the plan and all connections.
 */
#ifndef WORKER_MEMBERSHIP_CLIENT_H
#define WORKER_MEMBERSHIP_CLIENT_H

#include "membership/membership.h"

typedef struct membership_client membership_client;

typedef struct {
    int32_t rank, world_size, servers, pid;
    int32_t local_rank, local_world_size, node; /* from the launcher; -1: unknown */
    uint64_t nonce;                             /* drawn once per process */
    uint64_t number; /* in its shared memory, as a proof for members that map it; 0: none */
    /* can be sealed: a job without servers changes its epoch when all workers can */
    bool holds_state;
    uint64_t lease_ms, init_timeout_ms;
    uint64_t answer_ms; /* longest wait for the first answer of the scheduler; 0: init_timeout_ms */
    uint64_t beat_ms_max;   /* longest time between beats; 0: from the lease */
    const char *host, *job; /* copied */
    const char *machine;    /* identity of the machine, the unit that fails together; copied */
    const char *scheduler;  /* "10.0.0.7:29500", for sentences; copied */
    uint32_t n_addresses;
    const char *const *address; /* where other workers reach this one; BORROWED */
} membership_client_setup;

/* Called by the functions below; must not call them. */
typedef struct {
    void (*send)(void *user, const wire_control *message);
    /* All members are here; again whenever members or holders of shards change.  Epochs only grow. */
    void (*epoch)(void *user, const wire_control *message);
    void (*plan)(void *user, const wire_control *message);        /* placement of partitions */
    void (*committed)(void *user, int64_t step, int64_t applied); /* servers are ready */
    void (*snapshot_done)(void *user, int64_t step, pen_status status, const char *text);
    void (*snapshot_please)(void *user); /* rank 0: with the next step */
    void (*left)(void *user);            /* BYED, or the scheduler is gone */
    void (*failed)(void *user, const pen_error *why);
    void (*fill_beat)(void *user, wire_control *beat); /* everything but seq */
    const char *(*describe_silence)(void *user);       /* "(...)": what a probe of the port finds */
    void (*log)(void *user, int level, const char *line);

    /* The following may be NULL. */
    /* The job continues without that worker; once each. */
    void (*lost)(void *user, int32_t rank, const pen_error *why);
    /* Answered by membership_client_send(). */
    void (*record_please)(void *user, uint64_t id, uint64_t asker);
    void (*renew)(void *user); /* the scheduler is silent: open a second connection */
    void (*stop)(void *user);  /* this worker is asked to leave after its step */
    /* Maps the memory of these workers: ranks of those that worked and the numbers read there, [n] each.  Returns the
     * count. */
    uint32_t (*prove)(void *user, const wire_member *worker, uint32_t n, int32_t *rank,
                      uint64_t *number);
    /* With holds_state: pauses until the next epoch and returns the number of applied steps. */
    int64_t (*seal)(void *user);
} membership_client_actions;

membership_client *membership_client_create(const membership_client_setup *setup,
                                            const membership_client_actions *actions, void *user,
                                            uint64_t now_ms, pen_error *why);
void membership_client_destroy(membership_client *self); /* NULL is fine */

void membership_client_receive(membership_client *self, const wire_control *message,
                               uint64_t now_ms);

/* model is BORROWED until committed or failed. */
void membership_client_register(membership_client *self, const wire_model *model, uint64_t now_ms);

/* After `plan`: all connections are up.  COMMITTED follows when all members have sent READY. */
void membership_client_ready(membership_client *self, uint64_t now_ms);

/* Sends a message for others, for example requests.h.  May be lost, and is lost before joining. */
void membership_client_send(membership_client *self, const wire_control *message);

/* Reports a call that waits too long; the scheduler answers with a line for the log. */
void membership_client_overdue(membership_client *self, const char *what, uint64_t waited_ms,
                               const int32_t *missing, uint32_t n, bool is_quiet);

void membership_client_snapshot(membership_client *self);

/* In membership_client_actions.committed: states of the workers in the restored snapshot; BORROWED. */
const void *membership_client_states(const membership_client *self, size_t *size);
/* FAILURE: this member cannot continue. */
void membership_client_report(membership_client *self, const pen_error *why);

/* The member underneath: connection events, time and leaving go to it. */
membership *membership_client_core(membership_client *self);

/* The place in WELCOME, for a worker that is not in a view yet; -1: none. */
void membership_client_place(const membership_client *self, int32_t *local_rank, int32_t *node);

#endif
