/* place.h - where a strategy works: in host memory, or in the memory of one device, on one stream.
 *
 * DESIGN.  Sums, decision and update of a step are device_ops on a place.  The host's run at once.  A device's are
 * enqueued on the place's stream: no thread waits for them, and each sees what was enqueued before it.
 * Threads: as device_ops; a place is not changed while it is used.
 */
#ifndef WORKER_TRAIN_PLACE_H
#define WORKER_TRAIN_PLACE_H

#include "worker/context.h"
#include "worker/tensor/device_copy/pinned_pair.h"

typedef struct {
    const device_ops *ops;
    int device;                 /* -1: the host */
    device_stream stream;       /* of sums, decision and update; NULL on the host */
    const pinned_pair_set *set; /* of the context; NULL on the host */
    const int64_t *deadline_ms; /* the setting, which may change; NULL on the host */
} place;

place place_host(void);

/* The device of the context's tensors, and a stream of its own, if the model can be trained there: all trained tensors
 * and their gradients are on it, have one name, and are decided together; members do not change.  Else the host. */
pen_status place_open(pen_ctx *ctx, bool may_be_device, place *p, pen_error *why);
void place_close(place *p); /* zeroed is fine */
bool place_may_be_device(const pen_ctx *ctx);

static inline bool place_is_device(const place *p)
{
    return p->device >= 0;
}

/* Memory of the place, zeroed.  NULL and *why: none.  shared: other workers of the host can map it. */
void *place_alloc(const place *p, size_t bytes, bool shared, pen_error *why);
void place_free(const place *p, void *data, bool shared);
/* Memory of the host that the place reads and writes, zeroed. */
void *place_alloc_host(const place *p, size_t bytes, pen_error *why);
void place_free_host(const place *p, void *data);

/* Where the program's values of a tensor are in this place. */
void *place_values(const place *p, const pen_tensor *t);

/* Copies between host memory and the place, and waits.  For set-up, snapshots and explicit calls: not for a step. */
pen_status place_read(const place *p, void *host, const void *from, size_t bytes, pen_error *why);
pen_status place_write(const place *p, void *to, const void *host, size_t bytes, pen_error *why);
/* Waits until all that is enqueued has ended; TIMED_OUT after the setting deadline_ms. */
pen_status place_wait(const place *p, pen_error *why);

/* Enqueues a copy of memory of the place, or to or from host memory that the device can reach. */
pen_status place_copy(const place *p, stat_traffic what, void *to, const void *from, size_t bytes,
                      pen_error *why);

/* ---- order between streams of a device; not for the host ---- */
/* Marks the work enqueued so far on the place's stream. */
pen_status place_record(const place *p, device_event *event, pen_error *why);
/* Work enqueued on `after` from here on runs after all work enqueued on `before`; records `event`. */
pen_status place_order(const place *p, device_event *event, device_stream before,
                       device_stream after, pen_error *why);

#endif
