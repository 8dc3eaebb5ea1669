/* loop.h - one thread's event loop: sources, timers, tasks from other threads, then sleep.
 *
 * One turn:  drain every source until it is dry  ->  run tasks posted by other threads
 *            ->  timers that are due  ->  before-sleep hooks (flush what was batched)  ->  poll.
 * A source is drained by calling it, not by trusting its descriptor: ZeroMQ's descriptor is
 * edge-triggered and may have been consumed by a send.  A turn without work sleeps until a descriptor, a timer or a post
 * wakes it; with loop_spin() it looks a little longer first.
 *
 * Everything here belongs to the thread that runs the loop, except loop_post() and loop_stop(); the
 * loop must outlive every call of those two.  A turn may not be started from inside a turn.
 */
#ifndef COMMON_LOOP_H
#define COMMON_LOOP_H

#include "penstock.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct loop loop;

/* Handles a bounded batch of what is ready.  Returns true if it did anything; the loop then calls it again before
 * sleeping. */
typedef bool (*loop_drain_fn)(void *user);
typedef void (*loop_fn)(void *user);

/* Owned by the caller, zeroed before first use; must not move while the timer runs. */
typedef struct loop_timer {
    uint64_t due_ms; /* 0 = not running */
    loop_fn fn;
    void *user;
    uint64_t order; /* used by the loop: place in a heap */
    struct loop_timer *next, *prev, *child;
} loop_timer;

typedef struct loop_task { /* posted by any thread; owned by the poster until fn has run */
    loop_fn fn;
    void *user;
    struct loop_task *next; /* of the loop */
} loop_task;

loop *loop_create(pen_error *why);
void loop_destroy(loop *self); /* drops tasks that have not run; NULL is fine */

/* fd -1: a source without a descriptor; drained in every turn, but does not wake the loop. */
pen_status loop_add(loop *self, int fd, loop_drain_fn drain, void *user, pen_error *why);

/* Removes every source and hook of `user`, also from inside a drain, task, timer or hook: none of them is called
 * again.  Call before closing the descriptor. */
void loop_remove(loop *self, void *user);

/* Hooks run at the end of every turn, in the order they were added. */
pen_status loop_before_sleep(loop *self, loop_fn fn, void *user, pen_error *why);

uint64_t loop_now_ms(const loop *self); /* of the current turn; clock_real */

/* Runs fn once, at due_ms or soon after; a past due_ms counts as now.  Timers run in the order they are due, equal
 * ones in the order they were started.  Restarts a running one.  A timer may start or stop any timer, itself too;
 * timers it starts run in a later turn.
 * Cost   O(1) to start, O(log n) amortised to stop, restart or run; allocates nothing. */
void loop_timer_start(loop *self, loop_timer *timer, uint64_t due_ms, loop_fn fn, void *user);
void loop_timer_stop(loop *self, loop_timer *timer); /* no effect if not running */

/* Runs task->fn in the loop's thread.  Tasks of one thread keep their order.  Wakes the loop only
 * if it sleeps, so a burst of posts costs one system call.  Thread  any; async-signal-safe. */
void loop_post(loop *self, loop_task *task);

/* A thread that is woken costs more than most messages are on their way: the loop now looks for 50 us after its last work
 * before it sleeps, and lets other threads run between two looks.  Nothing if `threads`, those of this host that do the
 * same, leave no core to the program. */
void loop_spin(loop *self, int64_t threads);

/* Turns until loop_stop(), even an earlier one.  Tasks posted before the stop have run. */
void loop_run(loop *self);
/* One turn.  True if it did anything and so did not sleep.  UINT64_MAX waits without limit. */
bool loop_turn(loop *self, uint64_t wait_ms_max);
void loop_stop(loop *self); /* any thread, and async-signal-safe */

#endif
