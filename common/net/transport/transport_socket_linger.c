/* transport_socket_linger.c - closed connections whose last messages still leave.
 *
 * A connection has time until what was queued is with the other host: a socket that is closed with unread input takes
 * back what it had sent.  The process waits for these connections when its last endpoint is closed, since its exit would
 * end them.
 */
#include "common/net/transport/transport_socket.h"

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
    line *l;
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

static bool has_left(line *l)
{
    int bytes = 0;
    line_flush(l);
    if (line_waits(l)) return false;
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    if (getsockname(l->fd, (struct sockaddr *)&at, &size) == 0 && at.ss_family == AF_UNIX)
        return true; /* it is with the other process, even if that has not read it */
    return ioctl(l->fd, SIOCOUTQ, &bytes) != 0 || bytes == 0;
}

/* Reads and drops what the other end sends; false: it has gone. */
static bool is_there(const line *l)
{
    char sink[4096];
    ssize_t n;
    while ((n = recv(l->fd, sink, sizeof sink, MSG_DONTWAIT)) > 0) {}
    return n < 0;
}

static void *linger(void *user)
{
    lingering *one = user;
    pthread_setname_np(pthread_self(), "pen-linger");
    while (is_there(one->l) && !has_left(one->l) && clock_ms(&clock_real) < one->until_ms) {
        struct pollfd fd = {.fd = one->l->fd, .events = line_waits(one->l) ? POLLOUT : 0};
        poll(&fd, 1, STEP_MS);
    }
    line_free(one->l);
    free(one);
    atomic_fetch_sub(&lingers, 1);
    return NULL;
}

void linger_close(line *l, uint32_t linger_ms)
{
    lingering *one = NULL;
    if (linger_ms > 0 && l->fd >= 0 && is_there(l) && !has_left(l)) one = malloc(sizeof *one);
    if (one == NULL) {
        line_free(l);
        return;
    }
    *one = (lingering){.l = l, .until_ms = clock_ms(&clock_real) + linger_ms};
    atomic_fetch_add(&lingers, 1);
    if (!side_thread_start(linger, one)) linger(one);
}

/* Each has a time limit of its own. */
void linger_end(void)
{
    if (atomic_fetch_sub(&endpoints, 1) > 1) return;
    while (atomic_load(&lingers) > 0) poll(NULL, 0, STEP_MS);
}
