/* transport_zmq.c - TCP and Unix sockets through ZeroMQ; the only file that includes zmq.h.
 *
 * DESIGN
 * Shape.  A listener is a ROUTER, a dialler a DEALER.  ZeroMQ names a ROUTER's peers by five bytes, a
 * zero and a number that counts up; the number is our peer.  A message is [head] or [head][body].
 *
 * Bounds.  ZMQ_MAXMSGSIZE ends a connection that announces a frame of more than twice the larger
 * limit, before any memory is taken; between one and two limits the message is refused by name and
 * its connection lives.  The queues have no limit (HWM 0): the layers above bound what is in flight,
 * and a full receive queue would stop ZeroMQ from reading heartbeats, so that a process that is only
 * slow would be taken for a dead one.
 *
 * Queues of a lost connection.  ZMQ_IMMEDIATE ties a dialler's queue to its connection: when that
 * ends, what was queued is released at once.  Otherwise the memory of a dead server's messages would
 * stay lent until it comes back, which may be never, and then it would be sent old messages first.
 *
 * Connections.  ZeroMQ hides them.  Its monitor tells of descriptors opened and closed; a message tells
 * by which descriptor it came.  Both come by queues of their own, and descriptors are used again, so:
 *   - The monitor is read when the messages are dry, and before a new peer is tied to a descriptor.  It
 *     reports a connection's end before the descriptor is closed, so a descriptor whose news is read
 *     belongs to the connection of the newest peer.
 *   - Peers count up.  Of two on one descriptor the higher has it, and the lower is gone.
 *   - After its DOWN a peer is remembered for a while as ended, and a straggler of it is dropped.
 * A dialler says an empty word on every connection (ZMQ_PROBE_ROUTER).  So the listener knows whose a
 * descriptor is before the peer has anything to say, and a connection that ends without a word was none
 * of ours: a browser, a scanner, a frame too large to be announced.
 *
 * Strangers.  In the first two versions of ZeroMQ's protocol any bytes are a greeting.  A ZAP domain
 * makes ZeroMQ refuse them.  What it does not bound is one message of endlessly many frames: the ports
 * are for a network that is trusted.
 *
 * Stalls.  Heartbeats are answered by ZeroMQ's own thread, so only a stopped process or a dead host
 * misses them.  Three default intervals make 6 s: a stall of 5 s does not break a connection.
 *
 * Moves.  Names are resolved anew at each attempt, and an attempt ends after connect_ms, so a peer that
 * comes back under another address is found.  (Without a limit the kernel retries a dead address for
 * two minutes.)  After a breach of protocol ZeroMQ dials no more; we do.  ZMQ_IPV6 is on for literal IPv6 addresses only: with it "localhost" may mean ::1, and
 * ZeroMQ tries no second address.
 */
#include "common/transport/transport.h"

#include "common/clock.h"
#include "common/why.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

/* Without memory a peer is not added, instead of exit(). */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

enum {
    COPY_BELOW = 32 << 10, /* a copy is cheaper than a reference and a callback in another thread */
    ID_BYTES   = 5,
    SOCKETS_MAX      = 16384, /* of the process */
    FD_MAX           = 1 << 20,
    ENDED_MAX        = 64,  /* ended peers that are remembered */
    REFUSED_MAX      = 64,  /* connections refused and not told yet; more are one flood */
    FLOOD_LOOK       = 64,  /* messages between two looks at the clock */
    FLOOD_MS         = 200, /* messages are never dry: news comes after so long all the same */
    RECONNECT_MS     = 100,
    RECONNECT_MS_MAX = 2000,
    REDIAL_MS        = 500,  /* after an end, unless ZeroMQ has said by then that it tries again */
    HANDSHAKE_MS_MIN = 1000, /* no less for a short heartbeat */
    BACKLOG          = 1024  /* all workers of a job dial at once */
};

/* ---- the one context of the process ---------------------------------------------------------- */

static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
static void *context;
static unsigned context_users, monitors;
static atomic_uint generation; /* how many forks lie between this process and the first one */

/* The child of a fork has none of ZeroMQ's threads: it forgets the context and touches nothing. */
static void forget_context(void)
{
    context_lock  = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    context       = NULL;
    context_users = 0;
    atomic_fetch_add(&generation, 1);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_context);
}

