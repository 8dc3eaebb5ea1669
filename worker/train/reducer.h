/* reducer.h - gradients of all ranks summed while the backward pass goes on: buckets.
 *
 * DESIGN.  The gradients of a model are laid side by side, in the order in which they become ready,
 * and cut into buckets: a small first one, so that something travels early, then large ones.  A
 * bucket is summed over the ranks as soon as its last gradient is there and the bucket before it
 * is under way, so all ranks sum the same buckets in the same order, whatever order their own
 * gradients come in.  The order is the reverse of registration until reducer_arrange() brings a better one.
 *   Where the gradients have owners, each member gets the sums of its own only (reduce_scatter
 * instead of all_reduce); inside a bucket they are then laid by owner.
 *   Sums are folds in rank order (coll.h) of elements, so where the cuts lie changes no bit.
 *   Memory is of segment_alloc(), so that peers on the same host read and write it directly; a sum
 * does not overwrite what was added, so a step that fails leaves this rank's share intact.
 *   With n_buffers a bucket has memory only from its first gradient until its sum was told (summed), so a model's
 * gradients never lie here all at once.  When all buffers are under way, the next gradient waits for one of them;
 * only where nothing is under way, because gradients come in another order than they are laid out in, is one more
 * made for as long as that lasts.
 * Thread: begin, room, ready, wait and arrange by one at a time; sums end on any.
 */
#ifndef WORKER_TRAIN_REDUCER_H
#define WORKER_TRAIN_REDUCER_H

#include "common/base/stat.h"
#include "worker/collective/coll.h"

typedef struct reducer reducer;

/* Begins one call on the group; coll_submit() with the owner's group and deadline. */
typedef pen_status (*reducer_submit_fn)(void *user, const coll_call *call, coll_done_fn done,
                                        void *done_user, pen_error *why);

typedef struct {
    uint32_t n;               /* gradients */
    const uint64_t *elements; /* [n] */
    const char *const *name;  /* [n] for sentences; BORROWED */
    uint64_t first_bytes, bucket_bytes;
    const int *owner; /* [n] member that gets the sum, BORROWED; NULL: all do */
    int size, rank;   /* of the group; where there are owners */
    reducer_submit_fn submit;
    uint32_t
        n_buffers; /* 0: every bucket has memory of its own, and reducer_sum() is for after the wait */
    stat_set *stats; /* where memory is counted; NULL: nowhere */
    /* A gradient of this member is summed; NULL: nobody asks.  On the thread that ended the call,
     * which may not wait, and before reducer_wait() returns. */
    void (*summed)(void *user, uint32_t i);
    void *user;
} reducer_setup;

pen_status reducer_create(const reducer_setup *setup, reducer **r, pen_error *why);
void reducer_destroy(reducer *r); /* no call is in progress; NULL is fine */

void reducer_begin(reducer *r); /* a step */
/* Where gradient i goes, as this rank adds it.  NULL: no memory, as reducer_wait() will say. */
float *reducer_room(reducer *r, uint32_t i);
void reducer_ready(reducer *r, uint32_t i);             /* it is there; once a step */
pen_status reducer_wait(reducer *r, pen_error *why);    /* for every call; the first failure */
const float *reducer_sum(const reducer *r, uint32_t i); /* own, after wait, until the next begin */
/* (with n_buffers: in summed() only) */

/* The order of this step's ready() calls; all n have been made. */
const uint32_t *reducer_order(const reducer *r);

/* From the next step on; the same on all ranks.  NULL: the reverse of registration.  CORRUPT: order is no permutation. */
pen_status reducer_arrange(reducer *r, const uint32_t *order, pen_error *why);

uint32_t reducer_buckets(const reducer *r);

#endif
