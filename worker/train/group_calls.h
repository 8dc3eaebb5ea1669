/* group_calls.h - a strategy's group calls, on its own group, and waiting for them.
 *
 * The group is separate because a program may call collectives between two pen_ready(), and ranks
 * may make gradients ready in different orders.
 * Threads: one at a time begins and waits; calls end on any thread.
 */
#ifndef WORKER_TRAIN_GROUP_CALLS_H
#define WORKER_TRAIN_GROUP_CALLS_H

#include "worker/collective/coll.h"
#include "worker/context.h"
#include "worker/train/reducer.h"

typedef struct {
    pen_ctx *ctx;
    pen_group *group;
    pen_group *second;    /* of the same members, for every other sum; NULL: none */
    uint32_t n_sums;      /* begun so far */
    const uint32_t *stop; /* coll_stop_word(); NULL: its calls are not on a device */
    /* A call had no memory to begin.  The others did begin it: a next one would be taken for it there. */
    atomic_bool is_out_of_step;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t ended;
    uint32_t in_progress;
    atomic_ullong n_ended; /* calls; changed under the lock */
    pen_error failure;     /* the first one since the last wait */
} group_calls;

void group_calls_init(group_calls *t, pen_ctx *ctx);
void group_calls_fini(group_calls *t); /* the context owns the group */

/* Its calls are on the device of a space: sets t->stop, and until group_calls_fini() the host's waits for that device end
 * with the failure of the group.  Before the first step. */
pen_status group_calls_take_space(group_calls *t, const memory_space *p, pen_error *why);
/* PEN_OK, or the failure of the group: what kernels made since may be no sum. */
pen_status group_calls_failure(const group_calls *t, pen_error *why);

/* coll_submit() with the setting deadline_ms.  A reducer_submit_fn; user is a group_calls. */
pen_status group_calls_submit(void *user, const coll_call *call, coll_done_fn done, void *done_user,
                              pen_error *why);

/* The same for the sums of a reducer, which all members begin in the same order: by turns on both groups, unless they are
 * in the order of a stream. */
pen_status group_calls_sum(void *user, const coll_call *call, coll_done_fn done, void *done_user,
                           pen_error *why);

/* A reducer_await_fn: drives the calls of its groups meanwhile; without any it sleeps on `changed`. */
void group_calls_await(void *user, const atomic_ullong *ended, pthread_mutex_t *lock,
                       pthread_cond_t *changed);

/* The buffers of call are BORROWED until group_calls_wait(). */
void group_calls_begin(group_calls *t, const coll_call *call);
/* A coll_done_fn; user is a group_calls. */
void group_calls_end(void *user, pen_status status, const pen_error *why);
/* Counts a call that ends by group_calls_end().  If that is no call of its group, the group has none meanwhile: whoever
 * waits for it drives that, and would not be woken. */
void group_calls_count(group_calls *t);

pen_status group_calls_wait(group_calls *t, pen_error *why);

/* Begins an all_gather of n elements, or of counts[size] by member. */
void group_calls_gather(group_calls *t, pen_dtype dtype, size_t n, const size_t *counts,
                        const void *in, void *out, const char *label);

/* Begins and waits: *lowest is the minimum of all members' `own`. */
pen_status group_calls_lowest(group_calls *t, int32_t own, int32_t *lowest, const char *label,
                              pen_error *why);

/* Begins and waits: all members get position 0's bytes. */
pen_status group_calls_broadcast(group_calls *t, void *data, size_t bytes, const char *label,
                                 pen_error *why);

/* Waits for all calls of t, and of a reducer that submits through it; returns the first failure. */
pen_status group_calls_wait_for_sums(group_calls *t, reducer *r, pen_error *why);

/* After the first step: all members use position 0's order of n gradients.  *is_arranged: already done. */
pen_status group_calls_arrange(group_calls *t, reducer *r, uint32_t n, bool *is_arranged,
                               pen_error *why);

#endif
