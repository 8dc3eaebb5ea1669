/* linger.c - waits for the last messages of closed endpoints, and of the process. */
#include "common/net/transport/linger.h"

#include "common/base/clock.h"
#include "common/system/own_pid.h"
#include "common/system/side_thread.h"

#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

enum { STEP_MS = 1 };

typedef struct {
    void *what;
    const linger_kind *kind;
    uint64_t until_ms;
} lingering;

/* Of this process: a forked child has none of its parent's. */
static _Atomic(pid_t) owner;
static atomic_int endpoints, lingers;

void linger_begin(void)
{
    if (atomic_exchange(&owner, own_pid()) != own_pid()) {
        atomic_store(&endpoints, 0);
        atomic_store(&lingers, 0);
    }
    atomic_fetch_add(&endpoints, 1);
}

static void wait_and_close(lingering *one)
{
    while (!one->kind->has_left(one->what, one->until_ms) && clock_ms(&clock_real) < one->until_ms)
        poll(NULL, 0, STEP_MS);
    one->kind->close(one->what);
    free(one);
    atomic_fetch_sub(&lingers, 1);
}

static void *linger(void *user)
{
    pthread_setname_np(pthread_self(), "pen-linger");
    wait_and_close(user);
    return NULL;
}

void linger_close(void *what, uint32_t linger_ms, const linger_kind *kind)
{
    const uint64_t until_ms = clock_ms(&clock_real) + linger_ms;
    lingering *one          = NULL;
    if (linger_ms > 0 && !kind->has_left(what, until_ms)) one = malloc(sizeof *one);
    if (one == NULL) {
        kind->close(what);
        return;
    }
    *one = (lingering){what, kind, until_ms};
    atomic_fetch_add(&lingers, 1);
    if (!side_thread_start(linger, one)) wait_and_close(one);
}

/* Each has a time limit of its own. */
void linger_end(void)
{
    if (atomic_fetch_sub(&endpoints, 1) > 1) return;
    while (atomic_load(&lingers) > 0) poll(NULL, 0, STEP_MS);
}

bool linger_is_acknowledged(int fd)
{
    int bytes = 0;
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &size) == 0 && at.ss_family == AF_UNIX)
        return true; /* it is with the other process, even if that has not read it */
    return ioctl(fd, SIOCOUTQ, &bytes) != 0 || bytes == 0;
}
