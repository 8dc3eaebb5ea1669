/* transport_zmq.c - TCP and Unix sockets through ZeroMQ; the only file that includes zmq.h.
 *
 * DESIGN.  A listener is a ROUTER, a dialler a DEALER.  ZeroMQ names a ROUTER's peers by five bytes, a zero and
 * a number; the number is our peer.  A message is [head] or [head][body].
 *   bounds      ZMQ_MAXMSGSIZE ends a connection that announces more than the larger of the two limits before any
 *               memory is taken.  The queues themselves have no limit: the layers above bound what is in flight.
 *   connections ZeroMQ hides them; its monitor tells of descriptors, and a message of the descriptor it came by.  A new
 *               peer on a known descriptor means the older peer is gone, and the monitor's news of that, which comes by
 *               another queue and maybe later, must not be taken for the new one's end: `stale` counts it off.
 *   stalls      heartbeats are answered by ZeroMQ's own thread, so only a stopped process or a dead host misses them; the
 *               time-out is longer than a five-second stall.
 *   moves       names are resolved anew at each attempt, and an attempt ends after connect_ms, so a peer that
 *               comes back under another address is found (without it, a dead address holds the socket for minutes).
 */
#include "common/transport/transport.h"
#include "common/why.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <zmq.h>

enum {
    HEAD_BYTES_MAX = 1 << 20,
    BODY_BYTES_MAX = 64 << 20,
    COPY_BELOW = 32 << 10, /* a copy is cheaper than a reference and a callback in another thread */
    PEER_NONE  = 0,
    ID_BYTES   = 5,
    HEARTBEAT_MS = 2000,
    CONNECT_MS   = 1000
};

/* ---- the one context of the process ---------------------------------------------------------------- */

static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
static void *context;
static unsigned context_users;
static pid_t context_pid;

static void *context_acquire(uint32_t io_threads)
{
    pthread_mutex_lock(&context_lock);
    if (context_users > 0 &&
        context_pid != getpid()) { /* a forked child inherits nothing it may use */
        context       = NULL;
        context_users = 0;
    }
    if (context == NULL) {
        context     = zmq_ctx_new();
        context_pid = getpid();
        if (context != NULL) {
            zmq_ctx_set(context, ZMQ_IO_THREADS, io_threads == 0 ? 1 : (int)io_threads);
            zmq_ctx_set(context, ZMQ_MAX_SOCKETS, 16384);
            zmq_ctx_set(context, ZMQ_BLOCKY, 0);
        }
    }
    if (context != NULL) context_users++;
    void *result = context;
    pthread_mutex_unlock(&context_lock);
    return result;
}

static void context_release(void)
{
    pthread_mutex_lock(&context_lock);
    void *last = --context_users == 0 ? context : NULL;
    if (last != NULL) context = NULL;
    pthread_mutex_unlock(&context_lock);
    if (last != NULL) zmq_ctx_term(last); /* waits for what lingers */
}

/* ---- one endpoint ------------------------------------------------------------------------------------ */

typedef struct {
    uint32_t peer; /* PEER_NONE: it has not spoken */
    uint32_t
        stale; /* ends of older connections on this descriptor that are still to be reported by the monitor */
    bool accepted, greeted;
} connection;

typedef struct {
    uint32_t peer;
    int fd;
} peer_row;

typedef struct {
    void *socket, *monitor;
    bool listens, has_context;
    pid_t pid;
    int epoll_fd;
    char address[256];
    uint64_t head_max, body_max;
    zmq_msg_t head; /* of the last event; closed by the next recv */
    bool has_head, is_up; /* is_up: diallers only */
    connection *connection; /* [n_connections] by descriptor */
    size_t n_connections;
    peer_row *peer; /* open addressing; PEER_NONE = empty */
    size_t n_peers, peers_capacity;
    uint32_t down[16]; /* found while handling something else */
    size_t n_down;
} endpoint;

static size_t peer_slot(const endpoint *e, uint32_t peer)
{
    size_t i = (peer * 2654435761u) & (e->peers_capacity - 1);
    while (e->peer[i].peer != PEER_NONE && e->peer[i].peer != peer)
        i = (i + 1) & (e->peers_capacity - 1);
    return i;
}

static bool knows_peer(const endpoint *e, uint32_t peer)
{
    return e->peers_capacity > 0 && e->peer[peer_slot(e, peer)].peer == peer;
}

