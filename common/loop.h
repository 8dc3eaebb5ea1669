/* loop.h - one thread's event loop: sources, timers, tasks from other threads, then sleep.
 *
 * One turn:  drain every source until all are dry  ->  run tasks posted by other threads  ->  timers
 *            that are due  ->  before-sleep hooks (flush what was batched)  ->  poll.
 * A source is drained by calling it, not by trusting its descriptor: ZeroMQ's descriptor is
 * edge-triggered and may have been consumed by a send.  No thread spins: a turn without work sleeps
 * until a descriptor, a timer or a post wakes it.
 *
 * Everything here belongs to the thread that runs the loop, except loop_post() and loop_stop().
 */
#ifndef COMMON_LOOP_H
#define COMMON_LOOP_H

#include "penstock.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct loop loop;

/* Handles what is ready now, at most a bounded batch.  Returns true if it did anything: it is then
 * called again before the loop sleeps. */
typedef bool (*loop_drain_fn)(void *user);
typedef void (*loop_fn)(void *user);

typedef struct loop_timer {
    uint64_t due_ms; /* 0 = not running */
    loop_fn fn;
    void *user;
    struct loop_timer *next; /* of the loop */
} loop_timer;

typedef struct loop_task { /* posted by any thread; memory is the poster's until fn has run */
    loop_fn fn;
    void *user;
    struct loop_task *next; /* of the loop */
} loop_task;

loop *loop_create(pen_error *why);
void loop_destroy(loop *self);

pen_status loop_add(loop *self, int fd, loop_drain_fn drain, void *user, pen_error *why); /* fd -1: no descriptor */
void loop_remove(loop *self, void *user); /* also from inside a drain */
pen_status loop_before_sleep(loop *self, loop_fn fn, void *user, pen_error *why);

uint64_t loop_now_ms(const loop *self); /* of the current turn; clock_real */
void loop_timer_start(loop *self, loop_timer *timer, uint64_t due_ms, loop_fn fn, void *user); /* restarts one that runs */
void loop_timer_stop(loop *self, loop_timer *timer);

/* Runs task->fn in the loop's thread.  Tasks of one thread keep their order.  Wakes the loop only
 * if it sleeps, so a burst of posts costs one system call. */
void loop_post(loop *self, loop_task *task);

void loop_run(loop *self);                         /* until loop_stop()                         */
bool loop_turn(loop *self, uint64_t wait_ms_max);  /* one turn; true if it did anything         */
void loop_stop(loop *self);                        /* any thread, and async-signal-safe         */

#endif
