/* engine_address.c - which of its addresses other workers reach this one by. */
#include "worker/coll/engine_internal.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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

void engine_listen_address(const char *scheduler, uint32_t port, char *text, size_t size)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *list       = NULL;
    char service[16], host[64] = "127.0.0.1";
    snprintf(service, sizeof service, "%u", port > 0 ? port : 9);
    if (scheduler[0] != '\0' && getaddrinfo(scheduler, service, &hints, &list) == 0) {
        for (const struct addrinfo *at = list; at != NULL; at = at->ai_next)
            if (own_side_of(at, host, sizeof host)) break;
        freeaddrinfo(list);
    }
    snprintf(text, size, strchr(host, ':') != NULL ? "tcp://[%s]:0" : "tcp://%s:0", host);
}
