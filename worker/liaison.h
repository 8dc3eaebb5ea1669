/* liaison.h - what a worker says to the scheduler: a pure state machine.
 *
 * DESIGN.  Joins (HELLO, WELCOME, EPOCH), registers the model, beats, meets, leaves.  Like the
 * exchange it has no socket, clock or thread: connection events, decoded messages and the time go
 * in, messages and news come out.  Everything that is not answered is said again, once a second and
 * after each reconnect; the scheduler recognises what it has heard.
 * The first failure (a VERDICT, the loss of the scheduler, a time-out) is final: `failed` is called
 * once.
 */
#ifndef WORKER_LIAISON_H
#define WORKER_LIAISON_H

#include "proto/wire.h"

typedef struct liaison liaison;

typedef struct {
    int32_t rank, world_size, servers, pid, local_rank, node;
    uint64_t nonce; /* drawn once per process */
    uint64_t lease_ms, init_timeout_ms;
    const char *host, *job; /* copied */
    const char *scheduler;  /* "10.0.0.7:29500", for sentences; copied */
} liaison_setup;

/* Called from within the functions below; must not call them. */
typedef struct {
    void (*send)(void *user, const wire_control *message);
    void (*epoch)(void *user, const wire_control *message); /* all members are here          */
    void (*plan)(void *user, const wire_control *message);  /* where partitions lie          */
    void (*committed)(void *user, int64_t step,
                      int64_t applied); /* servers are ready             */
    /* Of liaison_meet(); why NULL when PEN_OK. */
    void (*met)(void *user, void *token, const void *data, size_t size, const pen_error *why);
    void (*snapshot_done)(void *user, int64_t step, pen_status status, const char *text);
    void (*snapshot_please)(void *user); /* rank 0: with the next step    */
    void (*left)(void *user);            /* BYED, or nobody is there to say it */
    void (*failed)(void *user, const pen_error *why);
    void (*fill_beat)(void *user, wire_control *beat); /* everything but seq            */
    const char *(*describe_silence)(void *user);       /* "(...)": what a probe of the port finds */
    void (*log)(void *user, int level, const char *line);
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

/* op -1: a barrier.  data is copied.  deadline_ms is a time, 0 = none.  Not PEN_OK: no memory,
 * nothing was begun. */
pen_status liaison_meet(liaison *self, const char *label, int32_t op, pen_dtype dtype,
                        uint64_t count, const void *data, size_t size, uint64_t deadline_ms,
                        void *token, uint64_t now_ms);

/* What the liaison has no part in, such as COMMAND; may be lost, and is while it is not joined. */
void liaison_say(liaison *self, const wire_control *message);

void liaison_snapshot(liaison *self, uint64_t now_ms);
void liaison_report(liaison *self, const pen_error *why); /* FAILURE: this member cannot go on */
void liaison_leave(liaison *self, uint64_t now_ms); /* BYE, until `left`; within two seconds */

uint64_t liaison_incarnation(const liaison *self); /* 0 before WELCOME */

#endif
