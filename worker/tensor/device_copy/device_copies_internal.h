/* device_copies_internal.h - shared by device_copies*.c only.
 *
 *     device_copies.c         life, memory of tensors, explicit verbs
 *     device_copies_down.c    gradients: sums of micro-batches, copies to the host, and the thread that waits for them
 *     device_copies_up.c      values: first ones, and copies to the device
 */
#ifndef WORKER_DEVICE_COPIES_INTERNAL_H
#define WORKER_DEVICE_COPIES_INTERNAL_H

#include "worker/context.h"
#include "worker/tensor/device_copy/device_copies.h"

#include <stdatomic.h>

enum {
    DEVICE_COPIES_AHEAD = 2
}; /* units that may be released before the device has computed them */

typedef struct device_copies_job { /* a copy in progress */
    struct device_copies_job *next, *prev;
    pen_tensor *tensor;
    pinned_pair *pinned_pair;
    bool is_up;
    uint64_t begun_ns;
} device_copies_job;

struct device_copies {
    pinned_pair_set pinned_pairs;
    device_copies_deliver_fn deliver;
    bool holds; /* memory of the SDK is on the device too */
    bool has_thread;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t comes, drained;
    /* The lock guards all below, and every pinned pair of a tensor. */
    device_copies_job *jobs;
    uint32_t n_down; /* gradients not handed over yet */
    bool is_stopping;
    _Atomic device_stream stream; /* the program's */
    device_event *ahead[DEVICE_COPIES_AHEAD];
    uint64_t n_released;
};

static inline device_copies *device_copies_of(const pen_tensor *t)
{
    return t->ctx->device_copies;
}

pen_status device_copies_no_memory(pen_error *why);

/* Adds a copy that the thread waits for; call with the lock. */
pen_status device_copies_add_job(device_copies *m, pen_tensor *t, pinned_pair *w, bool is_up,
                                 pen_error *why);

pen_status device_copies_begin_thread(pen_ctx *ctx, pen_error *why);

#endif
