/* transport_socket_line.c - one connection: framing, receiving, sending.
 *
 * DESIGN
 * Framing.   Each end begins with 8 bytes that name the protocol.  Then come messages: 16 bytes (bytes of the body plus
 *            one, or 0 for none; bytes of the head; a zero), the head, the body.  Numbers are little-endian.
 * Receiving. A head is handed out where it was received.  A body is received where it stays, but for what came together
 *            with its head, which is copied.  Its memory is allocated when its size is known, and touched as bytes arrive:
 *            a peer that only claims a size costs none.
 *            The owner may name a place for it (options.place).
 * Refusing.  A message above the limits is skipped; one above twice the limits, or a frame that cannot be, ends the
 *            connection.
 * Sending.   From the caller's memory, in one call; what the kernel does not take waits.
 */
#include "common/net/transport/transport_socket.h"

#include "common/containers/list.h"

#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    IN_BYTES       = 64 << 10,
    AHEAD_BYTES    = 4 << 10, /* read after a large message, so that little of the next is copied */
    BULKY_FROM     = 96 << 10, /* large */
    PLACED_FROM    = 32 << 10, /* still to come of a body that has a place */
    FRAME_BYTES    = 16,
    GREETING_BYTES = 8,
    GATHER         = 64
};

static const uint8_t greeting[GREETING_BYTES] = {'P', 'E', 'N', 'S', 'O', 'C', 'K', 1};

struct line_queued {
    line_queued *next, *prev;
    buf *body;       /* OWNED; may be NULL */
    size_t at, size; /* of bytes: sent, in all */
    size_t body_at;
    uint8_t bytes[]; /* frame and head */
};

/* ---- life ---------------------------------------------------------------------------------------- */
line *line_create(int fd, const transport_options *o)
{
    line *l = calloc(1, sizeof *l);
    if (l == NULL) {
        close(fd);
        return NULL;
    }
    l->fd      = fd;
    l->in_size = IN_BYTES + o->head_bytes_max;
    return l;
}

bool line_prove(line *l, tls_context *c, bool listens)
{
    l->tls        = tls_create(c, listens, l->fd);
    l->is_proving = true;
    return l->tls != NULL;
}

static void drop_first(line *l)
{
    line_queued *q = l->queue;
    LIST_REMOVE(l->queue, q);
    buf_release(q->body);
    free(q);
}

void line_free(line *l)
{
    while (l->queue != NULL) drop_first(l);
    buf_release(l->now.body);
    tls_free(l->tls);
    if (l->fd >= 0) close(l->fd);
    free(l->in);
    free(l);
}

void line_cut(line *l)
{
    while (l->queue != NULL) drop_first(l);
    l->queued = 0;
    l->is_cut = true;
    shutdown(l->fd, SHUT_RDWR);
}

/* ---- receiving ----------------------------------------------------------------------------------- */
static size_t unused(const line *l)
{
    return l->in_end - l->in_at;
}

/* Room for a frame and the largest head after what is here. */
static void make_room(line *l)
{
    if (l->now.body != NULL || l->in_at == 0) return; /* its head stays where it is */
    if (unused(l) > 0 && l->in_size - l->in_end >= IN_BYTES / 2) return;
    memmove(l->in, l->in + l->in_at, unused(l));
    l->in_end -= l->in_at;
    l->in_at = 0;
}

void line_read(line *l)
{
    l->in_at += l->used;
    l->used = 0;
    if (l->in == NULL) l->in = malloc(l->in_size);
    if (l->in == NULL) {
        l->is_over = l->lacks_memory = true;
        if (l->note == NULL) l->note = "no memory to read from it";
        return;
    }
    make_room(l);
    struct iovec to[2];
    int n = 0;
    if (l->now.body != NULL)
        to[n++] = (struct iovec){(uint8_t *)l->now.body->data + l->now.have,
                                 l->now.body->size - l->now.have};
    const size_t room = l->in_size - l->in_end, most = l->is_bulky ? AHEAD_BYTES : IN_BYTES;
    to[n++] = (struct iovec){l->in + l->in_end, room < most ? room : most};
    ssize_t got;
    if (l->tls != NULL) {
        got           = tls_receive(l->tls, to, n);
        l->is_drained = tls_is_drained(l->tls);
    } else {
        got           = readv(l->fd, to, n);
        l->is_drained = got < (ssize_t)(to[0].iov_len + (n > 1 ? to[1].iov_len : 0));
    }
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) l->is_over = true;
    if (got < 0 && l->tls != NULL && l->note == NULL) l->note = tls_fault(l->tls);
    if (got <= 0) return;
    size_t rest = (size_t)got;
    if (n > 1) {
        const size_t of_body = rest < to[0].iov_len ? rest : to[0].iov_len;
        l->now.have += of_body;
        rest -= of_body;
    }
    l->in_end += rest;
}

bool line_holds(const line *l)
{
    return l->tls != NULL && !l->is_over && tls_holds(l->tls);
}

static line_found refuse(transport_event *event, const char *note)
{
    snprintf(event->note, sizeof event->note, "%s", note);
    event->kind = TRANSPORT_REFUSED;
    return LINE_REFUSED;
}

