/* transport_zmq_watch.c - limits that ZeroMQ lacks, and how a connection that exceeds them is ended.
 *
 * DESIGN
 * Counting.  The kernel counts the bytes of each connection (TCP_INFO).  Received bytes that we did not take are in
 * ZeroMQ's queue, or in an incomplete message; bytes we sent without an acknowledgement wait for a peer that does not
 * read.
 *
 * Endless messages.  ZeroMQ stores the frames of a message until the last one, however many.  Each tick records all
 * counts.  When the queue was then found dry, everything complete had been taken, so the rest of the count is one
 * unfinished message and what the kernel still holds.  Beyond the largest message plus SLACK_BYTES, the connection is
 * ended.  At most one tick's traffic of a link can pile up above that.
 *
 * Ending.  ZeroMQ has no call for it.  Disconnecting the descriptor works (a connect to AF_UNSPEC): the kernel resets
 * the connection and drops its buffers, and ZeroMQ's thread sees the end and closes.  (After shutdown() ZeroMQ would
 * keep reading from a sender that does not stop.)  The descriptor may belong to another connection by then; the
 * kernel's socket cookie shows that, and a connection hit in the instant between check and end dials again.
 *
 * Rates.  Each address may connect RATE_BURST times, and then RATE_A_SECOND times a second.  Beyond that a connection
 * ends before its handshake, unless a peer that has sent messages lives at the same address: then it may be a returning
 * member, and a stranger beside it is bounded by the other limits alone.
 *
 * Observers.  The bytes waiting for all non-members have a common bound.  They are counted on sending, not on a tick:
 * the answer to a small request may be large.
 *
 * Silent connections.  A connection that sends nothing costs a descriptor until the handshake times out.  Beyond
 * connections_max each new connection ends the oldest silent one, and so does each beyond STRANGERS silent ones: a flood
 * only displaces itself.
 */
#include "common/net/transport/transport_zmq.h"

#include "common/base/clock.h"
#include "common/containers/hash.h"
#include "common/containers/arrays.h"
#include "common/system/file_limit.h"

#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    TICK_MS         = 100,
    FD_MAX          = 1 << 20,
    SLACK_BYTES     = 64 << 20, /* what the kernel may hold */
    HEARTBEAT_BYTES = 16,       /* per tick */
    CURVE_BYTES     = 33,       /* of each frame: command, nonce, tag, flags */
    SHORT_FRAME     = 255,
    BLAMES_A_SECOND = 10,
    STRANGERS       = 32, /* at once, with time for a handshake: a silent stranger costs ZeroMQ */
    STRANGERS_MAX   = 96, /* some 60 KiB; and in total: many may come at once when a job starts */
    HANDSHAKE_MS    = 100,
    RATE_BURST      = 8192, /* a large job dials this often from one host at its start */
    RATE_A_SECOND   = 100
};

struct watched {
    bool lives, is_ended; /* is_ended: by us */
    bool is_trusted;
    bool has_look;       /* `look` was set at the last tick */
    uint64_t cookie;     /* of the socket */
    uint64_t order;      /* order of acceptance */
    uint64_t address;    /* of the peer, as one number; 0: none */
    uint64_t took, gave; /* known bytes on the wire */
    uint64_t look;       /* received at the last tick */
    rate blames;
    uint64_t since_ms; /* time of acceptance */
};

void watch_init(endpoint *e, const transport_options *o)
{
    const uint64_t largest =
        o->head_bytes_max > o->body_bytes_max ? o->head_bytes_max : o->body_bytes_max;
    struct rlimit files;
    watch *w               = &e->watch;
    w->timer_fd            = -1;
    w->connections_max     = o->connections_max;
    w->queue_bytes_max     = o->queue_bytes_max;
    w->observers_bytes_max = o->observers_bytes_max;
    w->message_bytes_max   = largest > INT64_MAX / 4 ? INT64_MAX / 2 : 2 * largest + SLACK_BYTES;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 2 < w->connections_max)
        w->connections_max = (uint32_t)(files.rlim_cur / 2); /* leaves descriptors for others */
}

