/* device.h - members of one host whose buffers lie in the memory of CUDA devices.
 *
 * DESIGN
 * Place.     A device_place is this process among the workers of its host: a control segment that peers map, with a
 *            slot for each team.  Making one touches no device.
 * Team.      Members of one group on one host.  What needs a device (a pool that peers map, events, the test of the
 *            links, measurements) is made in the course of the first call that moves anything.
 * Call.      Members show each other their headers and where their buffers lie (host memory), then two barriers of
 *            their streams stand around the work: inputs ready -> work directly on each other's memory -> nobody reads
 *            any more.  Small calls copy their input to the pool first, which is two-sided, and do without the second.
 * Sync.      How a stream learns that another has come to a point: device_sync.h.  auto is hostflag where two members
 *            share a device, since a kernel that waits for another of the same device may wait for ever.
 * Algorithms all_reduce: small: everyone folds all pools (one-shot); large: member r folds slice r of all inputs and
 *            writes it to all outputs (two-shot); all on one device: one elected member launches one kernel that reads
 *            all n inputs and writes all n outputs, 2nS bytes of traffic.  The border between the first two is what
 *            was measured when the team was made: S* = t_barrier * bandwidth * n / ((n-1) (n-2)).
 * Buffers    that cannot be shared (memory pools, virtual memory) go through staging memory of the team; so do outputs
 *            that overlap an input, which is how inputs survive a call that fails.
 * NCCL      Where every member has it and a device of its own, it carries large all_reduce calls if it was faster than
 *           the barrier and link measured say of us, and only where its order of adding does not matter.
 * Host       memory works alike, with the CPU device: that is how this code is tested where there is no GPU.
 *
 * Threads: functions of one team by one thread at a time; of different teams: any.
 */
#ifndef WORKER_COLL_DEVICE_H
#define WORKER_COLL_DEVICE_H

#include "common/compute/device/device.h"
#include "common/compute/device/nccl.h"
#include "worker/collective/coll.h"

typedef struct device_place device_place;
typedef struct device_team device_team;

/* In the order of the setting device_backend. */
typedef enum {
    DEVICE_SYNC_AUTO,
    DEVICE_SYNC_HOSTFLAG,
    DEVICE_SYNC_STREAM,
    DEVICE_SYNC_SPIN,
    DEVICE_SYNC_NCCL /* large all_reduce by NCCL where it may (nccl_fits()); the rest as AUTO */
} device_sync_choice;

typedef struct {
    const device_ops *ops; /* device_of() of the buffers that calls of this team will have */
    device_sync_choice sync;
    int device;              /* number of the device; -1: that of the first call's buffers */
    uint64_t one_shot_bytes; /* calls up to this size go through the pool; 0: measured */
    uint64_t spin_ns;        /* SPIN: longest wait of a kernel; 0: 2 s */
    const nccl_table *nccl;  /* nccl_find() on CUDA; NULL: not here */
    bool may_reorder;        /* deterministic=no: float sums in any order */
} device_options;

pen_status device_place_create(device_place **place, pen_error *why);
void device_place_destroy(device_place *place); /* after its teams; NULL is fine */

/* What peers need to map it, as text without spaces: "cuda:PID:FD:ID:SIZE:OFFSET". */
const char *device_place_address(const device_place *place);

/* Collective among the members, but without waiting for them.  address[size]: of each member's place, own included;
 * all on this host.  `id` is the group's, unique in the job.  UNREACHABLE: some peer cannot be mapped.  UNSUPPORTED: more
 * than DEVICE_ARRAYS_MAX members. */
pen_status device_team_create(device_place *place, uint64_t id, const char *const *address,
                              const int *ranks, int size, int rank, const device_options *options,
                              device_team **team, pen_error *why);
/* No call in progress.  Waits for peers that are still busy with the last one, at most a fifth of a second. */
void device_team_destroy(device_team *team);

/* After a call that failed: it was the first, nothing was moved, and it says UNSUPPORTED on every member, so that all
 * go on another way.  No further call on this team that moves anything. */
bool device_team_is_refused(const device_team *team);

/* Tells the others of the group's call `seq`, whose buffers are memory of a device or not. */
void device_team_mark(device_team *team, uint64_t seq, bool on_device);
/* MISMATCH when another member makes that call with the other kind of memory: they would wait for each other. */
pen_status device_team_compare(device_team *team, uint64_t seq, bool on_device, pen_error *why);

#endif
