/* transport_zmq_socket.c - frames in and out, and wake-ups of the owner, for both kinds of socket. */
#include "common/net/transport/transport_zmq.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { ID_BYTES = 5 };

/* ---- frames: a signal may interrupt even a non-blocking call, between two frames of a message ---- */

bool zmqio_send_frame(void *socket, zmq_msg_t *frame)
{
    int n;
    do n = zmq_msg_send(frame, socket, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n >= 0;
}

bool zmqio_send(void *socket, const void *bytes, size_t size, int flags)
{
    int n;
    do n = zmq_send(socket, bytes, size, flags | ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n >= 0;
}

bool zmqio_recv_frame(void *socket, zmq_msg_t *frame)
{
    int n;
    zmq_msg_init(frame);
    do n = zmq_msg_recv(frame, socket, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n >= 0;
}

int zmqio_recv(void *socket, void *bytes, size_t size)
{
    int n;
    do n = zmq_recv(socket, bytes, size, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n;
}

pen_status endpoint_send_to_peer(endpoint *e, uint32_t number, const void *head, size_t head_size,
                                 int more)
{
    uint8_t id[ID_BYTES]   = {0};
    const uint32_t ordered = htonl(number);
    if (!peers_knows(&e->peers, number)) return PEN_PEER_LOST;
    memcpy(id + 1, &ordered, sizeof ordered);
    if (!zmqio_send(e->socket, id, sizeof id, ZMQ_SNDMORE))
        return errno == EAGAIN ? PEN_AGAIN : PEN_PEER_LOST;
    zmqio_send(e->socket, head, head_size, more);
    return PEN_OK;
}

bool endpoint_recv_id(endpoint *e, zmq_msg_t *id, uint32_t *number)
{
    if (!zmqio_recv_frame(e->socket, id)) return false;
    const uint8_t *bytes = zmq_msg_data(id);
    *number              = 0;
    if (zmq_msg_size(id) == ID_BYTES && bytes[0] == 0) memcpy(number, bytes + 1, sizeof *number);
    *number = ntohl(*number);
    return true;
}

/* ---- marks ------------------------------------------------------------------------------------ */

const char *mark_of(zmq_msg_t *message)
{
    return zmq_msg_gets(message, "__fd"); /* its descriptor, as text */
}

void *mark_keep(zmq_msg_t *id)
{
    zmq_msg_t *kept = malloc(sizeof *kept);
    if (kept == NULL) return NULL;
    zmq_msg_init(kept);
    zmq_msg_copy(kept, id);
    return kept;
}

void mark_drop(void *kept)
{
    if (kept == NULL) return;
    zmq_msg_close(kept);
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
