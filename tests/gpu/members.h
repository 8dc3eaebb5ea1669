/* members.h - shared by the programs of this folder: members in separate processes, and teams of
 * them. */
#ifndef TESTS_GPU_MEMBERS_H
#define TESTS_GPU_MEMBERS_H

#include "worker/collective/device/device.h"
#include <stdatomic.h>

enum { MEMBERS_MAX = 8, MEMBERS_SKIP = 77 /* exit code: there is no device */ };

extern const device_ops device_cuda;

typedef struct {
    _Atomic int came, told;
    char address[MEMBERS_MAX][128];
    unsigned char bytes[1024]; /* of the program: an ncclUniqueId, results */
    double seconds[MEMBERS_MAX];
} members_board;

typedef struct {
    int rank, size, device;
    members_board *board; /* shared by all */
    device_place *place;
    int met;
} member;

/* Member r is on device r % members_devices, 1 unless a program sets it.  Too few devices:
 * MEMBERS_SKIP. */
extern int members_devices;

/* Runs fn in `size` new processes and returns the first code that is not 0. CUDA must not have been
 * used before. A member that takes longer than limit_s is ended. */
int members_run(int size, unsigned limit_s, int (*fn)(member *self, const void *arg),
                const void *arg);

/* Waits until all have arrived. */
void members_meet(member *self);

/* NULL, and a line on stderr: it could not be created. */
device_team *members_team(member *self, uint64_t id, device_sync_choice sync,
                          uint64_t one_shot_bytes);

/* The value of device_backend that a word names; AUTO: none of them. */
device_sync_choice members_sync(const char *word);

/* Drives a call to its end; false, and a line on stderr: it failed. */
bool members_call(device_team *team, const coll_call *call, uint64_t seq);

bool members_wait(device_event *event);

/* Waits for the work enqueued on the legacy default stream. */
bool members_drain(void);

/* Copies host to device or back, and waits. */
bool members_copy(void *to, const void *from, size_t bytes);

/* Random numbers from 0 to INT_MAX, as rand() makes them, whose lock took most of these programs' time. */
extern uint64_t members_random_state;

static inline void members_seed(unsigned seed)
{
    members_random_state = seed * 0x9e3779b97f4a7c15u + 1;
}

static inline int members_random(void)
{
    uint64_t x = members_random_state += 0x9e3779b97f4a7c15u;
    x          = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return (int)((x ^ x >> 32) & 0x7fffffff);
}

#endif
