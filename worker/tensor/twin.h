/* twin.h - memory of a device together with memory of the host for the same numbers.
 *
 * DESIGN.  Who sums, sends and updates knows memory of the host only; the program computes in memory of a device.  A twin is
 * a place in each, of one size, and two events: `used` says up to where the program's stream had been told to work with the
 * device's side, `moved` when the newest copy between the two has ended.  Copies go over two streams of our own, one for each
 * direction, so that they run beside the program's kernels and beside each other; the host's side is page-locked, else
 * they would not.
 *   down   waits for what the program's stream was told before, then copies to the host
 *   up     waits for `used`, then copies to the device; the program's stream is made to wait for it by twin_see()
 * Twins that come and go are kept when they are given back, for the next one of their size: page-locking takes longer than
 * a copy.  One is handed out again when its copies have ended; the kernels that still read it are waited for by the device.
 * Threads: one at a time for each twin; twin_take() and twin_put() any.
 */
#ifndef WORKER_TWIN_H
#define WORKER_TWIN_H

#include "common/compute/device/device.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct twin {
    struct twin *next; /* while it is kept */
    void *host, *device;
    size_t bytes;
    device_event *used, *moved;
    bool owns_device, is_segment;
    bool is_old;    /* the host's side is newer */
    bool is_moving; /* `moved` may not have ended */
} twin;

typedef struct {
    const device_ops *ops;
    int device;
    device_stream up, down;
    pthread_mutex_t lock;
    twin *kept; /* under the lock; in the order in which they were given back */
    atomic_bool is_closing;
} twin_set;

pen_status twins_open(twin_set *set, const device_ops *ops, int device, pen_error *why);
void twins_hurry(twin_set *set); /* twin_wait() waits no longer: ABORTED */
void twins_close(twin_set *set); /* none is used any more, and all were freed or given back */

/* device: the program's, BORROWED; NULL: memory of our own, zeroed.  NULL and *why: there is none. */
twin *twin_new(twin_set *set, void *device, size_t bytes, pen_error *why);
/* NULL is fine.  Its copies are waited for; memory that a device does not let go of is left to it. */
void twin_free(twin_set *set, twin *t);

/* One of our own with anything in it, is_old.  twin_put() gives it back; NULL is fine. */
twin *twin_take(twin_set *set, size_t bytes, pen_error *why);
void twin_put(twin_set *set, twin *t);

/* The program's stream was told to work with it; NULL: the default stream. */
pen_status twin_note_use(twin_set *set, twin *t, device_stream stream, pen_error *why);

/* From `from`, on the device, when `stream` has done what it was told. */
pen_status twin_down(twin_set *set, twin *t, const void *from, device_stream stream,
                     pen_error *why);
pen_status twin_up(twin_set *set, twin *t, pen_error *why);

/* What is enqueued on `stream` from here on finds what twin_up() brings. */
pen_status twin_see(twin_set *set, twin *t, device_stream stream, pen_error *why);

/* Until the event has come.  TIMED_OUT after deadline_ms, -1: none; ABORTED; DEVICE. */
pen_status twin_wait(const twin_set *set, device_event *event, int64_t deadline_ms, pen_error *why);

#endif