/* ZeroMQ allocates each large message and we free it in another thread.  By default glibc gives such blocks back to
 * the kernel at once, and a fifth of the time of a transfer goes into page faults.  Freeing one block just
 * below 32 MiB raises both of its dynamic thresholds, as any program that frees a big array does; no mallopt() is called,
 * which would switch that adaptation off for the whole program. */
static void keep_freed_memory(void)
{
    volatile char *block = malloc((32 << 20) - (64 << 10));
    if (block != NULL) block[0] = 0; /* or the compiler removes the pair */
    free((void *)(uintptr_t)block);
}

static void *context_create(uint32_t io_threads)
{
    void *made = zmq_ctx_new();
    if (made == NULL) return NULL;
    zmq_ctx_set(made, ZMQ_IO_THREADS, (int)io_threads);
    zmq_ctx_set(made, ZMQ_MAX_SOCKETS, SOCKETS_MAX);
    zmq_ctx_set(made, ZMQ_BLOCKY, 0);
    keep_freed_memory();
    return made;
}

static void *context_acquire(uint32_t io_threads, unsigned *number)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&context_lock);
    if (context == NULL) context = context_create(io_threads);
    if (context != NULL) context_users++;
    void *acquired = context;
    *number        = ++monitors;
    pthread_mutex_unlock(&context_lock);
    return acquired;
}

static void context_release(void)
{
    pthread_mutex_lock(&context_lock);
    void *last = --context_users == 0 ? context : NULL;
    if (last != NULL) context = NULL;
    pthread_mutex_unlock(&context_lock);
    if (last != NULL) zmq_ctx_term(last);
}

/* ---- one endpoint ---------------------------------------------------------------------------- */

typedef struct peer {
    uint32_t number;
    bool has_spoken; /* more than the empty word */
    struct peer *next_ended;
    UT_hash_handle hh;
} peer;

typedef struct {
    peer *peer;          /* NULL: it has not spoken                                             */
    bool is_open;        /* between CONNECTED or ACCEPTED and DISCONNECTED                      */
    bool is_early;       /* it spoke before it was reported as accepted, by another I/O thread  */
    uint64_t ended_turn; /* when a silent connection ended here                                 */
} connection;

typedef struct {
    void *socket, *monitor;
    int epoll_fd;
    unsigned generation;
    bool listens, has_context, has_head;
    char address[256];
    uint64_t head_max, body_max;
    zmq_msg_t head; /* of the last event; closed by the next recv */

    /* of a dialler: how things are, and what its owner knows of it */
    bool is_up, told_up, broke;
    int timer_fd;          /* -1 until the first end */
    uint64_t redial_at_ms; /* 0: ZeroMQ dials */

    /* of a listener */
    peer *peers;                     /* hash by number */
    peer *first_ended, **last_ended; /* DOWN is still to be told */
    uint32_t ended[ENDED_MAX];       /* DOWN has been told; a ring */
    size_t n_ended;

    connection *connections; /* [n_connections] by descriptor */
    size_t n_connections;
    uint32_t wordless; /* connections that ended in this turn before a word of theirs was read */
    uint32_t refused;  /* connections, still to be told */
    uint32_t n_ending; /* peers whose DOWN is still to be told */
    uint32_t overdue;  /* news that will not wait for the messages to be dry */

    uint64_t turn;      /* how often the messages were dry */
    uint64_t flood_ms;  /* since when they were not */
    uint32_t since_dry; /* messages */
} endpoint;

static bool is_foreign(const endpoint *e)
{
    return e->generation != atomic_load_explicit(&generation, memory_order_relaxed);
}

static peer *find_peer(const endpoint *e, uint32_t number)
{
    peer *p;
    HASH_FIND(hh, e->peers, &number, sizeof number, p);
    return p;
}

static peer *add_peer(endpoint *e, uint32_t number)
{
    peer *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->number = number;
    HASH_ADD(hh, e->peers, number, sizeof p->number, p);
    if (p->hh.tbl != NULL) return p;
    free(p);
    return NULL;
}

/* Its DOWN is told when the messages are dry; until then it is still known. */
static void end_peer(endpoint *e, peer *p)
{
    *e->last_ended = p;
    e->last_ended  = &p->next_ended;
    e->n_ending++;
}

