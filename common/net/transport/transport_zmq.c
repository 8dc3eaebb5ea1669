/* transport_zmq.c - TCP and Unix sockets through ZeroMQ: sending, receiving, ends of connections.
 *
 * One door: zmq.h is included in transport_zmq.h, the inside of transport_zmq*.c, and nowhere else.
 *
 * DESIGN
 * Shape.  A listener is a ROUTER, a dialler a DEALER.  ZeroMQ names a ROUTER's peers by five bytes, a
 * zero and a number that counts up; the number is our peer.  A message is [head] or [head][body].
 *
 * Bounds.  ZMQ_MAXMSGSIZE ends a connection that announces a frame of more than twice the larger limit, before any
 * memory is taken; between one and two limits the message is refused with a sentence and its connection lives.  The
 * queues have no limit (HWM 0): the layers above bound what is in flight, and a full receive queue would stop
 * ZeroMQ from reading heartbeats, so a slow process would look dead.  transport_zmq_watch.c bounds what ZeroMQ
 * cannot: endless messages, queues, half-open connections, peers that send nonsense.
 *
 * Queues of a lost connection.  A dialler's queue belongs to its connection: when that has ended and all received
 * messages were read, the socket is replaced and the queue released.  Otherwise the bodies of a dead server's
 * messages would stay lent until it returns, perhaps never, and it would get old messages first.  (ZMQ_IMMEDIATE is
 * similar, but drops received, unread messages: the last words of an ending process.)
 *
 * Connections.  ZeroMQ hides them.  Its monitor reports descriptors opened and closed, a message carries its
 * descriptor, and both have separate queues; peers.h merges them.  The monitor is read when the messages are dry
 * and before a new peer is tied to a descriptor.
 *
 * Sockets.  A listener at TCP may have a Unix-domain socket beside it (local_socket.h): the same ROUTER, bound twice, as
 * ZeroMQ takes the keys that are set when it binds.  A dialler looks for that socket before each attempt.
 *
 * Strangers.  With keys they fail at the first step of the handshake (transport_zmq_curve.c); others cannot enter the
 * folder of the socket.  Without keys and folder, encryption=clear, all may come.  A dialler sends an empty message on
 * each connection (ZMQ_PROBE_ROUTER), so that the listener can tie the descriptor to a peer early.  A connection with
 * neither message nor handshake was a stranger: a browser, a scanner.  In the first two versions of ZeroMQ's protocol
 * any bytes are a greeting; a ZAP domain makes ZeroMQ refuse them, even without authentication.
 *
 * Names.  A ROUTER lets a peer choose its id, also one of the form that ZeroMQ gives, and also that of a peer that has
 * left.  So each message must come on the connection that its peer was met on: mark_of().
 *
 * Stalls.  Heartbeats are answered by ZeroMQ's own thread, so only a stopped process or a dead host
 * misses them.  Three default intervals make 6 s: a stall of 5 s does not break a connection.
 *
 * Breaches.  After a protocol violation ZeroMQ stops dialling; a dialler that sees no new attempt within REDIAL_MS
 * redials itself.
 *
 * Closing.  A ZeroMQ socket that lingers (ZMQ_LINGER) reads no more.  If its peer sends all the same and then breaks,
 * ZeroMQ keeps the broken connection for what is still queued, and the next heartbeat aborts the process:
 * "!_io_error" in out_event(), in 4.3.4.  So an endpoint that closes stays open until its queue is written, reads, heeds
 * its limits, and tells nobody.  The last frame of each message is counted until ZeroMQ lets go of it.  A clear
 * connection has given it to the kernel by then, but for what did not fit, and is not writable until that fits.  CURVE
 * lets go of a frame once it is encrypted, up to a whole body before that is written: TAIL_MS.
 *
 * Moves.  An attempt ends after connect_ms, and the name is resolved again, so a peer that returns under another
 * address is found.  (Without a limit the kernel retries a dead address for two minutes.)  transport_zmq_name.c
 * resolves names, not ZeroMQ.
 */
#include "common/net/transport/transport_zmq.h"

#include "common/base/clock.h"
#include "common/net/transport/linger.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    ROUND_MESSAGES = 64, /* at least, and at least one per peer */
    ROUND_MS       = 10, /* ends are reported after two rounds */
    REDIAL_MS      = 500,
    RENEW_MS       = 100,
    TAIL_MS        = 50
};

