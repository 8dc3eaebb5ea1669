/* name_lookup.c - asks the resolver in a thread, and keeps the answer until it is taken. */
#include "common/net/name_lookup.h"

#include "common/system/side_thread.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { ADDRESS_MAX = 256, PREFIX = 6 /* tcp:// */ };

struct name_lookup {
    atomic_int users; /* the owner and the thread */
    atomic_bool is_answered;
    int fd;
    char host[ADDRESS_MAX], port[8];
    char answer[ADDRESS_MAX];
};

static bool is_name_char(char c)
{
    return isalnum((unsigned char)c) || c == '.' || c == '-' || c == '_';
}

bool name_lookup_is_needed(const char *address)
{
    char host[ADDRESS_MAX];
    struct in_addr number;
    if (strncmp(address, "tcp://", PREFIX) != 0) return false;
    const char *from = address + PREFIX, *colon = strrchr(from, ':');
    const size_t n = colon != NULL ? (size_t)(colon - from) : 0;
    if (n == 0 || n >= sizeof host || !isalnum((unsigned char)from[0])) return false;
    for (size_t i = 0; i < n; i++)
        if (!is_name_char(from[i])) return false;
    memcpy(host, from, n);
    host[n] = '\0';
    return inet_pton(AF_INET, host, &number) != 1;
}

void name_lookup_drop(name_lookup *q)
{
    if (q == NULL || atomic_fetch_sub(&q->users, 1) > 1) return;
    if (q->fd >= 0) close(q->fd);
    free(q);
}

static void write_answer(name_lookup *q, const struct addrinfo *list)
{
    char number[NI_MAXHOST]; /* with the interface of a link-local one */
    if (getnameinfo(list->ai_addr, list->ai_addrlen, number, sizeof number, NULL, 0,
                    NI_NUMERICHOST) != 0)
        return;
    const int n =
        snprintf(q->answer, sizeof q->answer,
                 list->ai_family == AF_INET6 ? "tcp://[%s]:%s" : "tcp://%s:%s", number, q->port);
    if (n < 0 || (size_t)n >= sizeof q->answer) q->answer[0] = '\0';
}

static bool look_up_in(name_lookup *q, int family)
{
    const struct addrinfo hints = {.ai_family = family, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list       = NULL;
    if (getaddrinfo(q->host, NULL, &hints, &list) != 0) return false;
    write_answer(q, list);
    freeaddrinfo(list);
    return true;
}

static void *look_up(void *question)
{
    name_lookup *q = question;
    pthread_setname_np(pthread_self(), "pen-name");
    if (!look_up_in(q, AF_INET)) (void)look_up_in(q, AF_INET6);
    atomic_store(&q->is_answered, true);
    eventfd_write(q->fd, 1);
    name_lookup_drop(q);
    return NULL;
}

name_lookup *name_lookup_start(const char *address)
{
    const char *host = address + PREFIX, *colon = strrchr(host, ':');
    name_lookup *q = calloc(1, sizeof *q);
    if (q == NULL) return NULL;
    atomic_init(&q->users, 2);
    snprintf(q->host, sizeof q->host, "%.*s", (int)(colon - host), host);
    snprintf(q->port, sizeof q->port, "%s", colon + 1);
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (q->fd >= 0 && side_thread_start(look_up, q)) return q;
    atomic_store(&q->users, 1);
    name_lookup_drop(q);
    return NULL;
}

int name_lookup_fd(const name_lookup *q)
{
    return q->fd;
}

const char *name_lookup_answer(const name_lookup *q)
{
    return atomic_load(&q->is_answered) ? q->answer : NULL;
}
