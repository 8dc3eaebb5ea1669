/* transport_socket.c - TCP and Unix-domain sockets without a library: events, sending, ends of connections.
 *
 * DESIGN
 * Shape.     All sockets of an endpoint are in one epoll descriptor, which is what its owner polls.  There is no thread:
 *            what an endpoint does, it does in a call of its owner.  send() gives the kernel what it takes, and recv()
 *            the rest; it takes one event at a time, and reads once from each connection that has something.
 * Ends.      A connection is read to its end, so DOWN comes after its last message.
 * Limits.    As of every listener (transport.h).  What waits for a peer is in our queue, so it is counted exactly.
 * Strangers. TCP with keys is TLS (tls.h): a stranger's bytes reach none of our parsers.  Unix-domain sockets need no
 *            proof, as only this user can connect.
 */
#include "common/net/transport/transport_socket.h"

#include "common/base/clock.h"
#include "common/containers/list.h"
#include "common/net/transport/linger.h"
#include "common/system/own_pid.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    ROUND =
        256, /* events in one call, so that a sender of endless bodies does not hold its owner */
    ACCEPTS         = 64,
    PROVING_MAX     = 96, /* handshakes at once: 4 MiB */
    TICK_MS         = 500,
    FULL_MS         = 100,
    GREETING_MS_MIN = 1000,
    GREETING_MS_MAX = 5000,
    BLAMES_A_SECOND = 10
};

static bool is_foreign(const socket_endpoint *e)
{
    return e->pid != own_pid();
}

/* ---- connections --------------------------------------------------------------------------------- */
/* HOST:PORT of the peer; empty if unknown. */
static void write_from(const line *l, char from[TRANSPORT_FROM_BYTES])
{
    struct sockaddr_storage at = {0};
    socklen_t size             = sizeof at;
    char host[NI_MAXHOST], port[8];
    if (getpeername(l->fd, (struct sockaddr *)&at, &size) != 0 || at.ss_family == AF_UNIX) return;
    if (getnameinfo((struct sockaddr *)&at, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return;
    const bool is_v6 = at.ss_family == AF_INET6;
    const int n = snprintf(from, TRANSPORT_FROM_BYTES, is_v6 ? "[%s]:%s" : "%s:%s", host, port);
    if (n < 0 || n >= TRANSPORT_FROM_BYTES) from[0] = '\0';
}

static void end_with(line *l, const char *note)
{
    if (l->is_cut) return;
    l->note = note;
    line_cut(l);
}

/* It is in no list afterwards. */
static void detach(socket_endpoint *e, line *l)
{
    for (int i = e->next_ready; i < e->n_ready; i++)
        if (e->ready[i].data.ptr == l) e->ready[i].data.ptr = NULL;
    epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, l->fd, NULL);
    LIST_REMOVE(e->lines, l);
    if (l->number != 0) HASH_DEL(e->by_number, l);
    if (e->reading == l) e->reading = NULL;
    e->living--;
}

/* True: an event says so. */
static bool end(socket_endpoint *e, line *l, transport_event *event)
{
    event->peer = l->number;
    if (l->number == 0) write_from(l, event->from);
    const char *note = l->note != NULL ? l->note
                       : e->listens && !l->is_greeted && !l->is_refused
                           ? "a connection that ended without a message"
                           : NULL;
    if (note != NULL) {
        snprintf(event->note, sizeof event->note, "%s", note);
        event->kind         = TRANSPORT_REFUSED;
        event->lacks_memory = l->lacks_memory;
        l->note             = NULL;
        l->is_refused       = true;
        return true; /* its end follows */
    }
    const uint32_t number = l->number;
    detach(e, l);
    line_free(l);
    if (!e->listens) {
        const bool was_told = e->told_up;
        e->told_up          = false;
        event->kind         = TRANSPORT_DOWN;
        socket_attempt_later(e);
        return was_told;
    }
    event->kind = TRANSPORT_DOWN;
    return number != 0;
}

static void blame(line *l)
{
    if (!rate_take(&l->blames, TRANSPORT_BLAMES, BLAMES_A_SECOND, clock_ms(&clock_real)))
        end_with(l, "too much that was refused: its connection was ended");
}

/* A peer's first message gives it its number. */
static bool introduce(socket_endpoint *e, line *l)
{
    if (!e->listens || l->number != 0) return true;
    if (++e->last_number == 0) e->last_number = 1;
    l->number = e->last_number;
    HASH_ADD(hh, e->by_number, number, sizeof l->number, l);
    if (l->hh.tbl != NULL) return true;
    l->number = 0;
    return false;
}

/* The next event of the connection that is being read; false: none. */
static bool read_on(socket_endpoint *e, transport_event *event)
{
    line *l = e->reading;
    switch (line_take(l, &e->o, event)) {
    case LINE_MESSAGE:
        if (introduce(e, l)) {
            event->peer = l->number;
            return true;
        }
        buf_release(event->body);
        *event = (transport_event){
            .kind = TRANSPORT_REFUSED, .note = "no memory for a peer", .lacks_memory = true};
        line_cut(l);
        return true;
    case LINE_REFUSED:
        event->peer   = l->number;
        l->is_refused = true;
        if (l->number == 0) write_from(l, event->from);
        if (e->listens && !event->lacks_memory) blame(l);
        return true;
    case LINE_NONE: break;
    }
    if (l->is_over) return end(e, l, event);
    if (line_holds(l)) {
        line_read(l);
    } else {
        e->n_drained += l->is_drained && !l->now.is_known; /* else the rest may be here by now */
        e->reading = NULL;
    }
    return false;
}

/* ---- listening ----------------------------------------------------------------------------------- */
/* Beyond the limit the oldest that has sent nothing makes way; if there is none, the newest. */
static void make_way(socket_endpoint *e)
{
    line *l = e->lines;
    if (e->living <= e->connections_max) return;
    while (l->next != NULL && (l->number != 0 || l->is_cut)) l = l->next;
    end_with(l, "more than connections_max connections: a silent one was ended");
}

/* Of the handshakes that have begun, the oldest makes way. */
static void bound_handshakes(socket_endpoint *e)
{
    line *oldest = NULL;
    int n        = 0;
    LIST_EACH(l, e->lines) {
        if (!l->is_proving || l->is_cut || !tls_is_costly(l->tls)) continue;
        n++;
        if (oldest == NULL) oldest = l;
    }
    if (n > PROVING_MAX) end_with(oldest, "too many handshakes at once: the oldest was ended");
}

static void accept_all(socket_endpoint *e, int from)
{
    for (int i = 0; i < ACCEPTS && !e->is_full; i++) {
        const int fd = accept4(from, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            e->is_full = true;
            if (e->tcp_fd >= 0) epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, e->tcp_fd, NULL);
            if (e->local_fd >= 0) epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, e->local_fd, NULL);
            socket_set_timer(e, FULL_MS);
        }
        if (fd < 0) return;
        socket_prepare(fd, &e->o);
        line *l = line_create(fd, &e->o);
        if (l == NULL) return; /* its peer dials again */
        const bool proves = e->tls != NULL && from == e->tcp_fd;
        if ((proves && !line_prove(l, e->tls, true)) || !socket_watch(e, fd, l)) {
            line_free(l);
            return;
        }
        l->since_ms = clock_ms(&clock_real);
        LIST_APPEND(e->lines, l);
        if (e->living++ == 0 || l->prev->is_greeted) socket_set_timer(e, TICK_MS);
        if (!proves) line_greet(l);
        make_way(e);
    }
}