static bool is_foreign(const endpoint *e)
{
    return e->generation != zmqctx_generation();
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

static bool recv_monitor(endpoint *e, uint16_t *kind, int *value)
{
    uint8_t bytes[6], address[256];
    if (zmqio_recv(e->monitor, bytes, sizeof bytes) != sizeof bytes) return false;
    zmqio_recv(e->monitor, address, sizeof address); /* both frames were sent as one message */
    memcpy(kind, bytes, sizeof *kind);
    memcpy(value, bytes + sizeof *kind, sizeof *value);
    return true;
}

/* A dialler's present target. */
static bool is_encrypted(const endpoint *e)
{
    return e->has_keys && !e->link.is_local;
}

/* The fault of a dialler's attempt; NULL: indistinguishable from noise. */
static const char *fault_of_handshake(const endpoint *e, int error)
{
    if (error != ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) return NULL;
    return is_encrypted(e) ? "the other end does not encrypt, but this side does"
                           : "the other end encrypts, but this side does not";
}

static void on_connected(endpoint *e)
{
    dialled *l = &e->link;
    /* The queue of a new connection and its empty message come with a command that ZeroMQ sent before this event, but
     * processes only now and then, unless asked for events. */
    int events;
    size_t size = sizeof events;
    zmq.getsockopt(e->socket, ZMQ_EVENTS, &events, &size);
    l->fault = NULL;
    l->is_up = true;
}

static void on_disconnected(endpoint *e)
{
    dialled *l        = &e->link;
    const bool was_up = l->is_up;
    l->is_up          = false;
    endpoint_set_timer(e, REDIAL_MS);
    if (!was_up && l->refused < DIAL_REFUSED_MAX) l->refused++;
    l->broke |= was_up;
}

static void on_dialled_news(endpoint *e, uint16_t kind, int value)
{
    dialled *l = &e->link;
    switch (kind) {
    case ZMQ_EVENT_CONNECTED:
        l->fd = value;
        if (l->is_local) local_socket_widen(value);
        endpoint_set_timer(e, 0);
        break;
    case ZMQ_EVENT_CONNECT_RETRIED:
        endpoint_set_timer(e, 0);
        dial_failed(e);
        break;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED: on_connected(e); break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH: l->fault = "the other end does not admit this key"; break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL: l->fault = fault_of_handshake(e, value); break;
    case ZMQ_EVENT_DISCONNECTED: on_disconnected(e);
    }
}

/* With keys: a peer that failed the first step, or with an unknown key. */
static bool is_unknown(const endpoint *e, uint16_t kind)
{
    return e->has_keys &&
           (kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH || kind == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL);
}

/* value: the descriptor, or the cause of a failed handshake. */
static void on_news(endpoint *e, uint16_t kind, int value)
{
    switch (kind) {
    case ZMQ_EVENT_ACCEPTED:
        peers_accepted(&e->peers, value);
        if (e->local != NULL) local_socket_widen(value);
        watch_accepted(e, value);
        break;
    case ZMQ_EVENT_DISCONNECTED:
        watch_ended(e, value);
        peers_ended(&e->peers, value);
        break;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED: peers_greeted(&e->peers); break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        e->unknown += is_unknown(e, kind);
        peers_failed(&e->peers);
    }
}

static bool read_monitor(endpoint *e)
{
    uint16_t kind;
    int value;
    bool any = false;
    while (recv_monitor(e, &kind, &value)) {
        e->listens ? on_news(e, kind, value) : on_dialled_news(e, kind, value);
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

/* News for the owner of a dialler, one event at a time. */
static bool notify_dialled(dialled *l, bool is_encrypted, transport_event *event)
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
    if (l->fault != NULL) return refuse(event, l->fault);
    return refuse(
        event, is_encrypted
                   ? "the other end does not know this job's secret"
                   : "the other end does not speak ZeroMQ, or encrypts while this side does not");
}

/* Handshakes are reported without a descriptor: only the count is exact. */
static const char *word_for_stranger(endpoint *e)
{
    if (e->unknown == 0) return "a connection that ended without a message";
    e->unknown--;
    return "a connection without a key of this job";
}

/* A connection ended by a limit. */
static bool tell_limit(endpoint *e, transport_event *event)
{
    const char *text;
    if (!watch_take_note(e, event, &text)) return false;
    return refuse(event, text);
}

static bool notify_end(endpoint *e, transport_event *event)
{
    uint32_t number = 0;
    switch (peers_take_end(&e->peers, &number)) {
    case PEERS_DOWN: return tell(event, TRANSPORT_DOWN, number);
    case PEERS_STRANGER: return refuse(event, word_for_stranger(e));
    case PEERS_NONE: break;
    }
    return false;
}

/* ---- sending --------------------------------------------------------------------------------- */

static void socket_set_queue(void *state, uint64_t bytes_max)
{
    ((endpoint *)state)->watch.queue_bytes_max = bytes_max;
}

static void socket_trust(void *state, uint32_t number)
{
    endpoint *e = state;
    if (e->listens && !is_foreign(e)) watch_trust(e, number);
}

static bool socket_who(void *state, uint32_t number, transport_identity *is)
{
    endpoint *e = state;
    return e->listens && !is_foreign(e) && peers_who(&e->peers, number, &is->who, &is->index);
}

static void socket_blame(void *state, uint32_t number)
{
    endpoint *e = state;
    if (e->listens && !is_foreign(e)) watch_blame(e, number);
}

/* From the kernel: retransmitted, without an acknowledgement since. */
static uint32_t socket_unconfirmed_ms(void *state)
{
    const endpoint *e    = state;
    struct tcp_info info = {0};
    socklen_t size       = sizeof info;
    if (e->listens || is_foreign(e) || !e->link.is_up) return 0;
    if (getsockopt(e->link.fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
    return info.tcpi_unacked > 0 && info.tcpi_retransmits > 0 ? info.tcpi_last_ack_recv : 0;
}

/* If the connection ends between the frames, ZeroMQ drops the whole message, and so do we. */
static pen_status socket_send(void *state, uint32_t number, const void *head, size_t head_size,
                              buf *body)
{
    endpoint *e = state;
    if (is_foreign(e)) return PEN_WRONG_STATE;
    if (e->listens) {
        const pen_status status = endpoint_name_peer(e, number);
        if (status != PEN_OK) return status;
        watch_gave(e, number, head_size + (body != NULL ? body->size : 0), body != NULL ? 2 : 1);
    } else {
        if (!e->link.is_up) read_monitor(e);
        if (!e->link.is_up) return PEN_AGAIN;
    }
    const bool is_begun = body != NULL ? zmqio_send(e->socket, head, head_size, ZMQ_SNDMORE)
                                       : queue_last(e, head, head_size, NULL);
    if (!is_begun && !e->listens) return PEN_AGAIN;
    if (body != NULL) (void)queue_last(e, body->data, body->size, body);
    return PEN_OK;
}

/* ---- receiving ------------------------------------------------------------------------------- */

typedef struct {
    buf base;
    zmq_msg_t frame;
} received;

static void release_received(buf *base)
{
    received *r = (received *)base;
    zmq.msg_close(&r->frame);
    free(r);
}

static buf *keep_body(zmq_msg_t *frame)
{
    received *r = malloc(sizeof *r);
    if (r == NULL) return NULL;
    zmq.msg_init(&r->frame);
    zmq.msg_move(&r->frame, frame);
    buf_init(&r->base, zmq.msg_data(&r->frame), zmq.msg_size(&r->frame), release_received);
    return &r->base;
}

/* Takes one whole message.  Frames beyond the second are only counted. */
static int recv_frames(void *socket, zmq_msg_t *head, zmq_msg_t *body, uint64_t *bytes)
{
    zmq_msg_t rest;
    *bytes = 0;
    for (int n = 0;; n++) {
        zmq_msg_t *frame = n == 0 ? head : n == 1 ? body : &rest;
        if (!zmqio_recv_frame(socket, frame)) return n;
        const bool more = zmq.msg_more(frame);
        *bytes += zmq.msg_size(frame);
        if (frame == &rest) zmq.msg_close(&rest);
        if (!more) return n + 1;
    }
}

/* The fault of a message; NULL: none. */
static const char *fault_of(const endpoint *e, const zmq_msg_t *head, const zmq_msg_t *body, int n)
{
    if (n > 2) return "a message of more than two frames";
    if (zmq.msg_size(head) == 0) return "a message with an empty head";
    if (zmq.msg_size(head) > e->head_max) return "a head that is too large";
    if (n == 2 && zmq.msg_size(body) > e->body_max) return "a body that is too large";
    return NULL;
}

typedef enum { DROP, TAKE, REFUSE } verdict;

/* Its connection is ended: ids are ours to give. */
static verdict refuse_self_named(endpoint *e, const char **fault, int fd)
{
    read_monitor(e);
    peers_scold(&e->peers, fd);
    watch_end(e, fd);
    *fault = "a peer that chose its own id";
    return REFUSE;
}

/* What to do with a message of this peer.  REFUSE: *fault says why. */
static verdict judge_peer(endpoint *e, zmq_msg_t *id, uint32_t *number, int n, const char **fault)
{
    const char *mark              = mark_of(id);
    const int fd                  = mark != NULL ? atoi(mark) : -1;
    const peers_standing standing = peers_receive(&e->peers, *number, mark);
    if (*number == 0 || standing == PEERS_ANOTHER) {
        *number = 0;
        return refuse_self_named(e, fault, fd);
    }
    if (standing == PEERS_GONE) return DROP;
    if (standing == PEERS_KNOWN) return TAKE;
    if (standing == PEERS_NEW) {
        read_monitor(e);
        *fault = "a peer whose connection is unknown";
        if (mark == NULL || !peers_meet(&e->peers, *number, fd, mark, mark_keep(id))) return REFUSE;
        transport_identity is;
        if (e->has_keys && curve_who(id, &is)) peers_identify(&e->peers, *number, is.who, is.index);
        if (n == 1 && zmq.msg_size(&e->head) == 0) return DROP; /* a probe */
    }
    peers_respect(&e->peers, *number);
    return TAKE;
}

/* Turns one message into an event; false: none for the layer above.  id: of a listener. */
static bool take_message(endpoint *e, zmq_msg_t *id, zmq_msg_t *body, int n, uint64_t bytes,
                         transport_event *event)
{
    const char *fault = NULL;
    const verdict v   = e->listens ? judge_peer(e, id, &event->peer, n, &fault) : TAKE;
    if (e->listens) watch_took(e, event->peer, bytes, n);
    if (v == DROP) return false;
    if (v == REFUSE) return refuse(event, fault);
    fault = fault_of(e, &e->head, body, n);
    if (fault != NULL && e->listens) watch_blame(e, event->peer);
    if (fault != NULL) return refuse(event, fault);
    if (n == 2 && (event->body = keep_body(body)) == NULL)
        return refuse(event, "no memory for a body");
    event->head      = zmq.msg_data(&e->head);
    event->head_size = zmq.msg_size(&e->head);
    return tell(event, TRANSPORT_MESSAGE, event->peer);
}

static void drop_head(endpoint *e)
{
    if (e->has_head) zmq.msg_close(&e->head);
    e->has_head = false;
}

static bool recv_message(endpoint *e, transport_event *event)
{
    for (;;) {
        zmq_msg_t id, body;
        if (e->listens && !endpoint_recv_id(e, &id, &event->peer)) return false;
        uint64_t bytes;
        const int n         = recv_frames(e->socket, &e->head, &body, &bytes);
        e->has_head         = n > 0;
        const bool is_event = n > 0 && take_message(e, &id, &body, n, bytes, event);
        if (e->listens) zmq.msg_close(&id);
        if (n > 1) zmq.msg_close(&body);
        if (n == 0) return false;
        if (is_event) return true;
        drop_head(e);
        event->peer = 0;
    }
}

/* Events read after the last messages may concern a peer whose last messages came since. */
static bool recv_last_message(endpoint *e, transport_event *event)
{
    return read_monitor(e) && recv_message(e, event);
}

/* ZeroMQ reads from its peers in turn, so after enough messages a silent peer has none left. */
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

/* The queue may never be dry; events must not wait for that. */
static void count_message(endpoint *e)
{
    if (++e->messages % ROUND_MESSAGES != 0 || !is_everybody_heard(e)) return;
    end_round(e);
    if (!e->is_telling) return;
    read_monitor(e);
    watch_look(e, false);
}

static void on_dry(endpoint *e)
{
    if (!peers_has_ended(&e->peers)) {
        if (e->is_ticking)
            endpoint_set_timer(e, 0); /* an unread tick would wake the owner forever */
        e->is_ticking = false;
        return;
    }
    end_round(e);
    endpoint_set_timer(e, ROUND_MS);
    e->is_ticking = true;
}

static pen_status recv_listening(endpoint *e, transport_event *event)
{
    if (e->is_telling && notify_end(e, event)) return PEN_OK;
    e->is_telling = false;
    if (tell_limit(e, event)) return PEN_OK;
    if (recv_message(e, event) || recv_last_message(e, event)) {
        count_message(e);
        return PEN_OK;
    }
    on_dry(e);
    watch_look(e, true);
    if (tell_limit(e, event)) return PEN_OK;
    return e->is_telling && notify_end(e, event) ? PEN_OK : PEN_AGAIN;
}

/* All messages of the broken connection were read.  The other end may still be closing: redial a little later. */
static void renew_if_broken(endpoint *e)
{
    dialled *l = &e->link;
    if (!l->broke) return;
    l->is_up = false;
    l->broke = l->told_up;
    dial_hang_up(e);
    (void)endpoint_renew(e);
    endpoint_set_timer(e, RENEW_MS);
}

static pen_status recv_dialled(endpoint *e, transport_event *event)
{
    /* UP comes before the first message of the connection. */
    if (!e->link.told_up) read_monitor(e);
    dial_heed_answer(e);
    if (!e->link.told_up && notify_dialled(&e->link, is_encrypted(e), event)) return PEN_OK;
    if (recv_message(e, event) || recv_last_message(e, event)) return PEN_OK;
    renew_if_broken(e);
    if (endpoint_has_fired(e->timer_fd)) (void)dial_begin(e);
    return notify_dialled(&e->link, is_encrypted(e), event) ? PEN_OK : PEN_AGAIN;
}

static pen_status socket_recv(void *state, transport_event *event)
{
    endpoint *e = state;
    if (is_foreign(e)) return PEN_WRONG_STATE;
    *event = (transport_event){0};
    drop_head(e);
    return e->listens ? recv_listening(e, event) : recv_dialled(e, event);
}

/* The next event, which nobody is told.  False: none now. */
static bool drop_next(endpoint *e)
{
    transport_event event = {0};
    drop_head(e);
    const bool any = e->listens ? recv_listening(e, &event) == PEN_OK
                                : recv_message(e, &event) || recv_last_message(e, &event);
    buf_release(event.body);
    return any;
}

/* ---- closing --------------------------------------------------------------------------------- */

static void close_now(endpoint *e, int linger_ms)
{
    if (e->epoll_fd >= 0) close(e->epoll_fd);
    if (e->timer_fd >= 0) close(e->timer_fd);
    watch_fini(e);
    dial_end(e);
    peers_fini(&e->peers);
    if (is_foreign(e)) return;
    drop_head(e);
    if (e->socket != NULL) {
        zmq.socket_monitor(e->socket, NULL, 0);
        if (e->monitor != NULL) zmq.close(e->monitor);
        set_int(e->socket, ZMQ_LINGER, linger_ms);
        zmq.close(e->socket);
    }
    queue_drop(e);
    if (e->has_context) zmqctx_release();
}

static bool is_writable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    return poll(&p, 1, 0) != 0;
}

/* The kernel has what ZeroMQ gave it, and would take more. */
static bool queue_has_left(void *what, uint64_t until_ms)
{
    endpoint *e = what;
    while (drop_next(e))
        if (clock_ms(&clock_real) >= until_ms) return true;
    if (!e->listens && !e->link.is_up) return true;
    if (atomic_load(e->queued) > 1) return false;
    if (!e->listens) return is_writable(e->link.fd) && linger_is_acknowledged(e->link.fd);
    for (int fd = 0; (fd = watch_next(e, fd)) >= 0; fd++)
        if (!is_writable(fd) || !linger_is_acknowledged(fd)) return false;
    return true;
}

static void close_late(void *what)
{
    endpoint *e = what;
    close_now(e, e->has_keys ? TAIL_MS : 0);
    free(e);
}

static const linger_kind lingers = {queue_has_left, close_late};

static void socket_close(void *state, uint32_t linger_ms)
{
    endpoint *e        = state;
    const bool is_ours = !is_foreign(e);
    if (e->reserved_fd >= 0) close(e->reserved_fd);
    is_ours ? local_socket_close(e->local) : local_socket_forget(e->local);
    e->local = NULL;
    if (is_ours) curve_close(e);
    endpoint *late = is_ours && e->has_context && linger_ms > 0 ? malloc(sizeof *late) : NULL;
    if (late == NULL) {
        close_now(e, 0);
    } else {
        *late = *e;
        linger_close(late, linger_ms, &lingers);
    }
    if (is_ours) linger_end();
}

/* clang-format off */
#define ROW(name, text, any)                                                                        \
    {.scheme = name, .doc = text, .any_address = any, .keeps_order = true,                          \
     .crosses_processes = true, .state_size = sizeof(endpoint),                    \
     .listen = endpoint_listen, \
     .dial = endpoint_dial,                                                                         \
     .address = socket_address, .send = socket_send, .recv = socket_recv,                           \
     .poll_fd = socket_poll_fd, .blame = socket_blame, .trust = socket_trust, .who = socket_who, .set_queue = socket_set_queue,              \
     .unconfirmed_ms = socket_unconfirmed_ms, .close = socket_close}

const transport_ops transport_tcp = ROW("tcp",
    "TCP, through ZeroMQ; reconnects by name, finds silent hosts by heartbeat.", "tcp://127.0.0.1:0");
const transport_ops transport_ipc = ROW("ipc",
    "Unix-domain sockets, through ZeroMQ; for processes of one host.", "ipc://*");
/* clang-format on */
