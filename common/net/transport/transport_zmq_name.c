/* transport_zmq_name.c - resolves the name that a dialler dials; its address may change meanwhile.
 *
 * DESIGN
 * Why.       ZeroMQ would query the name server in the thread that moves all messages of the process.  A silent
 *            server, which may take 5 s and more for a name that is gone, would block all messages and heartbeats, and
 *            live peers would look dead.  So ZeroMQ gets numeric addresses only.
 * Asking.    Each lookup has its own thread, as getaddrinfo() cannot be cancelled.  No thread waits for it: the last of
 *            thread and caller frees the lookup, and its descriptor wakes the caller.
 * Again.     A name is resolved again after each failed attempt, so a peer that returns under another address is
 *            found.  Uses the first IPv4 address, or else the first IPv6 one: ZeroMQ tries only one.
 */
#include "common/net/transport/transport_zmq.h"

#include "common/system/side_thread.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { AGAIN_MS = 500 /* at most */, LOOK_MS = 10, LOOK_TRIES = 4, PREFIX = 6 /* tcp:// */ };

struct name_question {
    atomic_int users; /* the caller and the thread */
    atomic_bool is_answered;
    int fd; /* readable when done */
    char host[DIAL_TARGET_MAX], port[8];
    char answer[DIAL_TARGET_MAX]; /* empty: does not resolve now */
};

/* ---- the question -------------------------------------------------------------------------------- */

static void drop(name_question *q)
{
    if (q == NULL || atomic_fetch_sub(&q->users, 1) > 1) return;
    if (q->fd >= 0) close(q->fd);
    free(q);
}

static void write_answer(name_question *q, const struct addrinfo *list)
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

static bool look_up_in(name_question *q, int family)
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
    name_question *q = question;
    pthread_setname_np(pthread_self(), "pen-name");
    if (!look_up_in(q, AF_INET)) (void)look_up_in(q, AF_INET6);
    atomic_store(&q->is_answered, true);
    eventfd_write(q->fd, 1);
    drop(q);
    return NULL;
}

/* NULL: not now. */
static name_question *ask(endpoint *e)
{
    const char *host = e->address + PREFIX, *colon = strrchr(host, ':');
    name_question *q = calloc(1, sizeof *q);
    if (q == NULL) return NULL;
    atomic_init(&q->users, 2);
    snprintf(q->host, sizeof q->host, "%.*s", (int)(colon - host), host);
    snprintf(q->port, sizeof q->port, "%s", colon + 1);
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (q->fd >= 0 && endpoint_watch_fd(e, q->fd) && side_thread_start(look_up, q)) return q;
    atomic_store(&q->users, 1);
    drop(q);
    return NULL;
}

/* ---- names and numbers ----------------------------------------------------------------------------- */

static bool is_name_char(char c)
{
    return isalnum((unsigned char)c) || c == '.' || c == '-' || c == '_';
}

/* Leaves other texts for ZeroMQ to refuse. */
static bool is_name(const char *address)
{
    char host[DIAL_TARGET_MAX];
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

/* ---- dialling --------------------------------------------------------------------------------------- */

void dial_hang_up(endpoint *e)
{
    if (e->target[0] != '\0') zmq_disconnect(e->socket, e->target);
    e->target[0] = '\0';
}

static void ask_later(endpoint *e)
{
    const uint32_t most = e->options.reconnect_ms_max;
    endpoint_set_timer(e, most < AGAIN_MS ? most : AGAIN_MS);
}

/* Nobody listens at the only socket: looks again soon, less often after a while. */
static bool look_again(endpoint *e)
{
    dialled *l      = &e->link;
    const long wait = (long)LOOK_MS << l->tries;
    if (l->tries < LOOK_TRIES) l->tries++;
    dial_hang_up(e);
    endpoint_set_timer(e, wait);
    return true;
}

/* Where the listener at a numeric address is now: the Unix-domain socket that it left for this user, or TCP.  Keeps what
 * is dialled if that is right.  False: errno says what is wrong with the address. */
static bool dial_number(endpoint *e, const char *number)
{
    char target[DIAL_TARGET_MAX], path[LOCAL_SOCKET_PATH_BYTES];
    pen_error why;
    const transport_sockets sockets = e->options.sockets;
    const bool is_local             = sockets != TRANSPORT_TCP && local_socket_find(number, path);
    if (!is_local && sockets == TRANSPORT_LOCAL_ONLY) return look_again(e);
    snprintf(target, sizeof target, is_local ? "ipc://%s" : "%s", is_local ? path : number);
    if (strcmp(target, e->target) == 0) return true;
    dial_hang_up(e);
    e->link.is_local = is_local;
    e->link.tries    = 0;
    if (strchr(number, '[') != NULL) set_int(e->socket, ZMQ_IPV6, 1);
    if (curve_set(e, NULL, e->has_keys && !is_local, &why) != PEN_OK ||
        zmq_connect(e->socket, target) != 0)
        return false;
    snprintf(e->target, sizeof e->target, "%s", target);
    return true;
}

static void ask_if_not_asking(endpoint *e)
{
    if (e->asked != NULL) return;
    e->asked = ask(e);
    if (e->asked == NULL) ask_later(e);
}

bool dial_begin(endpoint *e)
{
    dial_hang_up(e);
    if (!is_name(e->address)) return dial_number(e, e->address);
    ask_if_not_asking(e);
    return true;
}

void dial_failed(endpoint *e)
{
    if (is_name(e->address))
        ask_if_not_asking(e);
    else
        (void)dial_number(e, e->address);
}

void dial_heed_answer(endpoint *e)
{
    name_question *q = e->asked;
    if (q == NULL || !atomic_load(&q->is_answered)) return;
    e->asked = NULL;
    epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, q->fd, NULL);
    if (!e->link.is_up && q->answer[0] != '\0')
        (void)dial_number(e, q->answer);
    else if (!e->link.is_up && e->target[0] == '\0')
        ask_later(e);
    drop(q);
}

void dial_end(endpoint *e)
{
    drop(e->asked);
    e->asked = NULL;
}