/* Ends connections that do not say what they are. */
static void tick(socket_endpoint *e)
{
    const uint64_t now = clock_ms(&clock_real), asked = 3 * (uint64_t)e->o.heartbeat_ms;
    const uint64_t most = asked < GREETING_MS_MIN   ? GREETING_MS_MIN
                          : asked > GREETING_MS_MAX ? GREETING_MS_MAX
                                                    : asked;
    bool is_any         = false;
    if (e->is_full) {
        e->is_full = false;
        if (e->o.sockets != TRANSPORT_LOCAL_ONLY) socket_watch(e, e->tcp_fd, &e->tcp_fd);
        socket_watch(e, e->local_fd, &e->local_fd);
    }
    LIST_EACH(l, e->lines) {
        if (l->is_greeted) continue;
        is_any = true;
        if (now - l->since_ms > most && !l->is_cut) line_cut(l);
    }
    if (is_any) socket_set_timer(e, TICK_MS);
}

static void on_timer(socket_endpoint *e)
{
    uint64_t n;
    if (read(e->timer_fd, &n, sizeof n) != sizeof n) return;
    if (e->listens) {
        tick(e);
    } else if (e->state == DIAL_WAITING) {
        socket_attempt(e);
    } else if (e->state == DIAL_CONNECTING || e->state == DIAL_PROVING) {
        line *l = e->lines;
        detach(e, l);
        line_free(l);
        socket_attempt_later(e);
    }
}

