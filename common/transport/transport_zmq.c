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
 * Connections.  ZeroMQ hides them.  Its monitor tells of descriptors opened and closed, a message tells
 * by which descriptor it came, and both come by queues of their own; peers.h brings them together.  The
 * monitor is read when the messages are dry and before a new peer is tied to a descriptor.
 *
 * Strangers.  A dialler says an empty word on each connection (ZMQ_PROBE_ROUTER), so that the listener
 * knows whose a descriptor is before the peer has anything to say.  A connection with neither word nor
 * handshake was none of ours: a browser, a scanner.  In the first two versions of ZeroMQ's protocol any bytes are a greeting; a ZAP domain, though nobody authenticates, makes
 * ZeroMQ refuse them.  What it does not bound is one message of endlessly many frames: the ports are for a
 * network that is trusted, or for authenticated peers.
 *
 * Stalls.  Heartbeats are answered by ZeroMQ's own thread, so only a stopped process or a dead host
 * misses them.  Three default intervals make 6 s: a stall of 5 s does not break a connection.
 *
 * Breaches.  After a breach of its protocol ZeroMQ dials no more; a dialler that does not hear of the next
 * attempt within REDIAL_MS dials again itself.
 *
 * Moves.  Names are resolved anew at each attempt, and an attempt ends after connect_ms, so a peer that
 * comes back under another address is found.  (Without a limit the kernel retries a dead address for
 * two minutes.)  ZMQ_IPV6 is on for literal IPv6 addresses only: with it "localhost" may mean ::1, and
 * ZeroMQ tries no second address.
 */
#include "common/transport/peers.h"
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

enum {
    COPY_BELOW = 4 << 10, /* from there on lending is cheaper than copying */
    ID_BYTES   = 5,
    BACKLOG    = 1024, /* all workers of a job dial at once */

    SOCKETS_MAX = 16384, /* of the process */
    REFUSED_MAX = 64,    /* attempts of a dialler that were refused and not told yet */

    ROUND_MESSAGES   = 64, /* at least, and as many as there are peers */
    ROUND_MS         = 10, /* ends are told after two rounds */
    RECONNECT_MS     = 100,
    RECONNECT_MS_MAX = 2000,
    REDIAL_MS        = 500,
    HANDSHAKE_MS_MIN = 1000
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

/* ZeroMQ allocates each large message and we free it in another thread.  By default glibc gives such
 * blocks back to the kernel at once, and a fifth of the time of a transfer goes into page faults.
 * Freeing one block just below 32 MiB raises both of its dynamic thresholds, as any program that frees
 * a big array does; no mallopt() is called, which would switch that adaptation off for the whole
 * program. */
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
    while (last != NULL && zmq_ctx_term(last) != 0 && errno == EINTR) {}
}

/* ---- one endpoint ---------------------------------------------------------------------------- */

typedef struct { /* of a dialler: how things are, and what its owner knows of it */
    bool is_up, told_up, broke;
    uint32_t refused; /* attempts that met something else than ZeroMQ; not told  */
} dialled;

typedef struct {
    void *socket, *monitor;
    int epoll_fd;
    unsigned generation;
    bool listens, has_context, has_head;
    char address[256];
    uint64_t head_max, body_max;
    zmq_msg_t head; /* of the last event; closed by the next recv */

    dialled link;
    peers peers;       /* of a listener                       */
    bool is_telling;   /* ends that are ripe                  */
    uint64_t round_ms; /* when this round began               */
    size_t messages;   /* of this round                       */
    int timer_fd;      /* wakes the owner; -1 until it has to */
    bool is_ticking;   /* listening: the timer was set        */
} endpoint;

static bool is_foreign(const endpoint *e)
{
    return e->generation != atomic_load_explicit(&generation, memory_order_relaxed);
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
    set_int(e->socket, ZMQ_BACKLOG, BACKLOG);
    set_int(e->socket, ZMQ_HANDSHAKE_IVL,
            3 * heartbeat < HANDSHAKE_MS_MIN ? HANDSHAKE_MS_MIN : 3 * heartbeat);
    zmq_setsockopt(e->socket, ZMQ_ZAP_DOMAIN, "penstock", strlen("penstock"));
    set_int(e->socket, ZMQ_HEARTBEAT_IVL, heartbeat);
    set_int(e->socket, ZMQ_HEARTBEAT_TIMEOUT, 3 * heartbeat);
    set_int(e->socket, ZMQ_CONNECT_TIMEOUT, (int)o->connect_ms);
    set_int(e->socket, ZMQ_RECONNECT_IVL, RECONNECT_MS);
    set_int(e->socket, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MS_MAX);
    set_int(e->socket, ZMQ_TCP_KEEPALIVE, 0); /* heartbeats find more, and sooner */
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
    const int events = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_ACCEPTED |
                       ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                       ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                       ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
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
    peers_init(&e->peers);
    e->head_max    = o->head_bytes_max;
    e->body_max    = o->body_bytes_max;
    void *ctx      = context_acquire(o->io_threads, &number);
    e->has_context = ctx != NULL;
    e->generation  = atomic_load(&generation);
    if (ctx != NULL) e->socket = zmq_socket(ctx, type);
    if (e->socket != NULL) e->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (e->epoll_fd < 0 || !open_monitor(e, ctx, number) || !watch_socket(e, e->socket) ||
        !watch_socket(e, e->monitor))
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

/* ZeroMQ would take the socket file of a living listener away from it.  A datagram socket that tries
 * to connect learns whether there is one, who does not notice. */
static bool is_served(const char *address)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const char *path      = address + strlen("ipc://");
    if (strncmp(address, "ipc://", 6) != 0 || strlen(path) >= sizeof at.sun_path) return false;
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const bool is = connect(fd, (struct sockaddr *)&at, sizeof at) != 0 && errno == EPROTOTYPE;
    close(fd);
    return is;
}

