/* members.h - what the programs of this folder share: members in processes of their own, and teams of them. */
#ifndef TESTS_GPU_MEMBERS_H
#define TESTS_GPU_MEMBERS_H

#include "worker/collective/device/device.h"
#include <stdatomic.h>

enum { MEMBERS_MAX = 8, MEMBERS_SKIP = 77 /* exit code: there is no device */ };

extern const device_ops device_cuda;

typedef struct {
    _Atomic int came, told;
    char address[MEMBERS_MAX][128];
    unsigned char bytes[1024]; /* for programs: an ncclUniqueId, results */
    double seconds[MEMBERS_MAX];
} members_board;

typedef struct {
    int rank, size, device;
    members_board *board; /* shared by all */
    device_place *place;
    int met;
} member;

/* Member r lies on device r % members_devices; 1 unless a program says more.  Too few there: MEMBERS_SKIP. */
extern int members_devices;

/* Runs fn in `size` new processes and returns the first code that is not 0.  Nothing may have used CUDA before.  A
 * member that takes longer than limit_s is ended. */
int members_run(int size, unsigned limit_s, int (*fn)(member *self, const void *arg),
                const void *arg);

/* Waits until all have come. */
void members_meet(member *self);

/* NULL, and a line on stderr: it could not be made. */
device_team *members_team(member *self, uint64_t id, device_sync_choice sync,
                          uint64_t one_shot_bytes);

/* Drives a call to its end; false, and a line on stderr: it failed. */
bool members_call(device_team *team, const coll_call *call, uint64_t seq);

/* Waits for what was enqueued on the legacy default stream. */
bool members_drain(void);

/* Host to device or back, and waits. */
bool members_copy(void *to, const void *from, size_t bytes);

#endif