/* ---- events -------------------------------------------------------------------------------------- */
/* The descriptor tells of room to send only while something waits. */
static void watch_out(socket_endpoint *e, line *l)
{
    if (l->is_watched_out == line_waits(l)) return;
    l->is_watched_out        = !l->is_watched_out;
    struct epoll_event event = {.events   = EPOLLIN | (l->is_watched_out ? EPOLLOUT : 0),
                                .data.ptr = l};
    epoll_ctl(e->epoll_fd, EPOLL_CTL_MOD, l->fd, &event);
}

static void on_line(socket_endpoint *e, line *l, uint32_t events)
{
    if (!e->listens && e->state == DIAL_CONNECTING) {
        socket_connected(e);
        return;
    }
    if (l->is_proving && !l->is_cut) {
        socket_prove(e, l);
        if (l->is_proving && e->listens) bound_handshakes(e);
        e->reading = l->is_proving && !l->is_over ? NULL : l;
        return;
    }
    if ((events & EPOLLOUT) != 0) line_flush(l);
    watch_out(e, l);
    if ((events & ~(uint32_t)EPOLLOUT) == 0) return;
    if (l->is_cut)
        l->is_over = true; /* whatever it still sends */
    else
        line_read(l);
    e->reading = l;
}

/* False: none. */
static bool take_event(socket_endpoint *e)
{
    if (e->next_ready == e->n_ready) {
        const bool is_dry = e->n_ready > 0 && e->n_drained == e->n_ready;
        const int n       = is_dry ? 0 : epoll_wait(e->epoll_fd, e->ready, ENDPOINT_EVENTS, 0);
        e->next_ready = e->n_drained = 0;
        e->n_ready                   = n > 0 ? n : 0;
        if (n <= 0) return false;
    }
    const struct epoll_event *event = &e->ready[e->next_ready++];
    if (event->data.ptr == &e->timer_fd)
        on_timer(e);
    else if (event->data.ptr == &e->tcp_fd)
        accept_all(e, e->tcp_fd);
    else if (event->data.ptr == &e->local_fd)
        accept_all(e, e->local_fd);
    else if (event->data.ptr == &e->asked)
        socket_heed_answer(e);
    else if (event->data.ptr != NULL)
        on_line(e, event->data.ptr, event->events);
    return true;
}

static pen_status endpoint_recv(void *state, transport_event *event)
{
    socket_endpoint *e = state;
    bool has_moved     = false;
    if (is_foreign(e)) return PEN_WRONG_STATE;
    for (int i = 0; i < ROUND || e->reading != NULL; i++) {
        *event = (transport_event){.has_moved = has_moved};
        if (!e->listens && e->state == DIAL_UP && !e->told_up) {
            e->told_up  = true;
            event->kind = TRANSPORT_UP;
            return PEN_OK;
        }
        if (e->reading != NULL && read_on(e, event)) return PEN_OK;
        if (e->reading == NULL && !take_event(e)) return PEN_AGAIN;
        has_moved |= !e->listens || (e->reading != NULL && e->reading->number != 0);
    }
    return PEN_AGAIN;
}

/* ---- sending ------------------------------------------------------------------------------------- */
static line *find_line(const socket_endpoint *e, uint32_t number)
{
    line *l = NULL;
    if (!e->listens) return e->state == DIAL_UP ? e->lines : NULL;
    HASH_FIND(hh, e->by_number, &number, sizeof number, l);
    return l;
}

/* The running sum is an upper bound: what was sent since is not subtracted before the next count. */
static void bound_observers(socket_endpoint *e, uint64_t more)
{
    e->observers_bytes += more;
    if (e->o.observers_bytes_max == 0) return;
    while (e->observers_bytes > e->o.observers_bytes_max) {
        line *worst        = NULL;
        e->observers_bytes = 0;
        LIST_EACH(l, e->lines) {
            if (l->is_trusted || l->is_cut) continue;
            e->observers_bytes += l->queued;
            if (worst == NULL || l->queued > worst->queued) worst = l;
        }
        if (worst == NULL || e->observers_bytes <= e->o.observers_bytes_max / 2) return;
        e->observers_bytes -= worst->queued;
        end_with(worst, "it does not read, and too much waits for observers and strangers: ended");
    }
}

static void bound_queue(socket_endpoint *e, line *l, uint64_t more)
{
    if (!e->listens || l->queue == NULL) return;
    if (e->o.queue_bytes_max > 0 && l->queued > e->o.queue_bytes_max)
        end_with(l, "it does not read, and more than queue_bytes_max waits: ended");
    if (!l->is_trusted) bound_observers(e, more);
}

