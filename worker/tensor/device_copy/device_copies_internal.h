/* device_copies_internal.h - shared by device_copies*.c only.
 *
 *     device_copies.c         life, explicit verbs
 *     device_copies_memory.c  memory of tensors
 *     device_copies_down.c    gradients: sums of micro-batches, copies to the host, and the thread that waits for them
 *     device_copies_up.c      values: first ones, and copies to the device
 *     device_copies_work.c    order between the program's streams and that of a strategy on the device
 *     device_copies_pairs.c   what such a strategy copies itself
 */
#ifndef WORKER_DEVICE_COPIES_INTERNAL_H
#define WORKER_DEVICE_COPIES_INTERNAL_H

#include "worker/context.h"
#include "worker/tensor/device_copy/device_copies.h"

#include <stdatomic.h>

enum {
    DEVICE_COPIES_AHEAD   = 2, /* units that may be released before the device has computed them */
    DEVICE_COPIES_STREAMS = 8  /* of the program, that release units in one step */
};

typedef struct device_copies_job { /* a copy in progress */
    struct device_copies_job *next, *prev;
    pen_tensor *tensor; /* NULL: of several */
    pinned_pair *pinned_pair;
    bool is_up;
    device_copies_done_fn done; /* of the strategy; NULL: a gradient is handed over */
    void *user;
    uint64_t step; /* in which it begins */
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

    /* If the strategy works on the device. */
    device_stream work;
    device_event *before, *updated; /* work of the program before; the newest values */
    struct device_copies_reader {   /* a stream that has read values since the newest update */
        device_stream stream;
        device_event *done;
    } reader[DEVICE_COPIES_STREAMS];
    int n_readers;
};

static inline device_copies *device_copies_of(const pen_tensor *t)
{
    return t->ctx->memory.device_copies;
}

pen_status device_copies_no_memory(pen_error *why);
pen_status device_copies_create(pen_ctx *ctx, const device_ops *ops, int device, pen_error *why);
pen_status device_copies_make_room(pen_tensor *t, pen_error *why); /* t->device_copies */
/* Makes the device of `data` that of the context; *is_host: host memory. */
pen_status device_copies_meet(pen_tensor *t, const void *data, bool *is_host, pen_error *why);

/* The next update waits for the work on `stream`, which read values; call with the lock. */
pen_status device_copies_note_reader(device_copies *m, device_stream stream, pen_error *why);

/* pen_ready(): the gradient of t, on the device, is made by work on *stream; NULL: on the program's newest. */
pen_status device_copies_note_stream(pen_tensor *t, const device_stream *stream, pen_error *why);

/* Adds a copy that the thread waits for; call with the lock.  step and begun_ns are set here. */
pen_status device_copies_add_job(const pen_ctx *ctx, const device_copies_job *job, pen_error *why);

pen_status device_copies_begin_thread(pen_ctx *ctx, pen_error *why);

#endif
