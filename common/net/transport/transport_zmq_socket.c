/* transport_zmq_socket.c - frames in and out, and wake-ups of the owner, for both kinds of socket. */
#include "common/net/transport/transport_zmq.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    ID_BYTES   = 5,
    COPY_BELOW = 4 << 10 /* from this size on lending is cheaper than copying */
};

/* ---- frames: a signal may interrupt even a non-blocking call, between two frames of a message ---- */

bool zmqio_send_frame(void *socket, zmq_msg_t *frame)
{
    int n;
    do n = zmq.msg_send(frame, socket, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n >= 0;
}

bool zmqio_send(void *socket, const void *bytes, size_t size, int flags)
{
    int n;
    do n = zmq.send(socket, bytes, size, flags | ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n >= 0;
}

bool zmqio_recv_frame(void *socket, zmq_msg_t *frame)
{
    int n;
    zmq.msg_init(frame);
    do n = zmq.msg_recv(frame, socket, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n >= 0;
}

int zmqio_recv(void *socket, void *bytes, size_t size)
{
    int n;
    do n = zmq.recv(socket, bytes, size, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n;
}

pen_status endpoint_name_peer(endpoint *e, uint32_t number)
{
    uint8_t id[ID_BYTES]   = {0};
    const uint32_t ordered = htonl(number);
    if (!peers_knows(&e->peers, number)) return PEN_PEER_LOST;
    memcpy(id + 1, &ordered, sizeof ordered);
    if (zmqio_send(e->socket, id, sizeof id, ZMQ_SNDMORE)) return PEN_OK;
    return errno == EAGAIN ? PEN_AGAIN : PEN_PEER_LOST;
}

bool endpoint_recv_id(endpoint *e, zmq_msg_t *id, uint32_t *number)
{
    if (!zmqio_recv_frame(e->socket, id)) return false;
    const uint8_t *bytes = zmq.msg_data(id);
    *number              = 0;
    if (zmq.msg_size(id) == ID_BYTES && bytes[0] == 0) memcpy(number, bytes + 1, sizeof *number);
    *number = ntohl(*number);
    return true;
}

/* ---- the last frame of each message is counted until ZeroMQ lets go of it ---------------------- */

typedef struct {
    atomic_size_t *queued;
    buf *lent; /* NULL: copied */
    uint8_t copied[];
} last_frame;

/* One less.  The endpoint itself is one, and the last frees the count. */
static void leave(atomic_size_t *queued)
{
    if (queued != NULL && atomic_fetch_sub(queued, 1) == 1) free(queued);
}

static void on_written(void *data, void *frame)
{
    last_frame *f = frame;
    (void)data;
    buf_release(f->lent);
    leave(f->queued);
    free(f);
}

bool queue_create(endpoint *e)
{
    e->queued = malloc(sizeof *e->queued);
    if (e->queued != NULL) atomic_init(e->queued, 1);
    return e->queued != NULL;
}

void queue_drop(endpoint *e)
{
    leave(e->queued);
}

bool queue_last(endpoint *e, const void *bytes, size_t size, buf *owner)
{
    const bool copies = owner == NULL || size < COPY_BELOW;
    last_frame *f     = malloc(sizeof *f + (copies ? size : 0));
    zmq_msg_t frame;
    if (f == NULL) { /* ZeroMQ may have the memory: it needs less */
        const bool is_sent = zmqio_send(e->socket, bytes, size, 0);
        buf_release(owner);
        return is_sent;
    }
    *f = (last_frame){.queued = e->queued, .lent = copies ? NULL : owner};
    atomic_fetch_add(e->queued, 1);
    if (copies) {
        memcpy(f->copied, bytes, size);
        buf_release(owner);
        bytes = f->copied;
    }
    if (zmq.msg_init_data(&frame, (void *)(uintptr_t)bytes, size, on_written, f) != 0) {
        on_written(NULL, f);
        return false;
    }
    const bool is_sent = zmqio_send_frame(e->socket, &frame);
    if (!is_sent) zmq.msg_close(&frame);
    return is_sent;
}

/* ---- marks ------------------------------------------------------------------------------------ */

const char *mark_of(zmq_msg_t *message)
{
    return zmq.msg_gets(message, "__fd"); /* its descriptor, as text */
}

void *mark_keep(zmq_msg_t *id)
{
    zmq_msg_t *kept = malloc(sizeof *kept);
    if (kept == NULL) return NULL;
    zmq.msg_init(kept);
    zmq.msg_copy(kept, id);
    return kept;
}

void mark_drop(void *kept)
{
    if (kept == NULL) return;
    zmq.msg_close(kept);
    free(kept);
}

/* ---- wake-ups -------------------------------------------------------------------------------- */

bool endpoint_watch_fd(endpoint *e, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Creates the descriptor on first use. */
static void set(endpoint *e, int *fd, long ms, long every_ms)
{
    const struct itimerspec when = {
        .it_interval = {.tv_nsec = every_ms * 1000000},
        .it_value    = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}};
    if (*fd < 0 && ms > 0) {
        *fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        if (*fd >= 0) endpoint_watch_fd(e, *fd);
    }
    if (*fd >= 0) timerfd_settime(*fd, 0, &when, NULL);
}

void endpoint_set_timer(endpoint *e, long ms)
{
    set(e, &e->timer_fd, ms, 0);
}

void endpoint_set_ticking(endpoint *e, long every_ms)
{
    set(e, &e->watch.timer_fd, every_ms, every_ms);
}

bool endpoint_has_fired(int timer_fd)
{
    uint64_t times;
    return timer_fd >= 0 && read(timer_fd, &times, sizeof times) > 0;
}
