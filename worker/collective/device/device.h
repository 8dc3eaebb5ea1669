/* device.h - collectives of members of one host on the memory of CUDA devices.
 *
 * DESIGN
 * Place.     A device_place is this process among the workers of its host: a control segment that peers map, with a
 *            slot for each team.  Creating it touches no device.
 * Team.      Members of one group on one host.  The first call that moves data creates what needs a device: a pool that
 *            peers map, events, the test of the links, measurements.
 * Call.      Members exchange their headers and the places of their buffers through host memory.  Two barriers of their
 *            streams enclose the work: inputs ready -> work directly on each other's memory -> all reads done.  Small
 *            calls first copy their input to one of two halves of the pool, and need no second barrier.
 * Order.     A call in stream order ends after its second barrier, also if it is small, without asking whether the device is
 *            done.  So what follows in this member's stream follows all work on its memory, and the event `end` of its
 *            last call tells when its memory is free: the next call's stream waits for it, the destruction polls it.
 * Sync.      How a stream learns that another has reached a point: device_sync.h.  auto selects hostflag if two members
 *            share a device: a kernel that waits for another kernel of the same device may wait forever.
 * Algorithms all_reduce: small: each member folds all pools (one-shot); large: member r folds slice r of all inputs and
 *            writes it to all outputs (two-shot); all on one device: one elected member launches one kernel that reads
 *            all n inputs and writes all n outputs, 2nS bytes of traffic.  The threshold between the first two is
 *            computed from what the first call measures: S* = t_barrier * bandwidth * n / ((n-1) (n-2)).
 * Buffers    that cannot be shared (memory pools, virtual memory) go through staging memory of the team.  So do outputs
 *            that overlap an input: inputs therefore survive a failed call.
 * NCCL       carries large all_reduce, reduce, reduce_scatter, all_gather and broadcast calls if every member has it and
 *            its own device, if it was measured to be faster than our links allow or a rule names it, and if the order
 *            of additions does not matter.
 * Host       memory works the same way, with the CPU device; tests without a GPU use it.
 *
 * Threads: functions of one team by one thread at a time; of different teams: any.
 */
#ifndef WORKER_COLL_DEVICE_H
#define WORKER_COLL_DEVICE_H

#include "common/compute/device/device.h"
#include "common/compute/device/nccl.h"
#include "worker/collective/coll.h"
#include "worker/collective/schedule/schedule.h"

typedef struct device_place device_place;
typedef struct device_team device_team;

/* What kernels that wait for other members read and write. */
typedef struct device_stop {
    uint64_t abort;  /* nonzero: waits end at once */
    uint32_t result; /* nonzero: a wait ended early, or the host has stopped the group */
} device_stop;

/* In the order of the setting device_backend. */
typedef enum {
    DEVICE_SYNC_AUTO,
    DEVICE_SYNC_HOSTFLAG,
    DEVICE_SYNC_STREAM,
    DEVICE_SYNC_SPIN,
    DEVICE_SYNC_NCCL /* large calls by NCCL, reductions if nccl_fits(); the rest as AUTO */
} device_sync_choice;

typedef struct {
    const device_ops *ops; /* device_of() of the buffers of this team's calls */
    device_sync_choice sync;
    int device;                  /* number of the device; -1: that of the first call's buffers */
    uint64_t one_shot_bytes;     /* calls up to this size go through the pool; 0: measured */
    uint64_t spin_ns;            /* SPIN: longest wait of a kernel; 0: 60 s */
    const nccl_table *nccl;      /* nccl_find() on CUDA; NULL: not available */
    bool may_reorder;            /* deterministic=no: float sums in any order */
    const schedule_table *rules; /* of the setting coll_algorithm; may be NULL.  BORROWED */
    stat_set *stats;             /* counts copies over the host's boundary; NULL: nothing does */
    device_stop *stop;           /* of ops->host_alloc(), outlives the team; NULL: the team's own */
    /* Runs when the other members can see something new of this one; NULL: they look often enough. */
    void (*ring)(void *user);
    void *user;
} device_options;

pen_status device_place_create(device_place **place, pen_error *why);
void device_place_destroy(device_place *place); /* after its teams; NULL is fine */

/* What peers need to map it, as text without spaces: "cuda:PID:FD:ID:SIZE:OFFSET". */
const char *device_place_address(const device_place *place);

/* Collective among the members, but without waiting for them.  address[size]: of each member's place, own included;
 * all on this host.  `id` is the group's, unique in the job.  UNREACHABLE: a peer cannot be mapped.  UNSUPPORTED: more
 * than DEVICE_ARRAYS_MAX members. */
pen_status device_team_create(device_place *place, uint64_t id, const char *const *address,
                              const int *ranks, int size, int rank, const device_options *options,
                              device_team **team, pen_error *why);
/* After a failure of the group: what waits for other members on this device ends.  As often as one likes; by the driver
 * of the group. */
void device_team_stop(device_team *team);
/* No call in progress.  Waits for peers that are still busy with the last call, at most DEVICE_DRAIN_MS, or
 * DEVICE_SETTLE_MS after device_team_stop(); and for the device, if calls ended in stream order, at most DEVICE_DRAIN_MS.
 * Memory of a device that hangs is not freed. */
void device_team_destroy(device_team *team);

/* After a failed call: it was the first, moved nothing and fails with UNSUPPORTED on every member, so all take another
 * path.  The team must not get another call that moves data. */
bool device_team_is_refused(const device_team *team);

/* Tells the others whether the buffers of the group's call `seq` are device memory. */
void device_team_mark(device_team *team, uint64_t seq, bool on_device);
/* MISMATCH: another member makes that call with the other kind of memory; the two would wait for each other. */
pen_status device_team_compare(device_team *team, uint64_t seq, bool on_device, pen_error *why);

#endif
