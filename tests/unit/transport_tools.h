/* transport_tools.h - transports that send and receive, and plain sockets that shake hands with ZeroMQ's. */
#ifndef TESTS_UNIT_TRANSPORT_TOOLS_H
#define TESTS_UNIT_TRANSPORT_TOOLS_H

#include "common/base/clock.h"
#include "common/net/transport/transport.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_MS = 20000, QUIET_MS = 100 };

/* ---- tools ----------------------------------------------------------------------------------- */
static inline uint64_t now_ms(void)
{
    return clock_ms(&clock_real);
}

static inline void rest(transport *t)
{
    struct pollfd fd = {.fd = transport_poll_fd(t), .events = POLLIN};
    poll(&fd, 1, 10);
}

/* The next event of any kind; its body is released. */
static inline bool next(transport *t, transport_event *event, uint64_t wait_ms)
{
    const uint64_t until = now_ms() + wait_ms;
    do {
        if (transport_recv(t, event) == PEN_OK) {
            buf_release(event->body);
            return true;
        }
        rest(t);
    } while (now_ms() < until);
    return false;
}

static inline transport_event expect(transport *t, transport_event_kind kind)
{
    transport_event event = {0};
    if (!next(t, &event, PATIENCE_MS)) fail_msg("nothing came instead of event %d", kind);
    if (event.kind != kind) fail_msg("event %d ('%s') instead of %d", event.kind, event.note, kind);
    return event;
}

static inline transport *listen_at(const char *address, const transport_options *o)
{
    transport *t;
    pen_error why;
    if (transport_listen(address, o, &t, &why) != PEN_OK) fail_msg("%s", why.text);
    return t;
}

static inline transport *listen_anywhere(void)
{
    return listen_at("tcp://127.0.0.1:0", NULL);
}

static inline transport *dial(const char *address)
{
    transport *t;
    pen_error why;
    if (transport_dial(address, NULL, &t, &why) != PEN_OK) fail_msg("%s", why.text);
    return t;
}

static inline transport *dial_up(const char *address)
{
    transport *t = dial(address);
    expect(t, TRANSPORT_UP);
    return t;
}

static inline void say(transport *t, uint32_t peer, const char *text)
{
    assert_int_equal(transport_send(t, peer, text, strlen(text), NULL), PEN_OK);
}

static inline void assert_hears(transport *t, const char *text)
{
    transport_event event = expect(t, TRANSPORT_MESSAGE);
    assert_int_equal(event.head_size, strlen(text));
    assert_memory_equal(event.head, text, event.head_size);
}

/* In a child of fork(), these two answer WRONG_STATE and stay the parent's; a listener of the child's own, at
 * own_address, serves.  NULL: it opens none. */
static inline void assert_belong_to_the_parent(transport *l, transport *d, const char *own_address)
{
    const pid_t child = fork();
    if (child == 0) {
        transport_event event;
        int wrong = transport_recv(d, &event) != PEN_WRONG_STATE;
        wrong |= (transport_send(d, 0, "x", 1, NULL) != PEN_WRONG_STATE) << 1;
        wrong |= (transport_recv(l, &event) != PEN_WRONG_STATE) << 2;
        transport_close(d, 1000);
        transport_close(l, 1000);
        if (own_address != NULL) {
            transport *own    = listen_at(own_address, NULL),
                      *to_own = dial_up(transport_address(own));
            say(to_own, 0, "of the child");
            wrong |= (expect(own, TRANSPORT_MESSAGE).head_size != 12) << 3;
            transport_close(to_own, 1000);
            transport_close(own, 0);
        }
        _exit(wrong);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    say(d, 0, "the parent goes on");
    assert_hears(l, "the parent goes on");
}

/* ---- plain sockets --------------------------------------------------------------------------- */
static inline int port_of(transport *t)
{
    return atoi(strrchr(transport_address(t), ':') + 1);
}

static inline struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){.sin_family      = AF_INET,
                                .sin_port        = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline int plain_connect(int port)
{
    struct sockaddr_in to = loopback(port);
    int fd                = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* The other side may have closed already, which is allowed. */
static inline void plain_send(int fd, const void *data, size_t size)
{
    if (send(fd, data, size, MSG_NOSIGNAL) < 0) return;
}

/* Until the other side closes, or has sent what it has to send. */
static inline bool is_closed_by_peer(int fd, int wait_ms)
{
    char sink[256];
    const uint64_t until = now_ms() + (uint64_t)wait_ms;
    while (now_ms() < until) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 10) == 1 && recv(fd, sink, sizeof sink, MSG_DONTWAIT) <= 0) return true;
    }
    return false;
}

/* ---- the protocol of ZeroMQ by hand ---------------------------------------------------------- */
enum { GREETING_BYTES = 64, LAST = 0, MORE = 1 };

static inline void put_greeting(uint8_t greeting[GREETING_BYTES])
{
    memset(greeting, 0, GREETING_BYTES);
    greeting[0]  = 0xff;
    greeting[9]  = 0x7f;
    greeting[10] = 3;
    memcpy(greeting + 12, "NULL", 4);
}

static inline size_t put_property(uint8_t *to, const char *name, const void *value, size_t size)
{
    size_t n = strlen(name);
    to[0]    = (uint8_t)n;
    memcpy(to + 1, name, n);
    memcpy(to + 1 + n, (uint8_t[]){0, 0, 0, (uint8_t)size}, 4);
    memcpy(to + 5 + n, value, size);
    return 5 + n + size;
}

static inline void plain_receive(int fd, void *to, size_t size)
{
    assert_int_equal(recv(fd, to, size, MSG_WAITALL), size);
}

/* A whole handshake, with READY on both sides before anything else is sent.  An empty name is what a peer has that
 * did not choose one. */
static inline void shake_hands_as(int fd, const char *type, const void *name, size_t name_size)
{
    uint8_t greeting[GREETING_BYTES], ready[256] = {4, 0, 5, 'R', 'E', 'A', 'D', 'Y'};
    size_t used = 8;
    used += put_property(ready + used, "Socket-Type", type, strlen(type));
    used += put_property(ready + used, "Identity", name, name_size);
    ready[1] = (uint8_t)(used - 2);
    put_greeting(greeting);
    plain_send(fd, greeting, sizeof greeting);
    plain_send(fd, ready, used);
    plain_receive(fd, greeting, sizeof greeting);
    plain_receive(fd, ready, 2);
    plain_receive(fd, ready + 2, ready[1]);
}

static inline void shake_hands(int fd, const char *type, const char *name)
{
    shake_hands_as(fd, type, name, strlen(name));
}

static inline int plain_listen(char address[64])
{
    struct sockaddr_in at = loopback(0);
    socklen_t size        = sizeof at;
    const int yes = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 8), 0);
    getsockname(fd, (struct sockaddr *)&at, &size);
    snprintf(address, 64, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    return fd;
}

#endif
