/* transport_zmq_open.c - opens a listening ROUTER or a dialling DEALER: options, addresses, errors. */
#include "common/net/transport/transport_zmq.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/net/transport/linger.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    BACKLOG          = 1024, /* all workers of a job dial at once */
    RECONNECT_MS     = 100,
    BEAT_MS_MAX      = 2000, /* interval of sends, for the other host to acknowledge */
    HANDSHAKE_MS_MIN = 1000,
    HANDSHAKE_MS_MAX = 5000,
    LOG_NO_FOLDER    = 0x10ca1 /* of log_allowed() */
};

/* A listener drops connections that stop half-way soon. */
static int handshake_ms(const endpoint *e, int patience)
{
    if (patience < HANDSHAKE_MS_MIN) return HANDSHAKE_MS_MIN;
    return e->listens && patience > HANDSHAKE_MS_MAX ? HANDSHAKE_MS_MAX : patience;
}

static void set_options(endpoint *e, const char *address, const transport_options *o)
{
    const uint64_t largest =
        o->head_bytes_max > o->body_bytes_max ? o->head_bytes_max : o->body_bytes_max;
    const int64_t frame_max = largest > INT64_MAX / 2 ? INT64_MAX : (int64_t)(2 * largest);
    const int heartbeat     = o->heartbeat_ms > INT_MAX / 3 ? INT_MAX / 3 : (int)o->heartbeat_ms;
    zmq.setsockopt(e->socket, ZMQ_MAXMSGSIZE, &frame_max, sizeof frame_max);
    set_int(e->socket, ZMQ_LINGER, 0);
    set_int(e->socket, ZMQ_SNDHWM, 0);
    set_int(e->socket, ZMQ_RCVHWM, 0);
    set_int(e->socket, ZMQ_BACKLOG, BACKLOG);
    set_int(e->socket, ZMQ_HANDSHAKE_IVL, handshake_ms(e, 3 * heartbeat));
    set_int(e->socket, ZMQ_HEARTBEAT_IVL, heartbeat < BEAT_MS_MAX ? heartbeat : BEAT_MS_MAX);
    set_int(e->socket, ZMQ_HEARTBEAT_TIMEOUT, 3 * heartbeat);
    set_int(e->socket, ZMQ_CONNECT_TIMEOUT, (int)o->connect_ms);
    set_int(e->socket, ZMQ_RECONNECT_IVL, RECONNECT_MS);
    set_int(e->socket, ZMQ_RECONNECT_IVL_MAX, (int)o->reconnect_ms_max);
    set_int(e->socket, ZMQ_TCP_KEEPALIVE, 0); /* heartbeats detect more, and sooner */
    if (strpbrk(address, "[*") != NULL) set_int(e->socket, ZMQ_IPV6, 1); /* all of IPv4 too */
    set_int(e->socket, e->listens ? ZMQ_ROUTER_MANDATORY : ZMQ_PROBE_ROUTER, 1);
}

static int descriptor_of(void *socket)
{
    int fd;
    size_t size = sizeof fd;
    return zmq.getsockopt(socket, ZMQ_FD, &fd, &size) == 0 ? fd : -1;
}

static bool watch_socket(endpoint *e, void *socket)
{
    return endpoint_watch_fd(e, descriptor_of(socket));
}

static void close_watched(endpoint *e, void *socket)
{
    if (socket == NULL) return;
    epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, descriptor_of(socket), NULL);
    zmq.close(socket);
}

/* The monitor reports connections over a pair of sockets inside the process. */
static bool open_monitor(endpoint *e, void *ctx, unsigned number)
{
    char name[64];
    snprintf(name, sizeof name, "inproc://penstock-monitor-%u", number);
    const int events = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_ACCEPTED |
                       ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                       ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                       ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    if (zmq.socket_monitor(e->socket, name, events) != 0) return false;
    e->monitor = zmq.socket(ctx, ZMQ_PAIR);
    if (e->monitor == NULL) return false;
    set_int(e->monitor, ZMQ_LINGER, 0);
    set_int(e->monitor, ZMQ_RCVHWM, 0);
    return zmq.connect(e->monitor, name) == 0;
}