static uint32_t forget_ended(endpoint *e)
{
    peer *p              = e->first_ended;
    const uint32_t ended = p->number;
    e->first_ended       = p->next_ended;
    if (e->first_ended == NULL) e->last_ended = &e->first_ended;
    e->n_ending--;
    HASH_DEL(e->peers, p);
    free(p);
    e->ended[e->n_ended++ % ENDED_MAX] = ended;
    return ended;
}

static bool has_ended(const endpoint *e, uint32_t number)
{
    const size_t n = e->n_ended < ENDED_MAX ? e->n_ended : ENDED_MAX;
    for (size_t i = 0; i < n; i++)
        if (e->ended[i] == number) return true;
    return false;
}

static void free_peers(endpoint *e)
{
    peer *p, *next;
    HASH_ITER(hh, e->peers, p, next)
    {
        HASH_DEL(e->peers, p);
        free(p);
    }
}

static connection *connection_at(endpoint *e, int fd)
{
    if (fd < 0 || fd > FD_MAX) return NULL;
    if ((size_t)fd >= e->n_connections) {
        const size_t n    = (size_t)fd + 64;
        connection *grown = realloc(e->connections, n * sizeof *grown);
        if (grown == NULL) return NULL;
        memset(grown + e->n_connections, 0, (n - e->n_connections) * sizeof *grown);
        e->connections   = grown;
        e->n_connections = n;
    }
    return &e->connections[fd];
}

/* ---- opening --------------------------------------------------------------------------------- */

static void set_int(void *socket, int option, int value)
{
    zmq_setsockopt(socket, option, &value, sizeof value);
}

static void set_options(endpoint *e, const char *address, const transport_options *o)
{
    const uint64_t largest =
        o->head_bytes_max > o->body_bytes_max ? o->head_bytes_max : o->body_bytes_max;
    const int64_t frame_max = largest > INT64_MAX / 2 ? INT64_MAX : (int64_t)(2 * largest);
    const int heartbeat     = o->heartbeat_ms > INT_MAX / 3 ? INT_MAX / 3 : (int)o->heartbeat_ms;
    zmq_setsockopt(e->socket, ZMQ_MAXMSGSIZE, &frame_max, sizeof frame_max);
    set_int(e->socket, ZMQ_LINGER, 0);
    set_int(e->socket, ZMQ_SNDHWM, 0);
    set_int(e->socket, ZMQ_RCVHWM, 0);
    set_int(e->socket, ZMQ_IMMEDIATE, 1);
    set_int(e->socket, ZMQ_HEARTBEAT_IVL, heartbeat);
    set_int(e->socket, ZMQ_HEARTBEAT_TIMEOUT, 3 * heartbeat);
    set_int(e->socket, ZMQ_CONNECT_TIMEOUT, (int)o->connect_ms);
    set_int(e->socket, ZMQ_RECONNECT_IVL, RECONNECT_MS);
    set_int(e->socket, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MS_MAX);
    set_int(e->socket, ZMQ_HANDSHAKE_IVL,
            3 * heartbeat < HANDSHAKE_MS_MIN ? HANDSHAKE_MS_MIN : 3 * heartbeat);
    set_int(e->socket, ZMQ_BACKLOG, BACKLOG);
    set_int(e->socket, ZMQ_TCP_KEEPALIVE, 0); /* heartbeats find more, and sooner */
    zmq_setsockopt(e->socket, ZMQ_ZAP_DOMAIN, "penstock", strlen("penstock"));
    if (strchr(address, '[') != NULL) set_int(e->socket, ZMQ_IPV6, 1);
    set_int(e->socket, e->listens ? ZMQ_ROUTER_MANDATORY : ZMQ_PROBE_ROUTER, 1);
}