static pen_status endpoint_send(void *state, uint32_t number, const void *head, size_t head_size,
                                buf *body)
{
    socket_endpoint *e = state;
    if (is_foreign(e)) return PEN_WRONG_STATE;
    line *l                 = find_line(e, number);
    const pen_status lost   = e->listens ? PEN_PEER_LOST : PEN_AGAIN;
    const uint64_t before   = l != NULL ? l->queued : 0;
    const pen_status status = l != NULL && !l->is_cut ? line_send(l, head, head_size, body) : lost;
    if (status == PEN_PEER_LOST) return lost;
    if (status != PEN_OK) return status;
    bound_queue(e, l, l->queued - before);
    watch_out(e, l);
    return PEN_OK;
}

static void endpoint_blame(void *state, uint32_t number)
{
    line *l = is_foreign(state) ? NULL : find_line(state, number);
    if (l != NULL) blame(l);
}

static void endpoint_trust(void *state, uint32_t number)
{
    line *l = is_foreign(state) ? NULL : find_line(state, number);
    if (l != NULL) l->is_trusted = true;
}

static bool endpoint_who(void *state, uint32_t number, transport_identity *is)
{
    const line *l = is_foreign(state) ? NULL : find_line(state, number);
    if (l == NULL || l->tls == NULL) return false;
    *is = tls_who(l->tls);
    return true;
}

static void endpoint_unplace(void *state, const void *owner)
{
    const socket_endpoint *e = state;
    if (is_foreign(e)) return;
    LIST_EACH(l, e->lines) line_unplace(l, owner);
}

static void endpoint_set_queue(void *state, uint64_t bytes_max)
{
    ((socket_endpoint *)state)->o.queue_bytes_max = bytes_max;
}

/* From the kernel: retransmitted, without an acknowledgement since. */
static uint32_t endpoint_unconfirmed_ms(void *state)
{
    const socket_endpoint *e = state;
    struct tcp_info info     = {0};
    socklen_t size           = sizeof info;
    if (e->listens || is_foreign(e) || e->state != DIAL_UP) return 0;
    if (getsockopt(e->lines->fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
    return info.tcpi_unacked > 0 && info.tcpi_retransmits > 0 ? info.tcpi_last_ack_recv : 0;
}

static int endpoint_poll_fd(void *state)
{
    return ((socket_endpoint *)state)->epoll_fd;
}

static const char *endpoint_address(void *state)
{
    return ((socket_endpoint *)state)->address;
}

/* ---- closing ------------------------------------------------------------------------------------- */
static bool line_has_left(void *what, uint64_t until_ms)
{
    line *l = what;
    char sink[4096];
    ssize_t n;
    while ((n = recv(l->fd, sink, sizeof sink, MSG_DONTWAIT)) > 0)
        if (clock_ms(&clock_real) >= until_ms) return true;
    if (n == 0 || l->fd < 0) return true; /* the other end has gone */
    line_flush(l);
    return !line_waits(l) && linger_is_acknowledged(l->fd);
}

static void drop_line(void *what)
{
    line_free(what);
}

static const linger_kind lingers = {line_has_left, drop_line};

static void endpoint_close(void *state, uint32_t linger_ms)
{
    socket_endpoint *e = state;
    const bool is_ours = !is_foreign(e);
    if (!is_ours || (!e->listens && e->state != DIAL_UP)) linger_ms = 0;
    if (e->epoll_fd >= 0) close(e->epoll_fd);
    if (e->timer_fd >= 0) close(e->timer_fd);
    if (e->tcp_fd >= 0) close(e->tcp_fd);
    if (e->local_fd >= 0) close(e->local_fd);
    is_ours ? local_socket_close(e->local) : local_socket_forget(e->local);
    name_lookup_drop(e->asked);
    HASH_CLEAR(hh, e->by_number);
    LIST_EACH(l, e->lines) linger_close(l, l->is_cut ? 0 : linger_ms, &lingers);
    free(e->ready);
    tls_context_close(e->tls);
    if (is_ours) linger_end();
}

const transport_ops transport_socket = {
    .scheme      = "socket",
    .doc         = "TCP and Unix-domain sockets without a thread; TLS 1.3 with keys; for data and "
                   "collectives.",
    .any_address = "socket://127.0.0.1:0",
    .keeps_order = true,
    .crosses_processes = true,
    .state_size        = sizeof(socket_endpoint),
    .listen            = socket_listen,
    .dial              = socket_dial,
    .address           = endpoint_address,
    .send              = endpoint_send,
    .recv              = endpoint_recv,
    .poll_fd           = endpoint_poll_fd,
    .blame             = endpoint_blame,
    .who               = endpoint_who,
    .trust             = endpoint_trust,
    .unplace           = endpoint_unplace,
    .set_queue         = endpoint_set_queue,
    .unconfirmed_ms    = endpoint_unconfirmed_ms,
    .close             = endpoint_close,
};
