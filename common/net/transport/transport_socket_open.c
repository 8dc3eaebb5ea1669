/* transport_socket_open.c - listening, and a dialler's attempts.
 *
 * DESIGN
 * Where.     As transport.h says of "tcp://": TCP, a Unix-domain socket of this user beside it, or that socket alone.  A
 *            dialler looks for the socket before each attempt, and resolves the name again.
 * Up.        A dialler is up when the kernel of the other host has taken the connection: the process behind it may be
 *            busy.  What it sends waits there.
 * Silence.   The kernel probes idle connections, and ends those whose data nobody acknowledges.  Both kernels do that for
 *            a stopped process too: its lease at the scheduler finds it.
 */
#include "common/net/transport/transport_socket.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/why.h"
#include "common/net/tcp_address.h"
#include "common/net/transport/linger.h"
#include "common/system/own_pid.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#define SCHEME "socket://"

enum {
    BACKLOG       = 1024, /* all workers of a job dial at once */
    WAIT_MS       = 10,   /* before the second attempt; then twice as long each time */
    PROVING_MS    = 5000, /* for a handshake */
    WAIT_LOCAL_MS = 160,  /* at most, where only the file of a socket is looked for */
    SCHEME_BYTES  = sizeof SCHEME - 1,
    LOG_NO_FOLDER = 0x10ca1 /* of log_allowed() */
};

bool socket_watch(socket_endpoint *e, int fd, void *tag)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = tag};
    return fd >= 0 && epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

void socket_set_timer(socket_endpoint *e, uint32_t ms)
{
    const struct itimerspec at = {
        .it_value = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}};
    timerfd_settime(e->timer_fd, 0, &at, NULL);
}

static void set(int fd, int level, int option, int value)
{
    setsockopt(fd, level, option, &value, sizeof value);
}

void socket_prepare(int fd, const transport_options *o)
{
    const uint32_t beat_s = o->heartbeat_ms < 1000 ? 1 : o->heartbeat_ms / 1000;
    local_socket_widen(fd);
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, (int)beat_s);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, (int)beat_s);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(3 * o->heartbeat_ms));
}

/* ---- errors -------------------------------------------------------------------------------------- */
static pen_status fail(const transport_options *o, const char *verb, const char *address, int error,
                       pen_error *why)
{
    const char *at = address + SCHEME_BYTES;
    if (error == EINVAL)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "'%.200s' is not an address: write " SCHEME "HOST:PORT", address);
    if (error == EADDRINUSE)
        return why_set(why, PEN_UNREACHABLE,
                       "port %s is in use (%s%.200s); choose another, or 0 for a free one",
                       strrchr(address, ':') + 1,
                       o->carrier == TRANSPORT_SOCKET ? "tcp://" : SCHEME, at);
    if (error == EADDRNOTAVAIL)
        return why_set(why, PEN_UNREACHABLE,
                       "cannot %s %.200s: this host has no such address; use one of its IP "
                       "addresses, or 0.0.0.0 for all",
                       verb, at);
    return why_set(why, PEN_UNREACHABLE, "cannot %s %.200s: %s", verb, at, strerror(error));
}

/* As the rest of the network code writes it, "tcp://HOST:PORT"; false: no such address. */
static bool as_tcp(const char *address, long lowest, char tcp[ENDPOINT_ADDRESS_MAX])
{
    const char *port = strrchr(address, ':') + 1;
    char *end;
    const int n = snprintf(tcp, ENDPOINT_ADDRESS_MAX, "tcp://%s", address + SCHEME_BYTES);
    if (n < 0 || n >= ENDPOINT_ADDRESS_MAX || *port < '0' || *port > '9') return false;
    const long number = strtol(port, &end, 10);
    return *end == '\0' && end - port <= 5 && number >= lowest && number <= UINT16_MAX &&
           port > address + SCHEME_BYTES + 1;
}