static bool watch_fd(endpoint *e, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static bool watch_socket(endpoint *e, void *socket)
{
    int fd;
    size_t size = sizeof fd;
    return zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0 && watch_fd(e, fd);
}

/* The monitor reports connections over a pair of sockets inside the process. */
static bool open_monitor(endpoint *e, void *ctx, unsigned number)
{
    char name[64];
    snprintf(name, sizeof name, "inproc://penstock-monitor-%u", number);
    const int events = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED |
                       ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_CONNECT_RETRIED;
    if (zmq_socket_monitor(e->socket, name, events) != 0) return false;
    e->monitor = zmq_socket(ctx, ZMQ_PAIR);
    if (e->monitor == NULL) return false;
    set_int(e->monitor, ZMQ_LINGER, 0);
    set_int(e->monitor, ZMQ_RCVHWM, 0);
    return zmq_connect(e->monitor, name) == 0;
}

static pen_status open_socket(endpoint *e, int type, const char *address,
                              const transport_options *o, pen_error *why)
{
    unsigned number;
    e->epoll_fd = e->timer_fd = -1;
    e->turn        = 1; /* 0: a descriptor where nothing ended */
    e->last_ended  = &e->first_ended;
    e->head_max    = o->head_bytes_max;
    e->body_max    = o->body_bytes_max;
    void *ctx      = context_acquire(o->io_threads, &number);
    e->has_context = ctx != NULL;
    e->generation  = atomic_load(&generation);
    if (ctx != NULL) e->socket = zmq_socket(ctx, type);
    if (e->socket != NULL) e->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (e->epoll_fd < 0 || !open_monitor(e, ctx, number) || !watch_socket(e, e->socket) || !watch_socket(e, e->monitor))
        return why_set(
            why, PEN_NO_MEMORY,
            "cannot make a socket for %.200s: %s; raise the limit of open files (ulimit -n)",
            address, zmq_strerror(errno));
    set_options(e, address, o);
    return PEN_OK;
}

/* Outside the file system: what ZeroMQ makes of "*" is a folder in the current one, gone with the
 * socket, so that nobody can listen there again. */
static const char *make_name(endpoint *e)
{
    static atomic_uint names;
    snprintf(e->address, sizeof e->address, "ipc://@penstock-%d-%u", (int)getpid(),
             atomic_fetch_add(&names, 1));
    return e->address;
}

/* ZeroMQ would take the socket file of a living listener away from it.  A datagram socket learns of the
 * listener without being a visitor of it. */
static bool is_served(const char *address)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const char *path      = address + strlen("ipc://");
    if (strncmp(address, "ipc://", 6) != 0 || strlen(path) >= sizeof at.sun_path) return false;
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const bool answers =
        connect(fd, (struct sockaddr *)&at, sizeof at) != 0 && errno == EPROTOTYPE;
    close(fd);
    return answers;
}

/* ZeroMQ would cut it to 16 bits. */
static bool is_beyond_ports(const char *address)
{
    const char *port = strrchr(address, ':') + 1;
    return strncmp(address, "tcp://", 6) == 0 && strtoul(port, NULL, 10) > UINT16_MAX;
}

static pen_status tell_bind_failed(const char *address, int error, pen_error *why)
{
    const bool is_tcp = strncmp(address, "tcp://", 6) == 0;
    const char *port  = strrchr(address, ':') + 1;
    if (error == EADDRINUSE && is_tcp)
        return why_set(why, PEN_UNREACHABLE,
                       "port %s is in use (%.200s); choose another, or 0 for a free one", port,
                       address);
    if (error == EADDRINUSE)
        return why_set(why, PEN_UNREACHABLE, "'%.200s' is in use; choose another name", address);
    if (error == EINVAL)
        return why_set(why, PEN_INVALID_ARGUMENT, "'%.200s' is no address: say tcp://HOST:PORT",
                       address);
    if (error == ENODEV || error == EADDRNOTAVAIL)
        return why_set(
            why, PEN_UNREACHABLE,
            "cannot listen at %.200s: this host has no such address; say an IP address or an "
            "interface of it, or 0.0.0.0 for all",
            address);
    return why_set(why, PEN_UNREACHABLE, "cannot listen at %.200s: %s", address,
                   zmq_strerror(error));
}

static pen_status socket_listen(void *state, const char *address, const transport_options *o,
                                pen_error *why)
{
    endpoint *e             = state;
    e->listens              = true;
    const pen_status status = open_socket(e, ZMQ_ROUTER, address, o, why);
    if (status != PEN_OK) return status;
    if (strcmp(address, "ipc://*") == 0) address = make_name(e);
    if (is_beyond_ports(address)) return tell_bind_failed(address, EINVAL, why);
    if (is_served(address)) return tell_bind_failed(address, EADDRINUSE, why);
    if (zmq_bind(e->socket, address) != 0) return tell_bind_failed(address, errno, why);
    size_t size = sizeof e->address;
    zmq_getsockopt(e->socket, ZMQ_LAST_ENDPOINT, e->address, &size);
    return PEN_OK;
}

