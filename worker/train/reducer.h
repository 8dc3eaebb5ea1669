/* reducer.h - buckets: sums the gradients of all ranks during the backward pass.
 *
 * DESIGN.  The gradients of a model lie side by side, in the order in which they become ready, and
 * are divided into buckets: a small first one, so that the first sum starts early, then large ones.
 * The sum of a bucket starts when its last gradient is ready and the sum of the bucket before it has
 * started.  So all ranks sum the same buckets in the same order, in any order of their own gradients.
 * The layout is the reverse of registration until reducer_arrange() sets another order.
 *   If the gradients have owners, each member gets only the sums that it owns (reduce_scatter instead
 * of all_reduce), and each bucket is laid out by owner.
 *   Each element is summed in rank order (coll.h), so the bucket borders change no bit.
 *   Memory comes from segment_alloc(), so that peers on the same host read and write it directly.  A
 * sum does not overwrite its input, so a failed step leaves this rank's share intact.
 *   With n_buffers a bucket has memory only from its first gradient until summed() has returned, so the gradients of a
 * model are never all in memory.  If all buffers are in use, the next gradient waits for one.  If no sum is in progress
 * then, because gradients arrive in another order than the layout, one more buffer is made for that time.
 *   reducer_set_first() sums the last buckets in reverse: the gradients that became ready last belong to the layers that
 * the next forward pass needs first.
 *   On a device (space.h) nothing waits for the device: gradients are written by work on the program's streams, sums are
 * enqueued on the space's stream behind it, and a call has ended when its sum is enqueued.  The stream waits for a bucket's
 * gradients when the sums before it are enqueued, so that none waits for gradients of later buckets.
 * Threads: one at a time calls begin, room, ready, wait and arrange; sums end on any thread.
 */
#ifndef WORKER_TRAIN_REDUCER_H
#define WORKER_TRAIN_REDUCER_H

#include "common/base/stat.h"
#include "worker/collective/coll.h"
#include "worker/tensor/device_copy/space.h"

#include <pthread.h>

typedef struct reducer reducer;

/* Begins one call on the group; coll_submit() with the owner's group and deadline. */
typedef pen_status (*reducer_submit_fn)(void *user, const coll_call *call, coll_done_fn done,
                                        void *done_user, pen_error *why);

/* Waits until *ended, the number of calls that have, differs.  It changes under the lock, which is held by the caller and
 * released meanwhile; then `changed` is signalled. */
typedef void (*reducer_await_fn)(void *user, const atomic_ullong *ended, pthread_mutex_t *lock,
                                 pthread_cond_t *changed);

typedef struct {
    uint32_t n;               /* gradients */
    const uint64_t *elements; /* [n] */
    const char *const *name;  /* [n] for error sentences; BORROWED */
    uint64_t first_bytes, bucket_bytes;
    const int *owner;          /* [n] member that gets the sum, BORROWED; NULL: all do */
    int size, rank;            /* of the group; only used with owners */
    const memory_space *space; /* of the buckets; NULL: the host; copied */
    reducer_submit_fn submit;
    reducer_await_fn await;
    /* 0: every bucket has its own memory, and reducer_sum() is valid after the wait */
    uint32_t n_buffers;
    stat_set *stats; /* counts memory; NULL: not counted */
    /* A gradient of this member is summed; may be NULL.  Runs before reducer_wait() returns, on the
     * thread that ended the call, and must not wait. */
    void (*summed)(void *user, uint32_t i);
    void *user;
} reducer_setup;

pen_status reducer_create(const reducer_setup *setup, reducer **r, pen_error *why);
void reducer_destroy(reducer *r); /* no call is in progress; NULL is fine */

void reducer_begin(reducer *r);                      /* a step begins */
void reducer_fail(reducer *r, const pen_error *why); /* reducer_wait() returns the first of these */
/* Where to write this rank's gradient i, in work enqueued on `stream`; the host ignores stream.  NULL: no memory;
 * reducer_wait() returns that failure. */
float *reducer_room(reducer *r, uint32_t i, device_stream stream);
/* It is written, or will be by work enqueued on `stream` before; once per step. */
void reducer_ready(reducer *r, uint32_t i, device_stream stream);
/* On a device: work enqueued on `stream` from here on runs after that which writes the gradients that are ready. */
pen_status reducer_join(reducer *r, device_stream stream, pen_error *why);
pen_status reducer_wait(reducer *r, pen_error *why); /* for all calls; the first failure */
/* Own sum, from wait to the next begin; with n_buffers only in summed().  On a device: for work on the space's stream. */
const float *reducer_sum(const reducer *r, uint32_t i);

/* The order of this step's ready() calls, after all n. */
const uint32_t *reducer_order(const reducer *r);

/* Sets the order from the next step on; the same on all ranks.  NULL: the reverse of registration.  CORRUPT: not a
 * permutation. */
pen_status reducer_arrange(reducer *r, const uint32_t *order, pen_error *why);

uint32_t reducer_buckets(const reducer *r);

/* From the next step on the first n buckets are summed in the order of the layout, then the others from the last one
 * back; the same on all ranks. */
void reducer_set_first(reducer *r, uint32_t n);
uint32_t reducer_summed(reducer *r); /* buckets whose sums have ended in this step; any thread */
/* Waits for the i-th bucket in the order of the sums; all gradients of the step are ready.  gradient[n]: its gradients,
 * whose sums are valid until the next begin.  Else the first failure. */
pen_status reducer_wait_bucket(reducer *r, uint32_t i, const uint32_t **gradient, uint32_t *n,
                               pen_error *why);

#endif