static bool grow_peers(endpoint *e)
{
    endpoint grown       = *e;
    grown.peers_capacity = e->peers_capacity == 0 ? 64 : 2 * e->peers_capacity;
    grown.peer           = calloc(grown.peers_capacity, sizeof *grown.peer);
    if (grown.peer == NULL) return false;
    for (size_t i = 0; i < e->peers_capacity; i++)
        if (e->peer[i].peer != PEER_NONE)
            grown.peer[peer_slot(&grown, e->peer[i].peer)] = e->peer[i];
    free(e->peer);
    e->peer           = grown.peer;
    e->peers_capacity = grown.peers_capacity;
    return true;
}

/* Removes a row and closes the gap it leaves in its run. */
static void forget_peer(endpoint *e, uint32_t peer)
{
    if (!knows_peer(e, peer)) return;
    size_t i        = peer_slot(e, peer);
    e->peer[i].peer = PEER_NONE;
    e->n_peers--;
    for (size_t j = (i + 1) & (e->peers_capacity - 1); e->peer[j].peer != PEER_NONE;
         j        = (j + 1) & (e->peers_capacity - 1)) {
        peer_row row                    = e->peer[j];
        e->peer[j].peer                 = PEER_NONE;
        e->peer[peer_slot(e, row.peer)] = row;
    }
}

static connection *connection_at(endpoint *e, int fd)
{
    if (fd < 0 || fd > 1 << 20) return NULL;
    if ((size_t)fd >= e->n_connections) {
        size_t n          = (size_t)fd + 64;
        connection *grown = realloc(e->connection, n * sizeof *grown);
        if (grown == NULL) return NULL;
        memset(grown + e->n_connections, 0, (n - e->n_connections) * sizeof *grown);
        e->connection    = grown;
        e->n_connections = n;
    }
    return &e->connection[fd];
}

