/* tcp_address.c - see tcp_address.h. */
#include "common/net/tcp_address.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>

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