/* ZeroMQ takes the lower 16 bits of any number, and a number with letters behind it. */
static bool has_port(const char *address, long lowest)
{
    const char *port = strrchr(address, ':') + 1;
    char *end;
    if (strncmp(address, "tcp://", 6) != 0) return true;
    const long number = strtol(port, &end, 10);
    return *port >= '0' && *port <= '9' && *end == '\0' && end - port <= 5 && number >= lowest &&
           number <= UINT16_MAX;
}

static pen_status tell_failed(const char *verb, const char *address, int error, pen_error *why)
{
    if (error == EINVAL)
        return why_set(why, PEN_INVALID_ARGUMENT, "'%.200s' is no address: say tcp://HOST:PORT",
                       address);
    if (error == EADDRINUSE && strncmp(address, "tcp://", 6) == 0)
        return why_set(why, PEN_UNREACHABLE,
                       "port %s is in use (%.200s); choose another, or 0 for a free one",
                       strrchr(address, ':') + 1, address);
    if (error == EADDRINUSE)
        return why_set(why, PEN_UNREACHABLE, "'%.200s' is in use; choose another name", address);
    if (error == ENODEV || error == EADDRNOTAVAIL)
        return why_set(why, PEN_UNREACHABLE,
                       "cannot %s %.200s: this host has no such address; say an IP address or an "
                       "interface of it, or 0.0.0.0 for all",
                       verb, address);
    return why_set(why, PEN_UNREACHABLE, "cannot %s %.200s: %s", verb, address,
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
    if (!has_port(address, 0)) return tell_failed("listen at", address, EINVAL, why);
    if (is_served(address)) return tell_failed("listen at", address, EADDRINUSE, why);
    if (zmq_bind(e->socket, address) != 0) return tell_failed("listen at", address, errno, why);
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
    if (!has_port(address, 1) || strlen(address) >= sizeof e->address)
        return tell_failed("dial", address, EINVAL, why);
    snprintf(e->address, sizeof e->address, "%s", address);
    if (zmq_connect(e->socket, address) != 0) return tell_failed("dial", address, errno, why);
    return PEN_OK;
}

static const char *socket_address(void *state)
{
    return ((endpoint *)state)->address;
}

static int socket_poll_fd(void *state)
{
    return ((endpoint *)state)->epoll_fd;
}

/* ---- frames: a signal may interrupt even a call that does not wait, between two of one message ---- */

static bool send_frame(void *socket, zmq_msg_t *frame)
{
    int n;
    do n = zmq_msg_send(frame, socket, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n >= 0;
}

static bool send_bytes(void *socket, const void *bytes, size_t size, int flags)
{
    int n;
    do n = zmq_send(socket, bytes, size, flags | ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n >= 0;
}

static bool recv_frame(void *socket, zmq_msg_t *frame)
{
    int n;
    zmq_msg_init(frame);
    do n = zmq_msg_recv(frame, socket, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n >= 0;
}

static int recv_bytes(void *socket, void *bytes, size_t size)
{
    int n;
    do n = zmq_recv(socket, bytes, size, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n;
}

/* ---- connections ----------------------------------------------------------------------------- */

static bool recv_monitor(endpoint *e, uint16_t *kind, int *value)
{
    uint8_t bytes[6], address[256];
    if (recv_bytes(e->monitor, bytes, sizeof bytes) != sizeof bytes) return false;
    recv_bytes(e->monitor, address, sizeof address); /* both frames were sent as one message */
    memcpy(kind, bytes, sizeof *kind);
    memcpy(value, bytes + sizeof *kind, sizeof *value);
    return true;
}

/* Wakes the owner after so long; zero: not any more. */
static void set_timer(endpoint *e, long ms)
{
    const struct itimerspec once = {.it_value.tv_nsec = ms * 1000000};
    if (e->timer_fd < 0 && ms > 0) {
        e->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        if (e->timer_fd >= 0) watch_fd(e, e->timer_fd);
    }
    if (e->timer_fd >= 0) timerfd_settime(e->timer_fd, 0, &once, NULL);
}

static bool has_timer_fired(endpoint *e)
{
    uint64_t times;
    return e->timer_fd >= 0 && read(e->timer_fd, &times, sizeof times) > 0;
}

/* The queue of a new connection, and the empty word in it, come with a command that ZeroMQ sent before
 * this news, but looks at only now and then, unless it is asked for events. */
static void attach_queue(endpoint *e)
{
    int events;
    size_t size = sizeof events;
    zmq_getsockopt(e->socket, ZMQ_EVENTS, &events, &size);
}

static void on_dialled_news(endpoint *e, uint16_t kind)
{
    dialled *l = &e->link;
    switch (kind) {
    case ZMQ_EVENT_CONNECTED:
    case ZMQ_EVENT_CONNECT_RETRIED: set_timer(e, 0); break;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        attach_queue(e);
        l->is_up = true;
        break;
    case ZMQ_EVENT_DISCONNECTED:
        if (!l->is_up && l->refused < REFUSED_MAX) l->refused++;
        l->broke |= l->is_up;
        l->is_up = false;
        set_timer(e, REDIAL_MS);
    }
}

static void on_news(endpoint *e, uint16_t kind, int fd)
{
    if (!e->listens)
        on_dialled_news(e, kind);
    else if (kind == ZMQ_EVENT_ACCEPTED)
        peers_accepted(&e->peers, fd);
    else if (kind == ZMQ_EVENT_DISCONNECTED)
        peers_ended(&e->peers, fd);
    else if (kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
        peers_greeted(&e->peers);
    else
        peers_failed(&e->peers);
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

/* What the owner of a dialler does not know yet, one piece at a time. */
static bool tell_dialled(dialled *l, transport_event *event)
{
    if (l->told_up && l->broke) {
        l->told_up = l->broke = false;
        return tell(event, TRANSPORT_DOWN, 0);
    }
    if (!l->told_up && l->is_up) {
        l->told_up = true;
        l->broke   = false;
        return tell(event, TRANSPORT_UP, 0);
    }
    if (l->refused == 0) return false;
    l->refused--;
    return refuse(event, "what answers does not speak ZeroMQ");
}

static bool tell_end(endpoint *e, transport_event *event)
{
    uint32_t number = 0;
    switch (peers_take_end(&e->peers, &number)) {
    case PEERS_DOWN: return tell(event, TRANSPORT_DOWN, number);
    case PEERS_STRANGER: return refuse(event, "a connection that ended without a message");
    case PEERS_NONE: break;
    }
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
        send_bytes(e->socket, body->data, body->size, 0);
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
    if (!peers_knows(&e->peers, number)) return PEN_PEER_LOST;
    memcpy(id + 1, &ordered, sizeof ordered);
    if (!send_bytes(e->socket, id, sizeof id, ZMQ_SNDMORE))
        return errno == EAGAIN ? PEN_AGAIN : PEN_PEER_LOST;
    send_bytes(e->socket, head, head_size, more);
    return PEN_OK;
}

static pen_status send_dialled(endpoint *e, const void *head, size_t head_size, int more)
{
    if (!e->link.is_up) read_monitor(e);
    if (!e->link.is_up) return PEN_AGAIN;
    return send_bytes(e->socket, head, head_size, more) ? PEN_OK : PEN_AGAIN;
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
        if (!recv_frame(socket, frame)) return n;
        const bool more = zmq_msg_more(frame);
        if (frame == &rest) zmq_msg_close(&rest);
        if (!more) return n + 1;
    }
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

/* What is wrong with a message; NULL: nothing. */
static const char *fault_of(const endpoint *e, const zmq_msg_t *head, const zmq_msg_t *body, int n)
{
    if (n > 2) return "a message of more than two frames";
    if (zmq_msg_size(head) == 0) return "a message with an empty head";
    if (zmq_msg_size(head) > e->head_max) return "a head that is too large";
    if (n == 2 && zmq_msg_size(body) > e->body_max) return "a body that is too large";
    return NULL;
}

typedef enum { DROP, TAKE, REFUSE } verdict;

/* Whether a message of this peer is one to look at. */
static verdict judge_peer(endpoint *e, uint32_t number, bool is_probe)
{
    const peers_standing standing = peers_hear(&e->peers, number);
    if (standing == PEERS_GONE) return DROP;
    if (standing == PEERS_NEW) {
        read_monitor(e);
        if (!peers_meet(&e->peers, number, zmq_msg_get(&e->head, ZMQ_SRCFD))) return REFUSE;
        if (is_probe) return DROP;
    }
    peers_respect(&e->peers, number);
    return TAKE;
}

/* Turns one message into an event; false: it is for nobody above. */
static bool take_message(endpoint *e, zmq_msg_t *body, int n, transport_event *event)
{
    const bool is_probe = n == 1 && zmq_msg_size(&e->head) == 0;
    const verdict v     = e->listens ? judge_peer(e, event->peer, is_probe) : TAKE;
    if (v == DROP) return false;
    if (v == REFUSE) return refuse(event, "a peer whose connection is unknown");
    const char *fault = fault_of(e, &e->head, body, n);
    if (fault != NULL) return refuse(event, fault);
    if (n == 2 && (event->body = keep_body(body)) == NULL)
        return refuse(event, "a body for which there is no memory");
    event->head      = zmq_msg_data(&e->head);
    event->head_size = zmq_msg_size(&e->head);
    return tell(event, TRANSPORT_MESSAGE, event->peer);
}

static bool refuse_self_named(endpoint *e, transport_event *event)
{
    read_monitor(e);
    peers_scold(&e->peers, zmq_msg_get(&e->head, ZMQ_SRCFD));
    event->peer = 0;
    return refuse(event, "a peer that names itself");
}

static void drop_head(endpoint *e)
{
    if (e->has_head) zmq_msg_close(&e->head);
    e->has_head = false;
}

static bool recv_message(endpoint *e, transport_event *event)
{
    for (;;) {
        bool has_number = true;
        zmq_msg_t body;
        if (e->listens && !recv_id(e, &event->peer, &has_number)) return false;
        const int n = recv_frames(e->socket, &e->head, &body);
        if (n == 0) return false;
        e->has_head = true;
        const bool is_event =
            has_number ? take_message(e, &body, n, event) : refuse_self_named(e, event);
        if (n > 1) zmq_msg_close(&body);
        if (is_event) return true;
        drop_head(e);
        event->peer = 0;
    }
}

/* What is read after the last look at the messages may tell of a peer whose last ones came since. */
static bool recv_last_message(endpoint *e, transport_event *event)
{
    return read_monitor(e) && recv_message(e, event);
}

/* ZeroMQ reads from its peers in turn, so after enough messages one that was not heard has none left. */
static bool is_everybody_heard(const endpoint *e)
{
    return e->messages >= ROUND_MESSAGES && e->messages >= peers_count(&e->peers);
}

static void end_round(endpoint *e)
{
    const uint64_t now = clock_ms(&clock_real);
    if (now - e->round_ms < ROUND_MS) return;
    e->round_ms   = now;
    e->messages   = 0;
    e->is_telling = true;
    peers_round(&e->peers);
}

/* So many messages that the queue is never dry: news must not wait for that. */
static void count_message(endpoint *e)
{
    if (++e->messages % ROUND_MESSAGES != 0 || !is_everybody_heard(e)) return;
    end_round(e);
    if (e->is_telling) read_monitor(e);
}

static void on_dry(endpoint *e)
{
    if (!peers_has_ended(&e->peers)) {
        if (e->is_ticking) set_timer(e, 0); /* a tick that nobody reads wakes the owner for ever */
        e->is_ticking = false;
        return;
    }
    end_round(e);
    set_timer(e, ROUND_MS);
    e->is_ticking = true;
}

static pen_status recv_listening(endpoint *e, transport_event *event)
{
    if (e->is_telling && tell_end(e, event)) return PEN_OK;
    e->is_telling = false;
    if (recv_message(e, event) || recv_last_message(e, event)) {
        count_message(e);
        return PEN_OK;
    }
    on_dry(e);
    return e->is_telling && tell_end(e, event) ? PEN_OK : PEN_AGAIN;
}

static void redial_if_due(endpoint *e)
{
    if (!has_timer_fired(e)) return;
    zmq_disconnect(e->socket, e->address);
    zmq_connect(e->socket, e->address);
}

static pen_status recv_dialled(endpoint *e, transport_event *event)
{
    if (!e->link
             .told_up) { /* it hears of its connection before the first message that came by it */
        read_monitor(e);
        if (tell_dialled(&e->link, event)) return PEN_OK;
    }
    if (recv_message(e, event) || recv_last_message(e, event)) return PEN_OK;
    redial_if_due(e);
    return tell_dialled(&e->link, event) ? PEN_OK : PEN_AGAIN;
}

static pen_status socket_recv(void *state, transport_event *event)
{
    endpoint *e = state;
    if (is_foreign(e)) return PEN_WRONG_STATE;
    *event = (transport_event){0};
    drop_head(e);
    return e->listens ? recv_listening(e, event) : recv_dialled(e, event);
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
    peers_fini(&e->peers);
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