static pen_status open_endpoint(socket_endpoint *e, const char *address, const transport_options *o,
                                pen_error *why)
{
    e->o      = *o;
    e->pid    = own_pid();
    e->tcp_fd = e->local_fd = -1;
    e->epoll_fd             = epoll_create1(EPOLL_CLOEXEC);
    e->timer_fd             = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    e->ready                = calloc(ENDPOINT_EVENTS, sizeof *e->ready);
    linger_begin();
    if (e->ready == NULL || !socket_watch(e, e->timer_fd, &e->timer_fd))
        return why_set(why, PEN_NO_MEMORY,
                       "cannot open a socket for %.200s: %m; raise the limit of open files (ulimit "
                       "-n)",
                       address);
    if (o->keys == NULL || o->sockets == TRANSPORT_LOCAL_ONLY) return PEN_OK;
    return tls_context_open(o->keys, e->listens, &e->tls, why);
}

/* ---- listening ----------------------------------------------------------------------------------- */
static pen_status listen_locally(socket_endpoint *e, const char *tcp, pen_error *why)
{
    const pen_status status = local_socket_listen(tcp, BACKLOG, &e->local, why);
    if (status == PEN_STORE && e->o.sockets == TRANSPORT_LOCAL_TOO) {
        if (log_allowed(LOG_NO_FOLDER))
            log_notice("processes of this host use TCP too: %s", why->text);
        return PEN_OK;
    }
    if (status != PEN_OK) return status;
    e->local_fd = local_socket_take(e->local);
    if (socket_watch(e, e->local_fd, &e->local_fd)) return PEN_OK;
    return why_set(why, PEN_NO_MEMORY, "cannot watch a socket: %m");
}

pen_status socket_listen(void *state, const char *address, const transport_options *o,
                         pen_error *why)
{
    socket_endpoint *e = state;
    struct rlimit files;
    char asked[ENDPOINT_ADDRESS_MAX], tcp[ENDPOINT_ADDRESS_MAX];
    e->listens        = true;
    pen_status status = open_endpoint(e, address, o, why);
    if (status != PEN_OK) return status;
    e->connections_max = o->connections_max;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 2 < e->connections_max)
        e->connections_max = (uint32_t)(files.rlim_cur / 2); /* leaves descriptors for others */
    if (!as_tcp(address, 0, asked)) return fail(o, "listen at", address, EINVAL, why);
    e->tcp_fd = local_socket_reserve(asked, tcp, sizeof tcp);
    if (e->tcp_fd < 0) return fail(o, "listen at", address, errno, why);
    if (o->sockets !=
        TRANSPORT_LOCAL_ONLY) /* others are kept out by listen(), but ended connections are not waited for */
        set(e->tcp_fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (o->sockets != TRANSPORT_LOCAL_ONLY &&
        (listen(e->tcp_fd, BACKLOG) != 0 || fcntl(e->tcp_fd, F_SETFL, O_NONBLOCK) != 0 ||
         !socket_watch(e, e->tcp_fd, &e->tcp_fd)))
        return fail(o, "listen at", address, errno, why);
    const int n = snprintf(e->address, sizeof e->address, SCHEME "%s", tcp + strlen("tcp://"));
    if (n < 0 || (size_t)n >= sizeof e->address) return fail(o, "listen at", address, EINVAL, why);
    return o->sockets == TRANSPORT_TCP ? PEN_OK : listen_locally(e, tcp, why);
}

/* ---- dialling ------------------------------------------------------------------------------------ */
pen_status socket_dial(void *state, const char *address, const transport_options *o, pen_error *why)
{
    socket_endpoint *e = state;
    struct sockaddr_storage at;
    char tcp[ENDPOINT_ADDRESS_MAX];
    socklen_t size;
    const pen_status status = open_endpoint(e, address, o, why);
    if (status != PEN_OK) return status;
    if (!as_tcp(address, 1, tcp) ||
        (!name_lookup_is_needed(tcp) && !tcp_address_parse(tcp, &at, &size)))
        return fail(o, "dial", address, EINVAL, why);
    snprintf(e->address, sizeof e->address, "%s", address);
    e->wait_ms = WAIT_MS;
    socket_attempt(e);
    return PEN_OK;
}

