/* engine_address.c - which of its addresses other workers reach this one by. */
#include "worker/coll/engine_internal.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/why.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_AGAIN_MS = 200, WARN_AFTER_TRIES = 10 };

/* Connecting a datagram socket sends nothing; it only asks the system for the way there. */
static bool own_side_of(const struct addrinfo *to, char *host, size_t size)
{
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    int fd           = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    bool is_found = connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
                    getsockname(fd, (struct sockaddr *)&own, &length) == 0 &&
                    getnameinfo((struct sockaddr *)&own, length, host, (socklen_t)size, NULL, 0,
                                NI_NUMERICHOST) == 0;
    close(fd);
    return is_found;
}

/* A name may come later than its first user: in a cluster it is made together with the pod that bears it.  Guessing meanwhile
 * would be worse than waiting, for others are told once how to reach this worker. */
static int look_up(const char *scheduler, const char *service, uint64_t patience_ms,
                   struct addrinfo **list)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    const struct timespec pause = {.tv_nsec = LOOK_AGAIN_MS * 1000000};
    const uint64_t begun        = clock_ms(&clock_real);
    for (int tries = 0;; tries++) {
        int error = getaddrinfo(scheduler, service, &hints, list);
        if (error == 0 || clock_ms(&clock_real) - begun >= patience_ms) return error;
        if (tries == WARN_AFTER_TRIES)
            log_warning("the name of the scheduler, '%s', does not resolve so far: %s", scheduler,
                        gai_strerror(error));
        nanosleep(&pause, NULL);
    }
}

pen_status engine_listen_address(const char *scheduler, uint32_t port, uint64_t patience_ms,
                                 char *text, size_t size, pen_error *why)
{
    struct addrinfo *list = NULL;
    char service[16], host[64] = "127.0.0.1";
    snprintf(service, sizeof service, "%u", port > 0 ? port : 9);
    if (scheduler[0] != '\0' && strstr(scheduler, "://") == NULL) {
        int error = look_up(scheduler, service, patience_ms, &list);
        if (error != 0)
            return why_set(why, PEN_TIMED_OUT,
                           "the name of the scheduler, '%s', does not resolve after %.1f s (%s); "
                           "look at MASTER_ADDR",
                           scheduler, (double)patience_ms / 1000, gai_strerror(error));
        for (const struct addrinfo *at = list; at != NULL; at = at->ai_next)
            if (own_side_of(at, host, sizeof host)) break;
        freeaddrinfo(list);
    }
    snprintf(text, size, strchr(host, ':') != NULL ? "tcp://[%s]:0" : "tcp://%s:0", host);
    return PEN_OK;
}