/* Opens a socket and its monitor, both watched.  On failure errno says why, and both may be open. */
static bool make_socket(endpoint *e, void *ctx, int type, unsigned number)
{
    e->monitor = NULL;
    e->socket  = type == ZMQ_ROUTER ? zmqctx_router(ctx) : zmq.socket(ctx, type);
    return e->socket != NULL && open_monitor(e, ctx, number) && watch_socket(e, e->socket) &&
           watch_socket(e, e->monitor);
}

static bool is_tcp(const char *address)
{
    return strncmp(address, "tcp://", 6) == 0;
}

static pen_status open_socket(endpoint *e, int type, const char *address,
                              const transport_options *o, pen_error *why)
{
    unsigned number;
    e->epoll_fd = e->timer_fd = e->reserved_fd = -1;
    e->options                                 = *o;
    if (!is_tcp(address)) e->options.sockets = TRANSPORT_TCP;
    e->has_keys = o->keys != NULL && e->options.sockets != TRANSPORT_LOCAL_ONLY;
    peers_init(&e->peers, mark_drop);
    watch_init(e, o);
    e->head_max = o->head_bytes_max;
    e->body_max = o->body_bytes_max;
    linger_begin();
    if (zmqctx_load(why) != PEN_OK) return why->status;
    void *ctx      = queue_create(e) ? zmqctx_acquire(o->io_threads, &number) : NULL;
    e->has_context = ctx != NULL;
    e->generation  = zmqctx_generation();
    if (ctx != NULL) e->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (e->epoll_fd < 0 || !make_socket(e, ctx, type, number))
        return why_set(
            why, PEN_NO_MEMORY,
            "cannot open a socket for %.200s: %s; raise the limit of open files (ulimit -n)",
            address, zmq.strerror(errno));
    set_options(e, address, o);
    return curve_set(e, ctx, e->has_keys, why);
}

/* An abstract address: for "*" ZeroMQ creates a folder in the current one and removes it with the socket, so it cannot
 * be reused. */
static const char *make_name(endpoint *e)
{
    static atomic_uint names;
    snprintf(e->address, sizeof e->address, "ipc://@penstock-%d-%u", (int)getpid(),
             atomic_fetch_add(&names, 1));
    return e->address;
}

/* ZeroMQ would take over the socket file of a live listener. */
static bool is_served(const char *address)
{
    return strncmp(address, "ipc://", 6) == 0 && local_socket_is_live(address + 6);
}

/* ZeroMQ accepts any number modulo 2^16, and trailing letters. */
static bool has_port(const char *address, long lowest)
{
    const char *port = strrchr(address, ':') + 1;
    char *end;
    if (!is_tcp(address)) return true;
    const long number = strtol(port, &end, 10);
    return *port >= '0' && *port <= '9' && *end == '\0' && end - port <= 5 && number >= lowest &&
           number <= UINT16_MAX;
}

static pen_status notify_failed(const char *verb, const char *address, int error, pen_error *why)
{
    if (error == EINVAL)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "'%.200s' is not an address: write tcp://HOST:PORT", address);
    if (error == EADDRINUSE && is_tcp(address))
        return why_set(why, PEN_UNREACHABLE,
                       "port %s is in use (%.200s); choose another, or 0 for a free one",
                       strrchr(address, ':') + 1, address);
    if (error == EADDRINUSE)
        return why_set(why, PEN_UNREACHABLE, "'%.200s' is in use; choose another name", address);
    if (error == ENODEV || error == EADDRNOTAVAIL)
        return why_set(
            why, PEN_UNREACHABLE,
            "cannot %s %.200s: this host has no such address; use one of its IP addresses or "
            "interfaces, or 0.0.0.0 for all",
            verb, address);
    return why_set(why, PEN_UNREACHABLE, "cannot %s %.200s: %s", verb, address,
                   zmq.strerror(error));
}

