/* device_sync.h - how the streams of several members wait for each other.
 *
 * Barriers are numbered, counting up by one.  Every member signals a barrier once, then asks until all have passed.
 * Both calls only enqueue or check; they never wait.
 * To add a method: implement it in device_sync.c and add its line to the table there.
 */
#ifndef WORKER_COLL_DEVICE_SYNC_H
#define WORKER_COLL_DEVICE_SYNC_H

#include "worker/collective/device/device.h"

typedef struct {
    const char *name; /* "hostflag", "stream", "spin" */
    const char *doc;
    bool needs_own_device; /* not allowed if two members share a device */
    bool needs_events;     /* of the others, mapped into this process */
    bool has_waits;        /* of kernels, which set device_stop.result if they end early */

    /* Barrier `step` is reached when `stream` has done what was enqueued before. */
    pen_status (*signal)(device_team *team, uint64_t step, device_stream stream, pen_error *why);

    /* OK: work enqueued in `stream` from now on runs after all members' signals.  AGAIN: ask again. */
    pen_status (*passed)(device_team *team, uint64_t step, device_stream stream, pen_error *why);
} device_sync;

/* By device_sync_choice, from HOSTFLAG on; NULL-terminated. */
extern const device_sync *const device_sync_all[];

/* The method to use.  uuid[size]: 16 bytes each.  UNSUPPORTED: the choice is not safe here. */
pen_status device_sync_choose(device_sync_choice choice, const uint8_t (*uuid)[16],
                              const int *ranks, int size, const device_sync **sync, pen_error *why);

/* The largest one-shot call in bytes; barrier_ns in ns, bandwidth in bytes per ns. */
uint64_t device_one_shot_bytes(double barrier_ns, double bandwidth, int size, bool is_one_device);

#endif
