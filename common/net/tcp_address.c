/* tcp_address.c - see tcp_address.h. */
#include "common/net/tcp_address.h"

#include <stdbool.h>
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