static line_found give_up(line *l, transport_event *event, const char *note)
{
    line_cut(l);
    l->is_over = true;
    return refuse(event, note);
}

static bool skip(line *l)
{
    const size_t here = l->skip < unused(l) ? (size_t)l->skip : unused(l);
    l->in_at += here;
    l->skip -= here;
    return l->skip == 0;
}

/* False: its first bytes are of another protocol. */
static bool take_greeting(line *l)
{
    const size_t here = unused(l) < GREETING_BYTES ? unused(l) : GREETING_BYTES;
    if (memcmp(l->in + l->in_at, greeting, here) != 0) return false;
    if (here < GREETING_BYTES) return true;
    l->in_at += GREETING_BYTES;
    l->is_greeted = true;
    return true;
}

static const char *why_not_greeted(const line *l)
{
    enum { ALERT = 21, HANDSHAKE = 22 }; /* of TLS */
    const uint8_t *here = l->in + l->in_at;
    const bool is_tls =
        unused(l) >= 2 && (here[0] == ALERT || here[0] == HANDSHAKE) && here[1] == 3;
    if (here[0] == TRANSPORT_ZMQ_FIRST)
        return TRANSPORT_DIFFERS; /* one byte is here: it differed */
    return is_tls && l->tls == NULL ? "the other end encrypts, but this side does not"
                                    : "a connection that does not speak the workers' protocol";
}

static line_found take_frame(line *l, const transport_options *o, transport_event *event)
{
    struct {
        uint64_t body;
        uint32_t head, zero;
    } frame;
    _Static_assert(sizeof frame == FRAME_BYTES, "as it is sent");
    memcpy(&frame, l->in + l->in_at, sizeof frame);
    const uint64_t body = le64toh(frame.body), bytes = body > 0 ? body - 1 : 0;
    const uint64_t head   = le32toh(frame.head);
    const char *const bad = frame.zero != 0             ? "a frame that is no frame"
                            : head == 0                 ? "a message with an empty head"
                            : head > o->head_bytes_max  ? "a head that is too large"
                            : bytes > o->body_bytes_max ? "a body that is too large"
                                                        : NULL;
    const bool is_breach  = frame.zero != 0 || head == 0 || head / 2 > o->head_bytes_max ||
                           bytes / 2 > o->body_bytes_max;
    l->in_at += sizeof frame;
    if (is_breach) return give_up(l, event, bad);
    if (bad != NULL) {
        l->skip = head + bytes;
        return refuse(event, bad);
    }
    l->now.is_known   = true;
    l->now.has_body   = body > 0;
    l->now.head       = head;
    l->now.body_bytes = bytes;
    l->is_bulky       = bytes >= BULKY_FROM;
    return LINE_NONE;
}

static void not_ours(buf *placed)
{
    (void)placed;
}

/* The part of the body that came with its head.  False: no memory. */
static bool begin_body(line *l, const transport_options *o)
{
    const uint8_t *head = l->in + l->in_at, *from = head + l->now.head;
    const size_t here = (size_t)(l->in + l->in_end - from);
    void *place       = NULL;
    l->now.owner      = NULL;
    if (o->place != NULL && l->number != 0 && here + PLACED_FROM <= l->now.body_bytes)
        place =
            o->place(o->place_user, l->number, head, l->now.head, l->now.body_bytes, &l->now.owner);
    if (place != NULL) buf_init(&l->placed, place, l->now.body_bytes, not_ours);
    l->now.body = place != NULL ? &l->placed : buf_new(l->now.body_bytes);
    if (l->now.body == NULL) return false;
    l->now.have = here < l->now.body->size ? here : l->now.body->size;
    memcpy(l->now.body->data, from, l->now.have);
    l->used = l->now.have;
    if (l->now.have < l->now.body->size) {
        l->in_end -= here; /* the rest of it goes to its place */
        l->used = 0;
    }
    return true;
}

static line_found take_message(line *l, const transport_options *o, transport_event *event)
{
    if (unused(l) < l->now.head) return LINE_NONE;
    if (l->now.has_body && l->now.body == NULL && !begin_body(l, o)) {
        l->skip             = l->now.head + l->now.body_bytes;
        l->now.is_known     = false;
        event->lacks_memory = true;
        return refuse(event, "no memory for a body");
    }
    if (l->now.has_body && l->now.have < l->now.body->size) return LINE_NONE;
    event->kind      = TRANSPORT_MESSAGE;
    event->head      = l->in + l->in_at;
    event->head_size = l->now.head;
    event->body      = l->now.body;
    event->is_placed = l->now.body == &l->placed;
    l->used += l->now.head;
    l->now.body     = NULL;
    l->now.is_known = false;
    return LINE_MESSAGE;
}

line_found line_take(line *l, const transport_options *o, transport_event *event)
{
    l->in_at += l->used;
    l->used = 0;
    if (l->is_cut || l->in == NULL) return LINE_NONE;
    if (!l->is_greeted && !take_greeting(l)) return give_up(l, event, why_not_greeted(l));
    if (!l->is_greeted || !skip(l)) return LINE_NONE;
    if (!l->now.is_known && unused(l) >= FRAME_BYTES) {
        const line_found found = take_frame(l, o, event);
        if (found != LINE_NONE) return found;
    }
    return l->now.is_known ? take_message(l, o, event) : LINE_NONE;
}