void watch_fini(endpoint *e)
{
    free(e->watch.at);
    if (e->watch.timer_fd >= 0) close(e->watch.timer_fd);
    e->watch.at       = NULL;
    e->watch.timer_fd = -1;
}

/* ---- connections ------------------------------------------------------------------------------ */

static watched *find_watched(const endpoint *e, int fd)
{
    const watch *w = &e->watch;
    return fd >= 0 && (size_t)fd < w->n && w->at[fd].lives ? &w->at[fd] : NULL;
}

int watch_next(const endpoint *e, int fd)
{
    while ((size_t)fd < e->watch.n && find_watched(e, fd) == NULL) fd++;
    return (size_t)fd < e->watch.n ? fd : -1;
}

static bool make_room(watch *w, int fd)
{
    return fd >= 0 && fd <= FD_MAX && VEC_ROOM(w->at, w->n, (size_t)fd + 1);
}

static uint64_t cookie_of(int fd)
{
    uint64_t cookie = 0;
    socklen_t size  = sizeof cookie;
    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

static void end_connection(endpoint *e, int fd)
{
    watched *c = find_watched(e, fd);
    if (c == NULL || c->is_ended) return;
    c->is_ended = true;
    if (c->cookie == 0 || cookie_of(fd) != c->cookie) return;
    const struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    if (connect(fd, &nobody, sizeof nobody) != 0) shutdown(fd, SHUT_RDWR);
}

/* Not a peer's connection yet: it has sent nothing. */
static bool is_stranger(const endpoint *e, int fd)
{
    return peers_is_silent(&e->peers, fd);
}

/* HOST:PORT of the peer; empty if unknown. */
static void notify_from(int fd, char from[TRANSPORT_FROM_BYTES])
{
    struct sockaddr_storage at = {0};
    socklen_t size             = sizeof at;
    char host[INET6_ADDRSTRLEN], port[8];
    from[0] = '\0';
    if (getpeername(fd, (struct sockaddr *)&at, &size) != 0 || at.ss_family == AF_UNIX) return;
    if (getnameinfo((struct sockaddr *)&at, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return;
    snprintf(from, TRANSPORT_FROM_BYTES, at.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host,
             port);
}

static void end_peer(endpoint *e, int fd, const char *text)
{
    watch *w = &e->watch;
    if (w->at[fd].is_ended) return;
    if (w->n_notes < WATCH_NOTES) {
        w->note[w->n_notes].peer = peers_number(&e->peers, fd);
        w->note[w->n_notes].text = text;
        notify_from(fd, w->note[w->n_notes++].from);
    }
    end_connection(e, fd);
}

/* Returns the oldest stranger, or -1, and their number. */
static int oldest_stranger(const endpoint *e, uint32_t *n)
{
    int oldest = -1;
    *n         = 0;
    for (int fd = 0; (size_t)fd < e->watch.n; fd++) {
        const watched *c = find_watched(e, fd);
        if (c == NULL || c->is_ended || !is_stranger(e, fd)) continue;
        ++*n;
        if (oldest < 0 || c->order < e->watch.at[oldest].order) oldest = fd;
    }
    return oldest;
}

/* Ends at most one for each accepted connection, so their number stays constant above the limit. */
static void make_way(endpoint *e, uint64_t now_ms)
{
    const watch *w = &e->watch;
    uint32_t strangers;
    if (w->living <= STRANGERS && w->living <= w->connections_max) return;
    const int oldest = oldest_stranger(e, &strangers);
    if (oldest < 0) return;
    const uint32_t others = w->living - strangers;
    const bool had_time   = now_ms - w->at[oldest].since_ms > HANDSHAKE_MS;
    const uint32_t most   = had_time ? STRANGERS : STRANGERS_MAX;
    if (w->living > w->connections_max)
        end_peer(e, oldest, "more than connections_max connections: a silent one was ended");
    else if (strangers > most && strangers > others)
        end_peer(e, oldest, "too many connections that send nothing: the oldest was ended");
}

void watch_end(endpoint *e, int fd)
{
    end_connection(e, fd);
}

/* An address without its port as one number. */
static uint64_t address_of(int fd)
{
    struct sockaddr_storage at = {0};
    socklen_t size             = sizeof at;
    if (getpeername(fd, (struct sockaddr *)&at, &size) != 0) return 0;
    if (at.ss_family == AF_INET)
        return hash_bytes(&((struct sockaddr_in *)&at)->sin_addr, sizeof(struct in_addr));
    if (at.ss_family == AF_INET6)
        return hash_bytes(&((struct sockaddr_in6 *)&at)->sin6_addr, sizeof(struct in6_addr));
    return 0;
}

static bool has_peer_at(const endpoint *e, uint64_t address)
{
    for (int fd = 0; (size_t)fd < e->watch.n; fd++) {
        const watched *c = find_watched(e, fd);
        if (c != NULL && c->address == address && !is_stranger(e, fd)) return true;
    }
    return false;
}

/* Whether this address has connected too often.  Addresses that share a table slot share their allowance. */
static bool comes_too_often(endpoint *e, uint64_t address, uint64_t now_ms)
{
    rate *r = &e->watch.rate[address % WATCH_RATES];
    return address != 0 && !rate_take(r, RATE_BURST, RATE_A_SECOND, now_ms) &&
           !has_peer_at(e, address);
}

void watch_accepted(endpoint *e, int fd)
{
    watch *w           = &e->watch;
    const uint64_t now = clock_ms(&clock_real);
    if (!make_room(w, fd)) return;
    if (!w->at[fd].lives && w->living++ == 0) endpoint_set_ticking(e, TICK_MS);
    w->at[fd] = (watched){.lives    = true,
                          .cookie   = cookie_of(fd),
                          .order    = ++w->accepted,
                          .address  = address_of(fd),
                          .since_ms = now};
    if (comes_too_often(e, w->at[fd].address, now)) {
        end_peer(e, fd, "too many connections a second from one address: ended");
        return;
    }
    make_way(e, now);
}

void watch_ended(endpoint *e, int fd)
{
    watched *c = find_watched(e, fd);
    if (c == NULL) return;
    *c = (watched){0};
    if (--e->watch.living == 0) endpoint_set_ticking(e, 0);
}

/* ---- counting --------------------------------------------------------------------------------- */

/* A message's size on the wire.  Exact except for which of two frames is short. */
static uint64_t wire_bytes(const endpoint *e, uint64_t bytes, int frames)
{
    const uint64_t each = e->has_keys ? CURVE_BYTES : 0;
    const uint64_t all  = bytes + (uint64_t)frames * (each + 2);
    return bytes + each > SHORT_FRAME ? all + 7 : all;
}

static bool counts_of(int fd, const watched *c, uint64_t *received, uint64_t *acked)
{
    struct tcp_info info = {0};
    socklen_t size       = sizeof info;
    if (cookie_of(fd) != c->cookie) return false;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
    if (size < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received)
        return false;
    *received = info.tcpi_bytes_received;
    *acked    = info.tcpi_bytes_acked;
    return true;
}

static bool exceeds(uint64_t more, uint64_t less, uint64_t limit)
{
    return more > less && more - less > limit;
}

/* ---- bytes waiting for untrusted peers --------------------------------------------------------- */

/* Bytes sent and not acknowledged by the peer's kernel; 0 if they are not counted (a Unix-domain socket). */
static uint64_t waiting_for(int fd, const watched *c)
{
    uint64_t received, acked;
    if (!counts_of(fd, c, &received, &acked)) return 0;
    return c->gave > acked ? c->gave - acked : 0;
}

/* The sum over all observers; *worst: the one with most bytes waiting, or -1. */
static uint64_t count_observers(endpoint *e, int *worst, uint64_t *most)
{
    uint64_t all = 0;
    *worst       = -1;
    *most        = 0;
    for (int fd = 0; (size_t)fd < e->watch.n; fd++) {
        const watched *c = find_watched(e, fd);
        if (c == NULL || c->is_ended || c->is_trusted) continue;
        const uint64_t waiting = waiting_for(fd, c);
        all += waiting;
        if (waiting <= *most) continue;
        *most  = waiting;
        *worst = fd;
    }
    return all;
}

/* ---- counts of messages ------------------------------------------------------------------------ */

void watch_took(endpoint *e, uint32_t peer, uint64_t bytes, int frames)
{
    watched *c = find_watched(e, peers_fd(&e->peers, peer));
    if (c != NULL) c->took += wire_bytes(e, bytes, frames);
}

void watch_gave(endpoint *e, uint32_t peer, uint64_t bytes, int frames)
{
    watched *c         = find_watched(e, peers_fd(&e->peers, peer));
    const uint64_t now = wire_bytes(e, bytes, frames);
    if (c == NULL) return;
    c->gave += now;
    if (c->is_trusted || e->watch.observers_bytes_max == 0) return;
    e->watch.observers_bytes += now;
    if (e->watch.observers_bytes > e->watch.observers_bytes_max) {
        /* The running sum ignores acknowledgements, so it is an upper bound; recounts only after enough new bytes. */
        watch *w = &e->watch;
        int worst;
        uint64_t most;
        while ((w->observers_bytes = count_observers(e, &worst, &most)) >
                   w->observers_bytes_max / 2 &&
               worst >= 0)
            end_peer(e, worst,
                     "it does not read, and too much waits for observers and strangers: ended");
    }
}

void watch_trust(endpoint *e, uint32_t peer)
{
    watched *c = find_watched(e, peers_fd(&e->peers, peer));
    if (c != NULL) c->is_trusted = true;
}

/* ---- reports ----------------------------------------------------------------------------------- */

bool watch_take_note(endpoint *e, transport_event *event, const char **text)
{
    watch *w = &e->watch;
    if (w->n_notes == 0) return false;
    event->peer = w->note[--w->n_notes].peer;
    *text       = w->note[w->n_notes].text;
    memcpy(event->from, w->note[w->n_notes].from, sizeof event->from);
    return true;
}

void watch_blame(endpoint *e, uint32_t peer)
{
    const int fd = peers_fd(&e->peers, peer);
    watched *c   = find_watched(e, fd);
    if (c == NULL) return;
    if (!rate_take(&c->blames, TRANSPORT_BLAMES, BLAMES_A_SECOND, clock_ms(&clock_real)))
        end_peer(e, fd, "too much that was refused: its connection was ended");
}

/* ---- looking ---------------------------------------------------------------------------------- */

static void judge(endpoint *e, int fd, watched *c, bool is_dry)
{
    const watch *w = &e->watch;
    uint64_t received, acked;
    if (is_dry && c->has_look && exceeds(c->look, c->took, w->message_bytes_max)) {
        end_peer(e, fd, "a message without end: its connection was ended");
        return;
    }
    if (!is_dry && c->has_look && w->queue_bytes_max == 0) return; /* the count is still valid */
    if (!counts_of(fd, c, &received, &acked)) return;
    /* Heartbeats are received but never taken.  A peer that sends other data at this low rate gains just as little. */
    c->took += HEARTBEAT_BYTES;
    if (c->took > received) c->took = received;
    const uint64_t limit = w->queue_bytes_max;
    if (limit > 0 && exceeds(received, c->took, limit + w->message_bytes_max))
        end_peer(e, fd, "more in its queue than queue_bytes_max: its connection was ended");
    else if (limit > 0 && exceeds(c->gave, acked, limit + w->message_bytes_max))
        end_peer(e, fd, "it does not read, and more than queue_bytes_max waits: ended");
    if (is_dry || !c->has_look) c->look = received;
    c->has_look = true;
}

void watch_look(endpoint *e, bool is_dry)
{
    if (!endpoint_has_fired(e->watch.timer_fd)) return;
    files_tell_exhausted();
    for (int fd = 0; (size_t)fd < e->watch.n; fd++) {
        watched *c = find_watched(e, fd);
        if (c == NULL || c->is_ended || c->cookie == 0) continue;
        judge(e, fd, c, is_dry);
    }
}
