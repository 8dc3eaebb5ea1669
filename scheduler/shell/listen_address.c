#include "scheduler/shell/listen_address.h"
#include "common/net/auth/auth.h"
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

const char *listen_address_master(const char *host, char *name, size_t size)
{
    const bool is_any = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "*") == 0 ||
                        strcmp(host, "::") == 0 || strcmp(host, "[::]") == 0;
    if (!is_any || gethostname(name, size) != 0) return host;
    name[size - 1] = 0;
    return name;
}

void listen_address_of(const char *host, char *text, size_t size)
{
    struct in_addr number;
    const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    snprintf(text, size, "%s", host);
    if (inet_pton(AF_INET, host, &number) == 1 || strpbrk(host, "*:[")) return;
    if (getaddrinfo(host, NULL, &hints, &found) != 0) return;
    number = ((struct sockaddr_in *)(void *)found->ai_addr)->sin_addr;
    freeaddrinfo(found);
    inet_ntop(AF_INET, &number, text, (socklen_t)size);
    if (strncmp(text, "127.", 4) == 0 && !auth_is_loopback(host)) snprintf(text, size, "*");
}

void listen_address_dial(const char *master, const char *bound, char *text, size_t size)
{
    const char *port = strrchr(bound, ':'), *scheme = strstr(master, "://");
    if (scheme)
        snprintf(text, size, "%s", scheme + 3);
    else
        snprintf(text, size, "%s%s", master, port ? port : "");
}

void listen_address_host(const char *master, char *text, size_t size)
{
    text[0] = 0;
    if (gethostname(text, size) != 0 || !text[0]) snprintf(text, size, "%s", master);
    text[size - 1] = 0;
}
