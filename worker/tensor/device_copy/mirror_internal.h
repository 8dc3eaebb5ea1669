/* mirror_internal.h - what the files of the mirror share.
 *
 *     mirror.c         life, memory of tensors, explicit verbs
 *     mirror_down.c    gradients: sums of micro-batches, copies to the host, and the thread that waits for them
 *     mirror_up.c      values: first ones, and copies to the device
 */
#ifndef WORKER_MIRROR_INTERNAL_H
#define WORKER_MIRROR_INTERNAL_H

#include "worker/context.h"
#include "worker/tensor/device_copy/mirror.h"

#include <stdatomic.h>

enum { MIRROR_AHEAD = 2 }; /* units that may be released before they are computed */

typedef struct mirror_job { /* a copy in progress */
    struct mirror_job *next, *prev;
    pen_tensor *tensor;
    twin *twin;
    bool is_up;
    uint64_t begun_ns;
} mirror_job;

struct mirror {
    twin_set twins;
    mirror_deliver_fn deliver;
    bool holds; /* memory of the SDK lies on the device too */
    bool has_thread;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t comes, drained;
    mirror_job *jobs; /* a list, under the lock, as is all below and every twin of a tensor */
    uint32_t n_down;  /* gradients not handed over yet */
    bool is_stopping;
    _Atomic device_stream stream; /* the program's */
    device_event *ahead[MIRROR_AHEAD];
    uint64_t n_released;
};

static inline mirror *mirror_of(const pen_tensor *t)
{
    return t->ctx->mirror;
}

pen_status mirror_no_memory(pen_error *why);

/* A copy for the thread to wait for; with the lock held. */
pen_status mirror_add_job(mirror *m, pen_tensor *t, twin *w, bool is_up, pen_error *why);

pen_status mirror_begin_thread(pen_ctx *ctx, pen_error *why);

#endif
