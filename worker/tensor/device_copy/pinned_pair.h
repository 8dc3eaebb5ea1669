/* pinned_pair.h - device memory and page-locked host memory for the same values.
 *
 * DESIGN.  Strategies use host memory only; the program computes in device memory.  A pair has
 * memory of one size on both sides, and two events: `used` marks the newest work of the program's
 * stream on the device side, `moved` the end of the newest copy.  Copies use two streams of our
 * own, one for each direction, so that they overlap with the program's kernels and with each other.
 * The host side is page-locked for that, before its first copy: until then it takes no memory.
 *   down   waits for the work on the program's stream so far, then copies to the host
 *   up     waits for `used`, then copies to the device; pinned_pair_see() makes the program's stream wait for it
 * Returned pairs are kept for the next request of their size, because page-locking takes longer
 * than a copy.  A pair is reused when its copies have ended; the device waits for kernels that
 * still read it.
 * Threads: one at a time for each pinned pair; pinned_pair_take() and pinned_pair_put() any.
 */
#ifndef WORKER_PINNED_PAIR_H
#define WORKER_PINNED_PAIR_H

#include "common/compute/device/device.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct pinned_pair {
    struct pinned_pair *next, *prev; /* while it is kept */
    void *host, *device;
    size_t bytes;
    device_event *used, *moved;
    bool owns_device, is_segment, is_locked; /* locked: its pages */
    bool is_old;                             /* the host side is newer */
    bool is_host_old;                        /* the device side is newer */
    bool is_moving;                          /* `moved` may not have ended */
    bool is_made; /* the device side was written there: pinned_pair_made() */
} pinned_pair;

/* OK, or why what the device waits for may never come. */
typedef pen_status (*pinned_pairs_failure_fn)(void *user, pen_error *why);

typedef struct {
    const device_ops *ops;
    stat_set *stats;                 /* counts copies; BORROWED */
    pinned_pairs_failure_fn failure; /* ends pinned_pair_wait(); NULL: nothing does */
    void *failure_user;
    int device;
    device_stream up, down;
    pthread_mutex_t lock;
    pinned_pair *kept; /* under the lock, oldest first */
    atomic_bool is_closing;
} pinned_pair_set;

pen_status pinned_pairs_open(pinned_pair_set *set, const device_ops *ops, int device,
                             stat_set *stats, pen_error *why);
void pinned_pairs_hurry(pinned_pair_set *set); /* pinned_pair_wait() returns ABORTED from here on */
void pinned_pairs_close(pinned_pair_set *set); /* after all were freed or returned */

/* device: memory of the program, BORROWED; NULL: own memory, zeroed.  Returns NULL and *why: no memory. */
pinned_pair *pinned_pair_new(pinned_pair_set *set, void *device, size_t bytes, pen_error *why);
/* Now, instead of before the first copy: for threads that must not wait then. */
void pinned_pair_lock(const pinned_pair_set *set, pinned_pair *t);
/* NULL is fine.  Waits for its copies; leaks memory that a hanging device may still write to. */
void pinned_pair_free(pinned_pair_set *set, pinned_pair *t);

/* A pair with own memory, uninitialised, is_old.  pinned_pair_put() returns it; NULL is fine. */
pinned_pair *pinned_pair_take(pinned_pair_set *set, size_t bytes, pen_error *why);
void pinned_pair_put(pinned_pair_set *set, pinned_pair *t);

/* The program's stream uses the pair from here on; NULL: the default stream. */
pen_status pinned_pair_note_use(pinned_pair_set *set, pinned_pair *t, device_stream stream,
                                pen_error *why);

/* Copies `from` on the device to the host, behind the work on `stream`; what: for the counters. */
pen_status pinned_pair_down(pinned_pair_set *set, pinned_pair *t, const void *from,
                            stat_traffic what, device_stream stream, pen_error *why);
/* Only values go up. */
pen_status pinned_pair_up(pinned_pair_set *set, pinned_pair *t, pen_error *why);
pen_status pinned_pair_up_part(pinned_pair_set *set, pinned_pair *t, size_t from, size_t bytes,
                               pen_error *why);

/* Work enqueued on `stream` so far writes the device side; the host side is old. */
pen_status pinned_pair_made(pinned_pair_set *set, pinned_pair *t, device_stream stream,
                            pen_error *why);

/* Work enqueued on `stream` from here on sees the copy of pinned_pair_up(), or what pinned_pair_made() tells of. */
pen_status pinned_pair_see(pinned_pair_set *set, pinned_pair *t, device_stream stream,
                           pen_error *why);

/* ---- order between streams of the device ---- */
/* Marks the work enqueued on `stream` so far; NULL: the default stream. */
pen_status pinned_pair_record(const pinned_pair_set *set, device_event *event, device_stream stream,
                              pen_error *why);
/* Work enqueued on `stream` from here on runs after the event. */
pen_status pinned_pair_stream_waits(const pinned_pair_set *set, device_stream stream,
                                    device_event *event, pen_error *why);

/* Waits for the event.  TIMED_OUT after deadline_ms, -1: never; ABORTED; DEVICE; what set->failure returns. */
pen_status pinned_pair_wait(const pinned_pair_set *set, device_event *event, int64_t deadline_ms,
                            pen_error *why);

#endif
