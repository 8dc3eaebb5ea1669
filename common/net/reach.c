/* reach.c - tries a connection in a thread of its own, and puts what it found into words. */
#include "common/net/reach.h"

#include "common/net/local_socket.h"
#include "common/net/tcp_address.h"
#include "common/system/side_thread.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HOST_BYTES = 256, PREFIX = 6 /* tcp:// */ };

struct reach_question {
    atomic_int users; /* the caller and the thread */
    atomic_bool is_answered;
    int error;
    char host[HOST_BYTES], port[8];
};

/* ---- one attempt --------------------------------------------------------------------------------- */
static int connect_within(const struct addrinfo *a, int timeout_ms)
{
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) return errno;
    int error = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        socklen_t size  = sizeof error;
        if (poll(&p, 1, timeout_ms) <= 0)
            error = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
            error = errno;
    }
    close(fd);
    return error;
}

/* A listener may have a local socket, and nothing at its port. */
static bool is_local(const struct addrinfo *a)
{
    char host[NI_MAXHOST], port[8], address[NI_MAXHOST + 16], path[LOCAL_SOCKET_PATH_BYTES];
    if (getnameinfo(a->ai_addr, a->ai_addrlen, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return false;
    tcp_address_format(host, (uint32_t)atoi(port), address, sizeof address);
    return local_socket_find(address, path);
}

int reach_try(const char *host, const char *port, int timeout_ms)
{
    struct addrinfo *list, hints = {.ai_socktype = SOCK_STREAM};
    if (getaddrinfo(host, port, &hints, &list) != 0) return REACH_NO_NAME;
    const int error = is_local(list) ? REACH_LOCAL : connect_within(list, timeout_ms);
    freeaddrinfo(list);
    return error;
}

static void describe(int error, char *words, size_t size)
{
    char own[REACH_NOTE_BYTES];
    switch (error) {
    case REACH_NO_NAME: snprintf(words, size, "its name does not resolve"); return;
    case ECONNREFUSED: snprintf(words, size, "connection refused"); return;
    case EHOSTUNREACH: snprintf(words, size, "no route to host"); return;
    case ENETUNREACH: snprintf(words, size, "network is unreachable"); return;
    case ETIMEDOUT: snprintf(words, size, "no answer, timed out"); return;
    default: snprintf(words, size, "%s", strerror_r(error, own, sizeof own));
    }
}

/* ---- attempts in a thread -------------------------------------------------------------------- */
static void drop(reach_question *q)
{
    if (q != NULL && atomic_fetch_sub(&q->users, 1) == 1) free(q);
}

static void *answer(void *question)
{
    reach_question *q = question;
    pthread_setname_np(pthread_self(), "pen-reach");
    q->error = reach_try(q->host, q->port, REACH_TRY_MS);
    atomic_store(&q->is_answered, true);
    drop(q);
    return NULL;
}

/* "tcp://HOST:PORT" and "tcp://[HOST]:PORT"; nothing else is tried. */
static bool split(const char *address, reach_question *q)
{
    if (strncmp(address, "tcp://", PREFIX) != 0) return false;
    const char *host = address + PREFIX, *colon = strrchr(host, ':');
    if (colon == NULL || strlen(colon + 1) >= sizeof q->port) return false;
    size_t n = (size_t)(colon - host);
    if (n >= 2 && host[0] == '[' && host[n - 1] == ']') host++, n -= 2;
    if (n == 0 || n >= sizeof q->host) return false;
    snprintf(q->host, sizeof q->host, "%.*s", (int)n, host);
    snprintf(q->port, sizeof q->port, "%s", colon + 1);
    return true;
}

/* NULL: no thread, or another kind of address. */
static reach_question *ask(const char *address)
{
    reach_question *q = calloc(1, sizeof *q);
    if (q == NULL) return NULL;
    atomic_init(&q->users, 2);
    if (split(address, q) && side_thread_start(answer, q)) return q;
    free(q);
    return NULL;
}

/* ---- watching ------------------------------------------------------------------------------------ */
static void forget(reach *r)
{
    drop(r->asked);
    r->asked    = NULL;
    r->note[0]  = '\0';
    r->words[0] = '\0';
}

void reach_begin(reach *r, uint64_t name_ms, uint64_t now_ms)
{
    forget(r);
    *r = (reach){.is_needed = true,
                 .begun_ms  = now_ms,
                 .due_ms    = now_ms + REACH_FIRST_MS,
                 .name_ms   = name_ms};
}

void reach_up(reach *r)
{
    forget(r);
    r->is_up      = true;
    r->is_doubted = false;
}

void reach_down(reach *r, uint64_t patience_ms, uint64_t now_ms)
{
    if (!r->is_up) return;
    r->is_up = false;
    if (r->is_doubted) return; /* already probing */
    r->begun_ms = now_ms;
    r->due_ms   = now_ms + patience_ms;
}

void reach_doubt(reach *r, uint64_t unconfirmed_ms, uint64_t lease_ms, uint64_t now_ms)
{
    const bool is_doubtful = unconfirmed_ms >= lease_ms / 4 && unconfirmed_ms > 0;
    if (!r->is_up || r->is_doubted == is_doubtful) return;
    forget(r);
    r->is_doubted = is_doubtful;
    r->begun_ms = r->due_ms = now_ms;
}

void reach_refused(reach *r, const char *note)
{
    if (!r->is_up) snprintf(r->note, sizeof r->note, "%s", note);
}

void reach_end(reach *r)
{
    forget(r);
    *r = (reach){0};
}

bool reach_is_missing(const reach *r)
{
    return r->is_needed && (!r->is_up || r->is_doubted);
}

/* A reachable listener is not an obstacle, unless it belongs to another job. */
static bool put_in_words(reach *r, int error, uint64_t now_ms)
{
    if (error == REACH_NO_NAME && now_ms - r->begun_ms < r->name_ms) return false;
    if (error == 0 || error == REACH_LOCAL)
        snprintf(r->words, sizeof r->words, "%s", r->note);
    else
        describe(error, r->words, sizeof r->words);
    return r->words[0] != '\0';
}

const char *reach_look(reach *r, const char *address, uint64_t now_ms)
{
    if (!reach_is_missing(r)) return NULL;
    if (r->asked == NULL) {
        if (now_ms >= r->due_ms) r->asked = ask(address);
        if (now_ms >= r->due_ms && r->asked == NULL) r->due_ms = now_ms + REACH_AGAIN_MS;
        return NULL;
    }
    if (!atomic_load(&r->asked->is_answered)) return NULL;
    const int error = r->error = r->asked->error;
    drop(r->asked);
    r->asked  = NULL;
    r->due_ms = now_ms + REACH_AGAIN_MS;
    return put_in_words(r, error, now_ms) ? r->words : NULL;
}