/* What has not arrived is skipped. */
void line_unplace(line *l, const void *owner)
{
    if (l->now.body != &l->placed || l->now.owner != owner) return;
    l->in_at += l->now.head;
    l->skip         = l->now.body->size - l->now.have;
    l->now.body     = NULL;
    l->now.is_known = false;
}

/* ---- sending ------------------------------------------------------------------------------------- */
static ssize_t push(line *l, struct iovec *of, int n)
{
    const struct msghdr m = {.msg_iov = of, .msg_iovlen = (size_t)n};
    if (l->tls != NULL) return tls_send(l->tls, of, n);
    return sendmsg(l->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* After a push that took nothing.  True: nothing can be sent any more.  What the peer has sent may still be read, except
 * where encryption lacks memory: nothing else would end that connection. */
static bool is_broken(line *l)
{
    if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS) return false;
    if (l->tls == NULL || errno != ENOMEM) return true;
    l->lacks_memory = true;
    if (l->note == NULL) l->note = "no memory to send on it";
    line_cut(l);
    return true;
}

void line_greet(line *l)
{
    struct iovec all = {(void *)(uintptr_t)greeting, GREETING_BYTES};
    if (push(l, &all, 1) < 0) (void)is_broken(l); /* a new connection has room for it */
}

/* The part of a message that the kernel did not take. */
static bool queue_rest(line *l, const struct iovec of[2], size_t sent, buf *body)
{
    const size_t head = of[0].iov_len + of[1].iov_len;
    line_queued *q    = malloc(sizeof *q + head);
    if (q == NULL) return false;
    *q = (line_queued){.body    = body,
                       .size    = head,
                       .at      = sent < head ? sent : head,
                       .body_at = sent > head ? sent - head : 0};
    memcpy(q->bytes, of[0].iov_base, of[0].iov_len);
    memcpy(q->bytes + of[0].iov_len, of[1].iov_base, of[1].iov_len);
    LIST_APPEND(l->queue, q);
    l->queued += head + (body != NULL ? body->size : 0) - sent;
    return true;
}

pen_status line_send(line *l, const void *head, size_t head_size, buf *body)
{
    const size_t body_bytes = body != NULL ? body->size : 0;
    if (head_size > UINT32_MAX) return PEN_INVALID_ARGUMENT;
    struct {
        uint64_t body;
        uint32_t head, zero;
    } frame = {body != NULL ? htole64(body_bytes + 1) : 0, htole32((uint32_t)head_size), 0};
    struct iovec of[3] = {{&frame, sizeof frame},
                          {(void *)(uintptr_t)head, head_size},
                          {body != NULL ? body->data : NULL, body_bytes}};
    const size_t all   = FRAME_BYTES + head_size + body_bytes;
    ssize_t sent       = l->queue == NULL ? push(l, of, body_bytes > 0 ? 3 : 2) : 0;
    if (sent < 0 && is_broken(l)) return PEN_PEER_LOST;
    if (sent < 0) sent = 0;
    if ((size_t)sent < all && !queue_rest(l, of, (size_t)sent, body)) {
        if (sent > 0) line_cut(l); /* half a message has left */
        return PEN_NO_MEMORY;
    }
    if ((size_t)sent == all) buf_release(body);
    return PEN_OK;
}

static int gather(const line *l, struct iovec of[2 * GATHER])
{
    int n = 0;
    for (line_queued *q = l->queue; q != NULL && n + 2 <= 2 * GATHER; q = q->next) {
        if (q->at < q->size) of[n++] = (struct iovec){q->bytes + q->at, q->size - q->at};
        if (q->body != NULL && q->body_at < q->body->size)
            of[n++] =
                (struct iovec){(uint8_t *)q->body->data + q->body_at, q->body->size - q->body_at};
    }
    return n;
}

static void note_sent(line *l, size_t sent)
{
    l->queued -= sent;
    for (line_queued *q; (q = l->queue) != NULL;) {
        const size_t body    = q->body != NULL ? q->body->size - q->body_at : 0;
        const size_t of_head = sent < q->size - q->at ? sent : q->size - q->at;
        const size_t of_body = sent - of_head < body ? sent - of_head : body;
        q->at += of_head;
        q->body_at += of_body;
        sent -= of_head + of_body;
        if (q->at < q->size || of_body < body) return;
        drop_first(l);
    }
}

void line_flush(line *l)
{
    struct iovec of[2 * GATHER];
    while (l->queue != NULL) {
        const ssize_t sent = push(l, of, gather(l, of));
        if (sent < 0) {
            (void)is_broken(l);
            return;
        }
        note_sent(l, (size_t)sent);
    }
    if (l->tls != NULL) tls_flush(l->tls);
}

bool line_waits(const line *l)
{
    return l->queue != NULL || (l->tls != NULL && tls_unsent(l->tls) > 0);
}