/* The first message of a peer: which descriptor it came by. */
static void meet_peer(endpoint *e, uint32_t peer, zmq_msg_t *message)
{
    int fd        = zmq_msg_get(message, ZMQ_SRCFD);
    connection *c = connection_at(e, fd);
    if (c == NULL || (2 * e->n_peers >= e->peers_capacity && !grow_peers(e))) return;
    if (c->peer !=
        PEER_NONE) { /* its descriptor was given anew: it is gone, and the monitor will say so later */
        if (e->n_down < sizeof e->down / sizeof *e->down) e->down[e->n_down++] = c->peer;
        forget_peer(e, c->peer);
        c->stale++;
    }
    c->peer                     = peer;
    e->peer[peer_slot(e, peer)] = (peer_row){.peer = peer, .fd = fd};
    e->n_peers++;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static void set_int(void *socket, int option, int value)
{
    zmq_setsockopt(socket, option, &value, sizeof value);
}

static void set_options(endpoint *e, const transport_options *o)
{
    int heartbeat   = o->heartbeat_ms == 0 ? HEARTBEAT_MS : (int)o->heartbeat_ms;
    int64_t largest = (int64_t)(e->head_max > e->body_max ? e->head_max : e->body_max);
    set_int(e->socket, ZMQ_LINGER, 0);
    set_int(e->socket, ZMQ_SNDHWM, 0);
    set_int(e->socket, ZMQ_RCVHWM, 0);
    set_int(e->socket, ZMQ_HEARTBEAT_IVL, heartbeat);
    set_int(e->socket, ZMQ_HEARTBEAT_TIMEOUT, 3 * heartbeat);
    set_int(e->socket, ZMQ_CONNECT_TIMEOUT, o->connect_ms == 0 ? CONNECT_MS : (int)o->connect_ms);
    set_int(e->socket, ZMQ_RECONNECT_IVL, 100);
    set_int(e->socket, ZMQ_RECONNECT_IVL_MAX, 2000);
    set_int(e->socket, ZMQ_TCP_KEEPALIVE, 0);
    zmq_setsockopt(e->socket, ZMQ_MAXMSGSIZE, &largest, sizeof largest);
    if (e->listens) set_int(e->socket, ZMQ_ROUTER_MANDATORY, 1);
}

static bool watch_fd(endpoint *e, void *socket)
{
    int fd;
    size_t size              = sizeof fd;
    struct epoll_event event = {.events = EPOLLIN};
    return zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0 &&
           epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* The monitor reports connections over a pair of sockets inside the process. */
static bool open_monitor(endpoint *e, void *ctx)
{
    char name[64];
    snprintf(name, sizeof name, "inproc://penstock-monitor-%p", e->socket);
    int events = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                 ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                 ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    if (zmq_socket_monitor(e->socket, name, events) != 0) return false;
    e->monitor = zmq_socket(ctx, ZMQ_PAIR);
    if (e->monitor == NULL) return false;
    set_int(e->monitor, ZMQ_LINGER, 0);
    set_int(e->monitor, ZMQ_RCVHWM, 0);
    return zmq_connect(e->monitor, name) == 0;
}

static pen_status open_socket(endpoint *e, int type, const transport_options *o, pen_error *why)
{
    e->epoll_fd    = -1;
    e->pid         = getpid();
    e->head_max    = o->head_bytes_max == 0 ? HEAD_BYTES_MAX : o->head_bytes_max;
    e->body_max    = o->body_bytes_max == 0 ? BODY_BYTES_MAX : o->body_bytes_max;
    void *ctx      = context_acquire(o->io_threads);
    e->has_context = ctx != NULL;
    e->epoll_fd    = epoll_create1(EPOLL_CLOEXEC);
    if (ctx != NULL) e->socket = zmq_socket(ctx, type);
    if (e->socket == NULL || e->epoll_fd < 0 || !open_monitor(e, ctx) || !watch_fd(e, e->socket) ||
        !watch_fd(e, e->monitor))
        return why_set(why, PEN_NO_MEMORY,
                       "cannot make a socket: %s; raise the limit of open files (ulimit -n)",
                       zmq_strerror(errno));
    set_options(e, o);
    return PEN_OK;
}

static pen_status listen_(void *state, const char *address, const transport_options *o,
                          pen_error *why)
{
    endpoint *e       = state;
    e->listens        = true;
    pen_status status = open_socket(e, ZMQ_ROUTER, o, why);
    if (status != PEN_OK) return status;
    if (zmq_bind(e->socket, address) != 0) {
        if (errno == EADDRINUSE)
            return why_set(why, PEN_UNREACHABLE,
                           "port %s is in use (%s); choose another, or 0 for a free one",
                           strrchr(address, ':') + 1, address);
        return why_set(why, PEN_UNREACHABLE, "cannot listen at %s: %s", address,
                       zmq_strerror(errno));
    }
    size_t size = sizeof e->address;
    zmq_getsockopt(e->socket, ZMQ_LAST_ENDPOINT, e->address, &size);
    return PEN_OK;
}

static pen_status dial(void *state, const char *address, const transport_options *o, pen_error *why)
{
    endpoint *e       = state;
    pen_status status = open_socket(e, ZMQ_DEALER, o, why);
    if (status != PEN_OK) return status;
    snprintf(e->address, sizeof e->address, "%s", address);
    if (zmq_connect(e->socket, address) == 0) return PEN_OK;
    return why_set(why, PEN_UNREACHABLE, "cannot dial %s: %s", address, zmq_strerror(errno));
}

static const char *address_(void *state)
{
    return ((endpoint *)state)->address;
}

static int poll_fd(void *state)
{
    return ((endpoint *)state)->epoll_fd;
}

/* ---- sending --------------------------------------------------------------------------------------------- */

static void release_body(void *data, void *hint)
{
    (void)data;
    buf_release(hint);
}

static pen_status send_failed(int error)
{
    return error == EAGAIN ? PEN_AGAIN : PEN_PEER_LOST;
}

/* After the first frame of a message was taken the rest is, too: ZeroMQ sends messages whole. */
static void send_body(endpoint *e, buf *body)
{
    zmq_msg_t message;
    if (body->size < COPY_BELOW) {
        zmq_msg_init_size(&message, body->size);
        memcpy(zmq_msg_data(&message), body->data, body->size);
        buf_release(body);
    } else {
        zmq_msg_init_data(&message, body->data, body->size, release_body, body);
    }
    if (zmq_msg_send(&message, e->socket, ZMQ_DONTWAIT) < 0) zmq_msg_close(&message);
}

static pen_status send_(void *state, uint32_t peer, const void *head, size_t head_size, buf *body)
{
    endpoint *e = state;
    if (e->pid != getpid()) return PEN_WRONG_STATE;
    if (e->listens) {
        uint8_t id[ID_BYTES] = {0};
        memcpy(id + 1, &peer, sizeof peer);
        if (zmq_send(e->socket, id, sizeof id, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
            return send_failed(errno);
    }
    int more = body != NULL ? ZMQ_SNDMORE : 0;
    if (zmq_send(e->socket, head, head_size, ZMQ_DONTWAIT | more) < 0) return send_failed(errno);
    if (body != NULL) send_body(e, body);
    return PEN_OK;
}

/* ---- receiving --------------------------------------------------------------------------------------------- */

typedef struct {
    buf base;
    zmq_msg_t message;
} received;

static void release_received(buf *base)
{
    received *r = (received *)base;
    zmq_msg_close(&r->message);
    free(r);
}

static buf *keep_body(zmq_msg_t *message)
{
    received *r = malloc(sizeof *r);
    if (r == NULL) return NULL;
    zmq_msg_init(&r->message);
    zmq_msg_move(&r->message, message);
    buf_init(&r->base, zmq_msg_data(&r->message), zmq_msg_size(&r->message), release_received);
    return &r->base;
}

static void drop_rest(endpoint *e, zmq_msg_t *last)
{
    while (zmq_msg_more(last)) {
        zmq_msg_close(last);
        zmq_msg_init(last);
        if (zmq_msg_recv(last, e->socket, ZMQ_DONTWAIT) < 0) break;
    }
    zmq_msg_close(last);
}

static pen_status refuse(endpoint *e, zmq_msg_t *last, transport_event *event, const char *note)
{
    drop_rest(e, last);
    event->kind = TRANSPORT_REFUSED;
    snprintf(event->note, sizeof event->note, "%s", note);
    return PEN_OK;
}

/* The [id] frame of a listener.  0: *event is filled; 1: go on; -1: nothing there. */
static int recv_id(endpoint *e, transport_event *event)
{
    zmq_msg_t id;
    zmq_msg_init(&id);
    if (zmq_msg_recv(&id, e->socket, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&id);
        return -1;
    }
    const uint8_t *bytes = zmq_msg_data(&id);
    if (zmq_msg_size(&id) != ID_BYTES || bytes[0] != 0) {
        refuse(e, &id, event, "a peer that names itself");
        return 0;
    }
    memcpy(&event->peer, bytes + 1, sizeof event->peer);
    zmq_msg_close(&id);
    return 1;
}

static pen_status recv_message(endpoint *e, transport_event *event)
{
    zmq_msg_t body;
    zmq_msg_init(&e->head);
    if (zmq_msg_recv(&e->head, e->socket, ZMQ_DONTWAIT) < 0) return PEN_AGAIN;
    if (e->listens && !knows_peer(e, event->peer)) meet_peer(e, event->peer, &e->head);
    event->kind      = TRANSPORT_MESSAGE;
    event->head      = zmq_msg_data(&e->head);
    event->head_size = zmq_msg_size(&e->head);
    if (event->head_size == 0 || event->head_size > e->head_max)
        return refuse(e, &e->head, event,
                      event->head_size == 0 ? "an empty message" : "a head that is too large");
    e->has_head = true;
    if (!zmq_msg_more(&e->head)) return PEN_OK;

    zmq_msg_init(&body);
    if (zmq_msg_recv(&body, e->socket, ZMQ_DONTWAIT) < 0)
        return refuse(e, &body, event, "half a message");
    if (zmq_msg_more(&body)) return refuse(e, &body, event, "a message of more than two frames");
    if (zmq_msg_size(&body) > e->body_max)
        return refuse(e, &body, event, "a body that is too large");
    event->body = keep_body(&body);
    if (event->body == NULL) return refuse(e, &body, event, "no memory for a body");
    return PEN_OK;
}

/* ---- connections --------------------------------------------------------------------------------------------- */

static bool recv_monitor(endpoint *e, uint16_t *kind, int *fd)
{
    zmq_msg_t message;
    bool found = false;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, e->monitor, ZMQ_DONTWAIT) >= 0 && zmq_msg_size(&message) >= 6) {
        uint32_t value;
        memcpy(kind, zmq_msg_data(&message), sizeof *kind);
        memcpy(&value, (char *)zmq_msg_data(&message) + 2, sizeof value);
        *fd   = (int)value;
        found = true;
    }
    while (zmq_msg_more(&message)) { /* the address; the monitor sends both frames at once */
        zmq_msg_close(&message);
        zmq_msg_init(&message);
        if (zmq_msg_recv(&message, e->monitor, 0) < 0) break;
    }
    zmq_msg_close(&message);
    return found;
}

static bool on_disconnected(endpoint *e, int fd, transport_event *event)
{
    connection *c = connection_at(e, fd);
    if (!e->listens) {
        bool was_up = e->is_up;
        e->is_up    = false;
        event->kind = TRANSPORT_DOWN;
        return was_up;
    }
    if (c == NULL) return false;
    if (c->stale > 0) {
        c->stale--;
        return false;
    }
    connection was = *c;
    *c             = (connection){0};
    if (was.peer != PEER_NONE) {
        forget_peer(e, was.peer);
        event->kind = TRANSPORT_DOWN;
        event->peer = was.peer;
        return true;
    }
    if (!was.accepted || was.greeted) return false;
    event->kind = TRANSPORT_REFUSED;
    snprintf(event->note, sizeof event->note, "a connection that does not speak ZeroMQ");
    return true;
}

static bool on_handshake_failed(endpoint *e, int fd, transport_event *event)
{
    connection *c = connection_at(e, fd);
    if (c != NULL) c->accepted = false; /* told once */
    event->kind = TRANSPORT_REFUSED;
    snprintf(event->note, sizeof event->note, "a handshake that failed");
    return true;
}

/* Turns the monitor's news into an event of ours; false: nothing anybody above should know. */
static bool translate(endpoint *e, uint16_t kind, int fd, transport_event *event)
{
    connection *c = connection_at(e, fd);
    switch (kind) {
    case ZMQ_EVENT_ACCEPTED:
        if (c != NULL) c->accepted = true;
        return false;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        if (c != NULL) c->greeted = true;
        e->is_up    = !e->listens; /* the monitor tells no descriptor here; a dialler has only one */
        event->kind = TRANSPORT_UP;
        return !e->listens; /* a listener learns the peer's number with its first message */
    case ZMQ_EVENT_DISCONNECTED: return on_disconnected(e, fd, event);
    default: return on_handshake_failed(e, fd, event);
    }
}

static pen_status recv_(void *state, transport_event *event)
{
    endpoint *e   = state;
    uint16_t kind = 0;
    int fd = -1, id = 1;
    if (e->pid != getpid()) return PEN_WRONG_STATE;
    *event = (transport_event){0};
    if (e->has_head) zmq_msg_close(&e->head);
    e->has_head = false;
    if (e->n_down > 0) {
        event->kind = TRANSPORT_DOWN;
        event->peer = e->down[--e->n_down];
        return PEN_OK;
    }
    if (e->listens) id = recv_id(e, event);
    if (id == 0) return PEN_OK;
    if (id == 1 && recv_message(e, event) == PEN_OK) return PEN_OK;
    while (recv_monitor(e, &kind, &fd))
        if (translate(e, kind, fd, event)) return PEN_OK;
    return PEN_AGAIN;
}

static void close_(void *state, uint32_t linger_ms)
{
    endpoint *e = state;
    bool ours   = e->pid == getpid();
    if (e->has_head && ours) zmq_msg_close(&e->head);
    if (e->epoll_fd >= 0 && e->pid != 0) close(e->epoll_fd);
    if (e->socket != NULL && ours) {
        zmq_socket_monitor(e->socket, NULL, 0);
        if (e->monitor != NULL) zmq_close(e->monitor);
        set_int(e->socket, ZMQ_LINGER, (int)linger_ms);
        zmq_close(e->socket);
    }
    if (e->has_context && ours) context_release();
    free(e->connection);
    free(e->peer);
}

/* clang-format off */
const transport_ops transport_tcp = {
    .scheme = "tcp", .doc = "TCP, through ZeroMQ; reconnects by name, finds silent hosts by heartbeat.",
    .state_size = sizeof(endpoint), .listen = listen_, .dial = dial, .address = address_, .send = send_, .recv = recv_,
    .poll_fd = poll_fd, .close = close_,
};
const transport_ops transport_ipc = {
    .scheme = "ipc", .doc = "Unix-domain sockets, through ZeroMQ; for processes of one host.",
    .state_size = sizeof(endpoint), .listen = listen_, .dial = dial, .address = address_, .send = send_, .recv = recv_,
    .poll_fd = poll_fd, .close = close_,
};
/* clang-format on */