void socket_attempt_later(socket_endpoint *e)
{
    const bool is_cheap = e->o.sockets == TRANSPORT_LOCAL_ONLY;
    const uint32_t most =
        is_cheap && WAIT_LOCAL_MS < e->o.reconnect_ms_max ? WAIT_LOCAL_MS : e->o.reconnect_ms_max;
    e->state = DIAL_WAITING;
    socket_set_timer(e, e->wait_ms < most ? e->wait_ms : most);
    if (e->wait_ms < most) e->wait_ms *= 2;
}

/* A connection begins; false: not now. */
static bool begin_connection(socket_endpoint *e, const struct sockaddr *to, socklen_t size)
{
    const int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    socket_prepare(fd, &e->o);
    const bool is_begun = connect(fd, to, size) == 0 || errno == EINPROGRESS;
    if (!is_begun) close(fd);
    line *l = is_begun ? line_create(fd, &e->o) : NULL;
    if (l == NULL) return false;
    struct epoll_event event = {.events = EPOLLOUT, .data.ptr = l};
    if (epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        line_free(l);
        return false;
    }
    l->next = l->prev = NULL;
    e->lines          = l;
    e->state          = DIAL_CONNECTING;
    socket_set_timer(e, e->o.connect_ms);
    return true;
}

static bool connect_to(socket_endpoint *e, const char *tcp)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_storage at;
    socklen_t size;
    _Static_assert(sizeof un.sun_path >= LOCAL_SOCKET_PATH_BYTES, "the path fits");
    e->is_local = e->o.sockets != TRANSPORT_TCP && local_socket_find(tcp, un.sun_path);
    if (e->is_local) return begin_connection(e, (const struct sockaddr *)&un, sizeof un);
    if (e->o.sockets == TRANSPORT_LOCAL_ONLY || !tcp_address_parse(tcp, &at, &size)) return false;
    return begin_connection(e, (const struct sockaddr *)&at, size);
}

void socket_attempt(socket_endpoint *e)
{
    char tcp[ENDPOINT_ADDRESS_MAX];
    (void)as_tcp(e->address, 1, tcp);
    if (!name_lookup_is_needed(tcp)) {
        if (!connect_to(e, tcp)) socket_attempt_later(e);
        return;
    }
    e->asked = name_lookup_start(tcp);
    if (e->asked != NULL && socket_watch(e, name_lookup_fd(e->asked), &e->asked)) {
        e->state = DIAL_NAMING;
        return;
    }
    name_lookup_drop(e->asked);
    e->asked = NULL;
    socket_attempt_later(e);
}

void socket_heed_answer(socket_endpoint *e)
{
    name_lookup *q     = e->asked;
    const char *answer = q != NULL ? name_lookup_answer(q) : NULL;
    if (answer == NULL) return;
    epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, name_lookup_fd(q), NULL);
    e->asked = NULL;
    if (answer[0] == '\0' || !connect_to(e, answer)) socket_attempt_later(e);
    name_lookup_drop(q);
}

static void up(socket_endpoint *e, line *l)
{
    e->state   = DIAL_UP;
    e->wait_ms = WAIT_MS;
    socket_set_timer(e, 0);
    line_greet(l);
}

void socket_connected(socket_endpoint *e)
{
    line *l                  = e->lines;
    int error                = 0;
    socklen_t size           = sizeof error;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = l};
    if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0 ||
        epoll_ctl(e->epoll_fd, EPOLL_CTL_MOD, l->fd, &event) != 0 ||
        (e->tls != NULL && !e->is_local && !line_prove(l, e->tls, false))) {
        e->lines = NULL;
        line_free(l);
        socket_attempt_later(e);
        return;
    }
    if (l->tls == NULL) {
        up(e, l);
        return;
    }
    e->state = DIAL_PROVING;
    socket_set_timer(e, PROVING_MS);
    socket_prove(e, l);
}

void socket_prove(socket_endpoint *e, line *l)
{
    switch (tls_shake(l->tls, &l->note)) {
    case TLS_SHAKING: return;
    case TLS_FAILED: l->is_over = true; return;
    case TLS_UP: break;
    }
    l->is_proving = false;
    if (!e->listens)
        up(e, l);
    else
        line_greet(l);
}
