/* tcp_address.c - writes and reads "tcp://HOST:PORT", and finds free ports. */
#include "common/net/tcp_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void tcp_address_format(const char *host, uint32_t port, char *text, size_t size)
{
    const bool is_bare_v6 = strchr(host, ':') != NULL && host[0] != '[';
    if (strstr(host, "://") != NULL)
        snprintf(text, size, "%s", host);
    else
        snprintf(text, size, is_bare_v6 ? "tcp://[%s]:%u" : "tcp://%s:%u", host, (unsigned)port);
}

bool tcp_address_parse(const char *address, struct sockaddr_storage *at, socklen_t *size)
{
    enum { PREFIX = 6, HOST_BYTES = 256 };
    const struct addrinfo hints = {.ai_flags    = AI_NUMERICHOST | AI_NUMERICSERV,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *found      = NULL;
    char host[HOST_BYTES];
    const char *from = address + PREFIX, *colon;
    if (strncmp(address, "tcp://", PREFIX) != 0 || (colon = strrchr(from, ':')) == NULL)
        return false;
    size_t n = (size_t)(colon - from);
    if (n >= 2 && from[0] == '[' && from[n - 1] == ']') from++, n -= 2;
    if (n == 0 || n >= sizeof host) return false;
    memcpy(host, from, n);
    host[n] = '\0';
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0) return false;
    memcpy(at, found->ai_addr, found->ai_addrlen);
    *size = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

int tcp_reserve_port(int *fd)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length      = sizeof at;
    const int one         = 1;
    *fd                   = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0) return -1;
    if (setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
        bind(*fd, (struct sockaddr *)&at, sizeof at) == 0 &&
        getsockname(*fd, (struct sockaddr *)&at, &length) == 0)
        return ntohs(at.sin_port);
    close(*fd);
    return -1;
}