static pen_status socket_dial(void *state, const char *address, const transport_options *o,
                              pen_error *why)
{
    endpoint *e             = state;
    const pen_status status = open_socket(e, ZMQ_DEALER, address, o, why);
    if (status != PEN_OK) return status;
    snprintf(e->address, sizeof e->address, "%s", address);
    if (!is_beyond_ports(address) && zmq_connect(e->socket, address) == 0) return PEN_OK;
    if (is_beyond_ports(address) || errno == EINVAL)
        return why_set(why, PEN_INVALID_ARGUMENT, "'%.200s' is no address: say tcp://HOST:PORT",
                       address);
    return why_set(why, PEN_UNREACHABLE, "cannot dial %.200s: %s", address, zmq_strerror(errno));
}

static const char *socket_address(void *state)
{
    return ((endpoint *)state)->address;
}

static int socket_poll_fd(void *state)
{
    return ((endpoint *)state)->epoll_fd;
}

/* ---- connections ----------------------------------------------------------------------------- */

/* A signal may interrupt even a call that does not wait, and would leave half a message behind. */
static int recv_bytes(void *socket, void *bytes, size_t size)
{
    int n;
    do n = zmq_recv(socket, bytes, size, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n;
}

static bool recv_frame(void *socket, zmq_msg_t *frame)
{
    int n;
    do n = zmq_msg_recv(frame, socket, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n >= 0;
}

static bool send_frame(void *socket, zmq_msg_t *frame)
{
    int n;
    do n = zmq_msg_send(frame, socket, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n >= 0;
}

static bool send_bytes(endpoint *e, const void *bytes, size_t size, int flags)
{
    int n;
    do n = zmq_send(e->socket, bytes, size, flags | ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n >= 0;
}

static bool recv_monitor(endpoint *e, uint16_t *kind, int *value)
{
    uint8_t bytes[6], address[256];
    if (recv_bytes(e->monitor, bytes, sizeof bytes) != sizeof bytes) return false;
    recv_bytes(e->monitor, address, sizeof address); /* both frames were sent as one message */
    memcpy(kind, bytes, sizeof *kind);
    memcpy(value, bytes + sizeof *kind, sizeof *value);
    return true;
}

static bool take_one(uint32_t *count)
{
    if (*count == 0) return false;
    (*count)--;
    return true;
}

static void refuse_connection(endpoint *e)
{
    if (e->refused < REFUSED_MAX) e->refused++;
}

static void on_opened(endpoint *e, int fd)
{
    connection *c = connection_at(e, fd);
    if (c == NULL) return;
    *c = (connection){.is_open = true, .peer = c->is_early ? c->peer : NULL};
}

/* The timer only wakes the owner.  Setting it also makes it silent if it has run out. */
static void set_timer(endpoint *e, long ms)
{
    const struct itimerspec once = {.it_value.tv_nsec = ms * 1000000};
    if (e->timer_fd >= 0) timerfd_settime(e->timer_fd, 0, &once, NULL);
}

static void plan_redial(endpoint *e)
{
    e->redial_at_ms = clock_ms(&clock_real) + REDIAL_MS;
    if (e->timer_fd < 0) {
        e->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        if (e->timer_fd >= 0) watch_fd(e, e->timer_fd);
    }
    set_timer(e, REDIAL_MS);
}

static void forget_redial(endpoint *e)
{
    e->redial_at_ms = 0;
    set_timer(e, 0);
}

static void redial_if_due(endpoint *e)
{
    if (e->redial_at_ms == 0 || clock_ms(&clock_real) < e->redial_at_ms) return;
    plan_redial(e);
    zmq_disconnect(e->socket, e->address);
    zmq_connect(e->socket, e->address);
}

static void on_hung_up(endpoint *e)
{
    if (!e->is_up) refuse_connection(e);
    e->broke |= e->is_up;
    e->is_up = false;
    plan_redial(e);
}

static void on_disconnected(endpoint *e, int fd)
{
    connection *c = connection_at(e, fd);
    if (c == NULL) return;
    const connection was = *c;
    *c                   = (connection){.ended_turn = e->turn};
    if (was.peer != NULL)
        end_peer(e, was.peer);
    else if (was.is_open)
        e->wordless++;
}

static void on_news(endpoint *e, uint16_t kind, int value)
{
    switch (kind) {
    case ZMQ_EVENT_ACCEPTED: on_opened(e, value); break;
    case ZMQ_EVENT_DISCONNECTED: e->listens ? on_disconnected(e, value) : on_hung_up(e); break;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED: e->is_up = !e->listens; break;
    default: forget_redial(e); /* connected, or about to try again */
    }
}

static bool read_monitor(endpoint *e)
{
    uint16_t kind;
    int value;
    bool any = false;
    while (recv_monitor(e, &kind, &value)) {
        on_news(e, kind, value);
        any = true;
    }
    return any;
}

/* Ties a peer that speaks for the first time to the connection it came by. */
static peer *meet_peer(endpoint *e, uint32_t number, zmq_msg_t *head)
{
    read_monitor(e);
    connection *c = connection_at(e, zmq_msg_get(head, ZMQ_SRCFD));
    peer *p       = c != NULL ? add_peer(e, number) : NULL;
    if (p == NULL) return NULL;
    if (!c->is_open && c->ended_turn == e->turn &&
        e->turn > 0) { /* its end was reported just now */
        take_one(&e->wordless);
        end_peer(e, p);
        return p;
    }
    if (c->peer != NULL) take_one(&e->wordless);
    if (c->peer != NULL && (int32_t)(number - c->peer->number) < 0) {
        end_peer(e, p);
        return p;
    }
    if (c->peer != NULL) end_peer(e, c->peer);
    c->is_early = !c->is_open;
    c->is_open  = true;
    c->peer     = p;
    return p;
}

static bool tell(transport_event *event, transport_event_kind kind, uint32_t number)
{
    event->kind = kind;
    event->peer = number;
    return true;
}

static bool refuse(transport_event *event, const char *note)
{
    snprintf(event->note, sizeof event->note, "%s", note);
    event->kind = TRANSPORT_REFUSED;
    return true;
}

/* Of a peer that said no more than the empty word the owner never heard. */
static bool tell_ended(endpoint *e, transport_event *event)
{
    while (e->first_ended != NULL) {
        const bool has_spoken = e->first_ended->has_spoken;
        const uint32_t ended  = forget_ended(e);
        if (has_spoken) return tell(event, TRANSPORT_DOWN, ended);
    }
    return false;
}

/* One piece of what is known and not told yet. */
static bool tell_news(endpoint *e, transport_event *event)
{
    if (e->told_up && e->broke) {
        e->told_up = e->broke = false;
        return tell(event, TRANSPORT_DOWN, 0);
    }
    if (!e->told_up && e->is_up) {
        e->told_up = true;
        e->broke   = false;
        return tell(event, TRANSPORT_UP, 0);
    }
    if (tell_ended(e, event)) return true;
    if (take_one(&e->refused)) return refuse(event, "a connection that does not speak ZeroMQ");
    return false;
}

/* ---- sending --------------------------------------------------------------------------------- */

static void release_body(void *data, void *body)
{
    (void)data;
    buf_release(body);
}

/* The rest of a message whose head was taken.  If the connection has ended in between, ZeroMQ drops
 * the whole message, and so do we. */
static void send_body(endpoint *e, buf *body)
{
    zmq_msg_t frame;
    if (body->size < COPY_BELOW) {
        send_bytes(e, body->data, body->size, 0);
        buf_release(body);
        return;
    }
    zmq_msg_init_data(&frame, body->data, body->size, release_body, body);
    if (!send_frame(e->socket, &frame)) zmq_msg_close(&frame);
}

static pen_status send_to_peer(endpoint *e, uint32_t number, const void *head, size_t head_size,
                               int more)
{
    uint8_t id[ID_BYTES]   = {0};
    const uint32_t ordered = htonl(number);
    if (find_peer(e, number) == NULL) return PEN_PEER_LOST;
    memcpy(id + 1, &ordered, sizeof ordered);
    if (!send_bytes(e, id, sizeof id, ZMQ_SNDMORE))
        return errno == EAGAIN ? PEN_AGAIN : PEN_PEER_LOST;
    send_bytes(e, head, head_size, more);
    return PEN_OK;
}

/* Between the news of a connection and its queue lies a command that ZeroMQ looks at now and then
 * when it sends, but always when it is asked for events. */
static pen_status send_dialled(endpoint *e, const void *head, size_t head_size, int more)
{
    int events;
    size_t size = sizeof events;
    if (!e->is_up) read_monitor(e);
    if (!e->is_up) return PEN_AGAIN;
    if (send_bytes(e, head, head_size, more)) return PEN_OK;
    zmq_getsockopt(e->socket, ZMQ_EVENTS, &events, &size);
    return send_bytes(e, head, head_size, more) ? PEN_OK : PEN_AGAIN;
}

static pen_status socket_send(void *state, uint32_t number, const void *head, size_t head_size,
                              buf *body)
{
    endpoint *e    = state;
    const int more = body != NULL ? ZMQ_SNDMORE : 0;
    if (is_foreign(e)) return PEN_WRONG_STATE;
    const pen_status status = e->listens ? send_to_peer(e, number, head, head_size, more)
                                         : send_dialled(e, head, head_size, more);
    if (status == PEN_OK && body != NULL) send_body(e, body);
    return status;
}

/* ---- receiving ------------------------------------------------------------------------------- */

typedef struct {
    buf base;
    zmq_msg_t frame;
} received;

static void release_received(buf *base)
{
    received *r = (received *)base;
    zmq_msg_close(&r->frame);
    free(r);
}

static buf *keep_body(zmq_msg_t *frame)
{
    received *r = malloc(sizeof *r);
    if (r == NULL) return NULL;
    zmq_msg_init(&r->frame);
    zmq_msg_move(&r->frame, frame);
    buf_init(&r->base, zmq_msg_data(&r->frame), zmq_msg_size(&r->frame), release_received);
    return &r->base;
}

/* Takes one whole message.  Frames beyond the second are only counted. */
static int recv_frames(void *socket, zmq_msg_t *head, zmq_msg_t *body)
{
    zmq_msg_t rest;
    for (int n = 0;; n++) {
        zmq_msg_t *frame = n == 0 ? head : n == 1 ? body : &rest;
        zmq_msg_init(frame);
        if (!recv_frame(socket, frame)) return n;
        const bool more = zmq_msg_more(frame);
        if (frame == &rest) zmq_msg_close(&rest);
        if (!more) return n + 1;
    }
}

/* What is wrong with a message; NULL: nothing. */
static const char *fault_of(const endpoint *e, const zmq_msg_t *head, const zmq_msg_t *body, int n)
{
    if (n > 2) return "a message of more than two frames";
    if (zmq_msg_size(head) == 0) return "a message with an empty head";
    if (zmq_msg_size(head) > e->head_max) return "a head that is too large";
    if (n == 2 && zmq_msg_size(body) > e->body_max) return "a body that is too large";
    return NULL;
}

/* The [id] frame of a listener; false: there is none.  A peer that chose its own id has no number. */
static bool recv_id(endpoint *e, uint32_t *number, bool *has_number)
{
    uint8_t id[256] = {0};
    const int size  = recv_bytes(e->socket, id, sizeof id);
    if (size < 0) return false;
    *has_number = size == ID_BYTES && id[0] == 0;
    memcpy(number, id + 1, sizeof *number);
    *number = ntohl(*number);
    return true;
}

/* Turns one message of a peer into an event; false: a straggler, or the empty word. */
static bool take_message(endpoint *e, zmq_msg_t *body, int n, transport_event *event)
{
    if (e->listens) {
        peer *p = find_peer(e, event->peer);
        if (p == NULL && has_ended(e, event->peer)) return false;
        if (p == NULL) p = meet_peer(e, event->peer, &e->head);
        if (p == NULL) return refuse(event, "a peer whose connection is unknown");
        if (!p->has_spoken && n == 1 && zmq_msg_size(&e->head) == 0) return false;
        p->has_spoken = true;
    }
    const char *fault = fault_of(e, &e->head, body, n);
    if (fault != NULL) return refuse(event, fault);
    if (n == 2 && (event->body = keep_body(body)) == NULL)
        return refuse(event, "a body for which there is no memory");
    event->head      = zmq_msg_data(&e->head);
    event->head_size = zmq_msg_size(&e->head);
    return tell(event, TRANSPORT_MESSAGE, event->peer);
}

static void drop_head(endpoint *e)
{
    if (e->has_head) zmq_msg_close(&e->head);
    e->has_head = false;
}

static bool recv_message(endpoint *e, transport_event *event)
{
    for (;;) {
        bool has_number = true, is_event = true;
        zmq_msg_t body;
        if (e->listens && !recv_id(e, &event->peer, &has_number)) return false;
        const int n = recv_frames(e->socket, &e->head, &body);
        if (n == 0) return false;
        e->has_head = true;
        if (has_number) {
            is_event = take_message(e, &body, n, event);
        } else {
            event->peer = 0;
            refuse(event, "a peer that names itself");
        }
        if (n > 1) zmq_msg_close(&body);
        if (is_event) return true;
        drop_head(e);
    }
}

/* So many messages that the queue is never dry: news must not wait for ever. */
static bool is_flooded(endpoint *e)
{
    if (++e->since_dry % FLOOD_LOOK != 0) return false;
    const uint64_t now = clock_ms(&clock_real);
    if (e->since_dry == FLOOD_LOOK) e->flood_ms = now;
    if (now - e->flood_ms < FLOOD_MS) return false;
    e->flood_ms = now;
    return true;
}

static void settle_wordless(endpoint *e)
{
    while (take_one(&e->wordless)) refuse_connection(e);
}

/* In a flood news waits for the next look: by then ZeroMQ, which reads from its peers in turn, has had
 * room for the last messages of those that ended before this one. */
static bool tell_overdue(endpoint *e, transport_event *event)
{
    if (is_flooded(e)) {
        settle_wordless(e);
        e->overdue = e->n_ending + e->refused;
        read_monitor(e);
    }
    return take_one(&e->overdue) && tell_news(e, event);
}

/* The news that is read first may tell of a peer whose last messages came since the queue was dry. */
static bool recv_last_message(endpoint *e, transport_event *event)
{
    return read_monitor(e) && recv_message(e, event);
}

static pen_status socket_recv(void *state, transport_event *event)
{
    endpoint *e = state;
    if (is_foreign(e)) return PEN_WRONG_STATE;
    *event = (transport_event){0};
    drop_head(e);
    /* A dialler hears of its connection before the first message that came by it. */
    if (!e->listens && !e->told_up) {
        read_monitor(e);
        if (tell_news(e, event)) return PEN_OK;
    }
    if (tell_overdue(e, event)) return PEN_OK;
    if (recv_message(e, event) || recv_last_message(e, event)) return PEN_OK;
    e->since_dry = e->overdue = 0;
    e->turn++;
    settle_wordless(e);
    redial_if_due(e);
    return tell_news(e, event) ? PEN_OK : PEN_AGAIN;
}

/* ---- closing --------------------------------------------------------------------------------- */

static void close_sockets(endpoint *e, uint32_t linger_ms)
{
    drop_head(e);
    if (e->socket != NULL) {
        zmq_socket_monitor(e->socket, NULL, 0);
        if (e->monitor != NULL) zmq_close(e->monitor);
        set_int(e->socket, ZMQ_LINGER, (int)linger_ms);
        zmq_close(e->socket);
    }
    if (e->has_context) context_release();
}

static void socket_close(void *state, uint32_t linger_ms)
{
    endpoint *e = state;
    if (e->epoll_fd >= 0) close(e->epoll_fd);
    if (e->timer_fd >= 0) close(e->timer_fd);
    if (!is_foreign(e)) close_sockets(e, linger_ms);
    free_peers(e);
    free(e->connections);
}

/* clang-format off */
#define ROW(name, text, any)                                                                        \
    {.scheme = name, .doc = text, .any_address = any, .keeps_order = true,                          \
     .state_size = sizeof(endpoint), .listen = socket_listen, .dial = socket_dial,                  \
     .address = socket_address, .send = socket_send, .recv = socket_recv,                           \
     .poll_fd = socket_poll_fd, .close = socket_close}

const transport_ops transport_tcp = ROW("tcp",
    "TCP, through ZeroMQ; reconnects by name, finds silent hosts by heartbeat.", "tcp://127.0.0.1:0");
const transport_ops transport_ipc = ROW("ipc",
    "Unix-domain sockets, through ZeroMQ; for processes of one host.", "ipc://*");
/* clang-format on */