/* At TCP, or only in its place.  False: errno. */
static bool bind_address(endpoint *e, const char *address)
{
    size_t size = sizeof e->address;
    if (e->options.sockets == TRANSPORT_LOCAL_ONLY) {
        e->reserved_fd = local_socket_reserve(address, e->address, sizeof e->address);
        return e->reserved_fd >= 0;
    }
    return zmq.bind(e->socket, address) == 0 &&
           zmq.getsockopt(e->socket, ZMQ_LAST_ENDPOINT, e->address, &size) == 0;
}

/* The Unix-domain socket beside it, without keys.  ZeroMQ only accepts there: the file is ours. */
static pen_status bind_local(endpoint *e, pen_error *why)
{
    const pen_status status = local_socket_listen(e->address, BACKLOG, &e->local, why);
    if (status == PEN_STORE && e->options.sockets == TRANSPORT_LOCAL_TOO) {
        if (log_allowed(LOG_NO_FOLDER))
            log_notice("processes of this host use TCP too: %s", why->text);
        return PEN_OK;
    }
    if (status != PEN_OK) return status;
    (void)curve_set(e, NULL, false, why);
    set_int(e->socket, ZMQ_USE_FD, local_socket_take(e->local)); /* ZeroMQ closes it */
    if (zmq.bind(e->socket, "ipc://@penstock") != 0)
        return why_set(why, PEN_INTERNAL, "cannot listen at the socket of %.200s: %s", e->address,
                       zmq.strerror(errno));
    return PEN_OK;
}

pen_status endpoint_listen(void *state, const char *address, const transport_options *o,
                           pen_error *why)
{
    endpoint *e             = state;
    e->listens              = true;
    const pen_status status = open_socket(e, ZMQ_ROUTER, address, o, why);
    if (status != PEN_OK) return status;
    if (strcmp(address, "ipc://*") == 0) address = make_name(e);
    if (!has_port(address, 0)) return notify_failed("listen at", address, EINVAL, why);
    if (is_served(address)) return notify_failed("listen at", address, EADDRINUSE, why);
    if (!bind_address(e, address)) return notify_failed("listen at", address, errno, why);
    return e->options.sockets == TRANSPORT_TCP ? PEN_OK : bind_local(e, why);
}

pen_status endpoint_dial(void *state, const char *address, const transport_options *o,
                         pen_error *why)
{
    endpoint *e             = state;
    const pen_status status = open_socket(e, ZMQ_DEALER, address, o, why);
    if (status != PEN_OK) return status;
    if (!has_port(address, 1) || strlen(address) >= sizeof e->address)
        return notify_failed("dial", address, EINVAL, why);
    snprintf(e->address, sizeof e->address, "%s", address);
    if (!dial_begin(e)) return notify_failed("dial", address, errno, why);
    return PEN_OK;
}

/* Closes the old one only if there is another. */
bool endpoint_renew(endpoint *e)
{
    void *socket = e->socket, *monitor = e->monitor;
    unsigned number;
    void *ctx = zmqctx_acquire(e->options.io_threads, &number);
    bool is   = ctx != NULL && make_socket(e, ctx, ZMQ_DEALER, number);
    if (is) set_options(e, e->address, &e->options);
    if (!is) { /* drops the new one instead */
        void *made = e->socket, *made_monitor = e->monitor;
        e->socket  = socket;
        e->monitor = monitor;
        socket = made, monitor = made_monitor;
    }
    if (socket != NULL) zmq.socket_monitor(socket, NULL, 0);
    close_watched(e, monitor);
    close_watched(e, socket);
    if (ctx != NULL) zmqctx_release();
    return is;
}
