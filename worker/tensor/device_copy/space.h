/* space.h - where a strategy works: in host memory, or in the memory of one device, on one stream.
 *
 * DESIGN.  Sums, decision and update of a step are device_ops on a space.  The host's run at once.  A device's are
 * enqueued on the space's stream: no thread waits for them, and each sees what was enqueued before it.
 * Threads: as device_ops; a space is not changed while it is used.
 */
#ifndef WORKER_SPACE_H
#define WORKER_SPACE_H

#include "worker/tensor/device_copy/pinned_pair.h"
#include "worker/tensor/model.h"

typedef struct {
    const device_ops *ops;
    int device;                 /* -1: the host */
    device_stream stream;       /* of sums, decision and update; NULL on the host */
    const pinned_pair_set *set; /* of the context; NULL on the host */
    const int64_t *deadline_ms; /* the setting, which may change; NULL on the host */
} memory_space;

memory_space space_host(void);

/* Where the context's strategy works, *p and ctx->memory.work: the device of its tensors, with a stream of its own, or the
 * host. */
pen_status space_open(pen_ctx *ctx, bool on_device, memory_space *p, pen_error *why);
/* *p: the same memory, with a stream of its own. */
pen_status space_beside(const memory_space *of, memory_space *p, pen_error *why);
void space_close(memory_space *p); /* zeroed is fine */

static inline bool space_is_device(const memory_space *p)
{
    return p->set != NULL;
}

/* Memory of the space, zeroed.  NULL and *why: none.  shared: other workers of the host can map it. */
void *space_alloc(const memory_space *p, size_t bytes, bool shared, pen_error *why);
void space_free(const memory_space *p, void *data, bool shared);
/* Memory of the host that the space reads and writes, zeroed. */
void *space_alloc_host(const memory_space *p, size_t bytes, pen_error *why);
void space_free_host(const memory_space *p, void *data);

/* Where the program's values of a tensor are in this space. */
void *space_values(const memory_space *p, const pen_tensor *t);

/* Copies between host memory and the space, and waits.  For set-up, snapshots and explicit calls: not for a step. */
pen_status space_read(const memory_space *p, void *host, const void *from, size_t bytes,
                      pen_error *why);
pen_status space_write(const memory_space *p, void *to, const void *host, size_t bytes,
                       pen_error *why);
/* Host memory for what is to be written to `data`: data itself if the host reaches it, else zeroed memory.  NULL and *why:
 * none.  space_put() copies it to data, unless `status` is a failure, which it returns, and frees it. */
void *space_stage(const memory_space *p, void *data, size_t bytes, pen_error *why);
pen_status space_put(const memory_space *p, void *data, void *staged, size_t bytes,
                     pen_status status, pen_error *why);
/* Waits until all that is enqueued has ended; TIMED_OUT after the setting deadline_ms. */
pen_status space_wait(const memory_space *p, pen_error *why);

/* Enqueues a copy of memory of the space, or to or from host memory that the device can reach. */
pen_status space_copy(const memory_space *p, stat_traffic what, void *to, const void *from,
                      size_t bytes, pen_error *why);

/* ---- order ----
 * Host work has ended when its call returns: the host has no events, and every order holds. */
/* *event: NULL on the host. */
pen_status space_event(const memory_space *p, device_event **event, pen_error *why);
void space_event_free(const memory_space *p, device_event *event); /* NULL is fine */
/* Marks the work enqueued so far on the space's stream, or on another one. */
pen_status space_record(const memory_space *p, device_event *event, pen_error *why);
pen_status space_record_on(const memory_space *p, device_event *event, device_stream stream,
                           pen_error *why);
/* Work on `stream` and work of the space run one after the other without an event. */
static inline bool space_is_in_order(const memory_space *p, device_stream stream)
{
    return p->set == NULL || stream == p->stream;
}
/* Work enqueued on `stream` from here on runs after the marked work. */
pen_status space_follow(const memory_space *p, device_stream stream, device_event *event,
                        pen_error *why);
/* The calling thread waits for the marked work; TIMED_OUT after the setting deadline_ms. */
pen_status space_await(const memory_space *p, device_event *event, pen_error *why);

#endif
