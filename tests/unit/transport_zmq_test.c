/* transport_zmq_test.c - strangers, stopped and killed peers, descriptors used again, forks, what libzmq hides. */
#include "common/clock.h"
#include "common/transport/transport.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_MS = 20000, QUIET_MS = 100 };

/* ---- tools ----------------------------------------------------------------------------------- */

static uint64_t now_ms(void)
{
    return clock_ms(&clock_real);
}

static void rest(transport *t)
{
    struct pollfd fd = {.fd = transport_poll_fd(t), .events = POLLIN};
    poll(&fd, 1, 10);
}

/* The next event, whatever it is; its body is released. */
static bool next(transport *t, transport_event *event, uint64_t wait_ms)
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

static transport_event expect(transport *t, transport_event_kind kind)
{
    transport_event event = {0};
    if (!next(t, &event, PATIENCE_MS)) fail_msg("nothing came instead of event %d", kind);
    if (event.kind != kind) fail_msg("event %d ('%s') instead of %d", event.kind, event.note, kind);
    return event;
}

static void expect_quiet(transport *t)
{
    transport_event event;
    if (next(t, &event, QUIET_MS))
        fail_msg("event %d ('%s') instead of none", event.kind, event.note);
}

static transport *listen_at(const char *address, const transport_options *o)
{
    transport *t;
    pen_error why;
    if (transport_listen(address, o, &t, &why) != PEN_OK) fail_msg("%s", why.text);
    return t;
}

static transport *listen_anywhere(void)
{
    return listen_at("tcp://127.0.0.1:0", NULL);
}

static transport *dial(const char *address)
{
    transport *t;
    pen_error why;
    if (transport_dial(address, NULL, &t, &why) != PEN_OK) fail_msg("%s", why.text);
    return t;
}

static transport *dial_up(const char *address)
{
    transport *t = dial(address);
    expect(t, TRANSPORT_UP);
    return t;
}

static void say(transport *t, uint32_t peer, const char *text)
{
    assert_int_equal(transport_send(t, peer, text, strlen(text), NULL), PEN_OK);
}

static void assert_hears(transport *t, const char *text)
{
    transport_event event = expect(t, TRANSPORT_MESSAGE);
    assert_int_equal(event.head_size, strlen(text));
    assert_memory_equal(event.head, text, event.head_size);
}

/* ---- plain sockets --------------------------------------------------------------------------- */

static int port_of(transport *t)
{
    return atoi(strrchr(transport_address(t), ':') + 1);
}

static struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){.sin_family      = AF_INET,
                                .sin_port        = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int plain_connect(int port)
{
    struct sockaddr_in to = loopback(port);
    int fd                = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static int plain_listen(char address[64])
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

/* The other side may have closed already; that is its right. */
static void plain_send(int fd, const void *data, size_t size)
{
    if (send(fd, data, size, MSG_NOSIGNAL) < 0) return;
}

/* Until the other side closes, or has had its say. */
static bool is_closed_by_peer(int fd, int wait_ms)
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

static void put_greeting(uint8_t greeting[GREETING_BYTES])
{
    memset(greeting, 0, GREETING_BYTES);
    greeting[0]  = 0xff;
    greeting[9]  = 0x7f;
    greeting[10] = 3;
    memcpy(greeting + 12, "NULL", 4);
}

static size_t put_property(uint8_t *to, const char *name, const void *value, size_t size)
{
    size_t n = strlen(name);
    to[0]    = (uint8_t)n;
    memcpy(to + 1, name, n);
    memcpy(to + 1 + n, (uint8_t[]){0, 0, 0, (uint8_t)size}, 4);
    memcpy(to + 5 + n, value, size);
    return 5 + n + size;
}

static void plain_receive(int fd, void *to, size_t size)
{
    assert_int_equal(recv(fd, to, size, MSG_WAITALL), size);
}

/* A whole handshake, with READY on both sides before anything else is said.  An empty name is what a peer has that
 * did not choose one. */
static void shake_hands(int fd, const char *type, const char *name)
{
    uint8_t greeting[GREETING_BYTES], ready[256] = {4, 0, 5, 'R', 'E', 'A', 'D', 'Y'};
    size_t used = 8;
    used += put_property(ready + used, "Socket-Type", type, strlen(type));
    used += put_property(ready + used, "Identity", name, strlen(name));
    ready[1] = (uint8_t)(used - 2);
    put_greeting(greeting);
    plain_send(fd, greeting, sizeof greeting);
    plain_send(fd, ready, used);
    plain_receive(fd, greeting, sizeof greeting);
    plain_receive(fd, ready, 2);
    plain_receive(fd, ready + 2, ready[1]);
}

static void plain_frame(int fd, int more, const char *text)
{
    uint8_t frame[128] = {(uint8_t)more, (uint8_t)strlen(text)};
    memcpy(frame + 2, text, strlen(text));
    plain_send(fd, frame, 2 + strlen(text));
}

static void plain_claim(int fd, uint64_t size)
{
    uint8_t frame[9] = {2}; /* a long frame */
    for (int i = 0; i < 8; i++) frame[1 + i] = (uint8_t)(size >> (56 - 8 * i));
    plain_send(fd, frame, sizeof frame);
}

/* ---- strangers ------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    void (*offend)(int fd);
} offence;

static void ask_like_a_browser(int fd)
{
    static const char text[] =
        "GET / HTTP/1.1\r\nHost: localhost:7000\r\nUser-Agent: Mozilla/5.0 (X11; Linux)\r\n"
        "Accept: text/html\r\nConnection: keep-alive\r\nCookie: a=b\r\n\r\n";
    plain_send(fd, text, sizeof text - 1);
}

static void ask_briefly(int fd)
{
    plain_send(fd, "GET / HTTP/1.0\r\n\r\n", 18);
}

static void greet_by_half(int fd)
{
    uint8_t greeting[GREETING_BYTES];
    put_greeting(greeting);
    plain_send(fd, greeting, 30);
}

static void say_nothing(int fd)
{
    (void)fd;
}

static void claim_after_greeting(int fd)
{
    uint8_t greeting[GREETING_BYTES];
    put_greeting(greeting);
    plain_send(fd, greeting, sizeof greeting);
    plain_claim(fd, 1ull << 60);
}

static void say_a_ready_of_nonsense(int fd)
{
    uint8_t greeting[GREETING_BYTES],
        ready[] = {4, 12, 5, 'R', 'E', 'A', 'D', 'Y', 200, 'x', 255, 255, 255, 255};
    put_greeting(greeting);
    plain_send(fd, greeting, sizeof greeting);
    plain_send(fd, ready, sizeof ready);
}

/* The oldest version of the protocol has no greeting: these bytes are an empty name and three messages. */
static void speak_the_first_version(int fd)
{
    static const uint8_t bytes[] = {1, 0, 2, 0, 'a', 2, 0, 'b', 2, 0, 'c'};
    plain_send(fd, bytes, sizeof bytes);
}

static void speak_at_random(int fd)
{
    static uint64_t seed = 1;
    uint8_t bytes[300];
    for (size_t i = 0; i < sizeof bytes; i++) {
        seed     = seed * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(seed >> 56);
    }
    plain_send(fd, bytes, sizeof bytes);
}

static const offence offences[] = {
    {"a long HTTP request", ask_like_a_browser},
    {"a short HTTP request", ask_briefly},
    {"half a greeting", greet_by_half},
    {"nothing", say_nothing},
    {"2^60 bytes after the greeting", claim_after_greeting},
    {"a READY of nonsense", say_a_ready_of_nonsense},
    {"version 1 of the protocol", speak_the_first_version},
    {"random bytes", speak_at_random},
    {"other random bytes", speak_at_random},
    {"more random bytes", speak_at_random},
};

static void offend(transport *t, const offence *o)
{
    int fd = plain_connect(port_of(t));
    o->offend(fd);
    is_closed_by_peer(fd, 20); /* some wait for more; then we leave */
    close(fd);
}

static void test_transport_zmq_reports_every_stranger_once_and_serves_its_peers(void **state)
{
    (void)state;
    transport *l = listen_anywhere(), *d = dial_up(transport_address(l));
    say(d, 0, "hello");
    uint32_t peer = expect(l, TRANSPORT_MESSAGE).peer;
    for (size_t i = 0; i < sizeof offences / sizeof *offences; i++) {
        transport_event event;
        offend(l, &offences[i]);
        if (!next(l, &event, PATIENCE_MS)) fail_msg("%s: not reported", offences[i].name);
        if (event.kind != TRANSPORT_REFUSED) fail_msg("%s: event %d", offences[i].name, event.kind);
        if (event.note[0] == '\0') fail_msg("%s: no note", offences[i].name);
        if (next(l, &event, 30)) fail_msg("%s: a second event %d", offences[i].name, event.kind);
        say(l, peer, "still here?");
        assert_hears(d, "still here?");
        say(d, 0, "yes");
        assert_hears(l, "yes");
    }
    transport_close(d, 0);
    transport_close(l, 0);
}

static long resident_bytes(void)
{
    long pages = 0;
    FILE *f    = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Claims just below the limit, which ZeroMQ believes, on many connections that then wait. */
static void test_transport_zmq_gives_no_memory_for_a_claim(void **state)
{
    (void)state;
    enum { CLAIMS = 30 };
    int fd[CLAIMS];
    transport *l      = listen_anywhere();
    const long before = resident_bytes();
    for (int i = 0; i < CLAIMS; i++) {
        fd[i] = plain_connect(port_of(l));
        shake_hands(fd[i], "DEALER", "");
        plain_claim(fd[i], 60 << 20);
        plain_send(fd[i], "some of it", 10);
    }
    expect_quiet(l);
    assert_true(resident_bytes() - before < 64l << 20);
    for (int i = 0; i < CLAIMS; i++) close(fd[i]);
    transport_close(l, 0);
}

static void test_transport_zmq_ends_who_claims_too_much_before_any_word(void **state)
{
    (void)state;
    transport *l = listen_anywhere();
    for (int i = 0; i < 20; i++) {
        int fd = plain_connect(port_of(l));
        shake_hands(fd, "DEALER", "");
        plain_claim(fd, 1ull << 60);
        assert_true(is_closed_by_peer(fd, PATIENCE_MS));
        close(fd);
    }
    transport_close(l, 0);
}

static void test_transport_zmq_refuses_a_peer_that_names_itself(void **state)
{
    (void)state;
    transport *l = listen_anywhere();
    int fd       = plain_connect(port_of(l));
    shake_hands(fd, "DEALER", "mallory");
    plain_frame(fd, LAST, "let me in");
    const transport_event event = expect(l, TRANSPORT_REFUSED);
    assert_string_equal(event.note, "a peer that names itself");
    assert_int_equal(event.peer, 0);
    close(fd);
    expect_quiet(l); /* it is no peer, so it is not down either */
    transport_close(l, 0);
}

static void test_transport_zmq_refuses_messages_of_three_frames_by_name(void **state)
{
    (void)state;
    transport *l = listen_anywhere();
    int fd       = plain_connect(port_of(l));
    shake_hands(fd, "DEALER", "");
    plain_frame(fd, LAST, "hello");
    const uint32_t peer = expect(l, TRANSPORT_MESSAGE).peer;
    plain_frame(fd, MORE, "a");
    plain_frame(fd, MORE, "b");
    plain_frame(fd, LAST, "c");
    const transport_event event = expect(l, TRANSPORT_REFUSED);
    assert_int_equal(event.peer, peer);
    assert_string_equal(event.note, "a message of more than two frames");
    plain_frame(fd, LAST, "sorry");
    assert_hears(l, "sorry");
    plain_frame(fd, MORE, "half a message");
    close(fd);
    assert_int_equal(expect(l, TRANSPORT_DOWN).peer, peer);
    expect_quiet(l);
    transport_close(l, 0);
}

/* A peer that spoke, then claims too much, ends: one DOWN, after what it said before. */
static void test_transport_zmq_ends_a_peer_that_claims_too_much(void **state)
{
    (void)state;
    transport *l = listen_anywhere();
    for (int i = 0; i < 20; i++) {
        int fd = plain_connect(port_of(l));
        shake_hands(fd, "DEALER", "");
        plain_frame(fd, LAST, "one");
        plain_frame(fd, LAST, "two");
        plain_claim(fd, 1ull << 60);
        const uint32_t peer = expect(l, TRANSPORT_MESSAGE).peer;
        transport_event event;
        assert_true(next(l, &event, PATIENCE_MS));
        if (event.kind == TRANSPORT_MESSAGE) assert_true(next(l, &event, PATIENCE_MS));
        assert_int_equal(event.kind, TRANSPORT_DOWN);
        assert_int_equal(event.peer, peer);
        close(fd);
    }
    expect_quiet(l);
    transport_close(l, 0);
}

/* ---- addresses ------------------------------------------------------------------------------- */

static void test_transport_zmq_port_0_becomes_a_real_port(void **state)
{
    (void)state;
    transport *l = listen_anywhere();
    assert_true(port_of(l) > 0);
    close(plain_connect(port_of(l)));
    transport_close(l, 0);
}

static void test_transport_zmq_port_in_use_is_named(void **state)
{
    (void)state;
    transport *l = listen_anywhere(), *second;
    char sentence[200];
    pen_error why;
    snprintf(sentence, sizeof sentence,
             "port %d is in use (%s); choose another, or 0 for a free one", port_of(l),
             transport_address(l));
    assert_int_equal(transport_listen(transport_address(l), NULL, &second, &why), PEN_UNREACHABLE);
    assert_string_equal(why.text, sentence);
    transport_close(l, 0);
}

static void test_transport_zmq_listener_at_all_addresses_is_dialled_by_any(void **state)
{
    (void)state;
    char address[64];
    transport *l = listen_at("tcp://*:0", NULL);
    assert_int_equal(strncmp(transport_address(l), "tcp://0.0.0.0:", 14), 0);
    snprintf(address, sizeof address, "tcp://localhost:%d", port_of(l));
    transport *d = dial_up(address);
    say(d, 0, "by name");
    assert_hears(l, "by name");
    transport_close(d, 0);
    transport_close(l, 0);
}

static void test_transport_zmq_speaks_ipv6(void **state)
{
    (void)state;
    transport *l;
    if (transport_listen("tcp://[::1]:0", NULL, &l, NULL) != PEN_OK) skip(); /* a host without */
    transport *d = dial_up(transport_address(l));
    say(d, 0, "six");
    assert_hears(l, "six");
    transport_close(d, 0);
    transport_close(l, 0);
}

static void test_transport_zmq_nonsense_for_an_address_is_a_sentence(void **state)
{
    (void)state;
    static const char *const nonsense[] = {"tcp://",
                                           "tcp://localhost",
                                           "tcp://localhost:",
                                           "tcp://127.0.0.1:99999",
                                           "tcp://127.0.0.1:http",
                                           "ipc://",
                                           "tcp://[::1:0",
                                           "tcp://:::"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        transport *t;
        pen_error why = {0};
        if (transport_listen(nonsense[i], NULL, &t, &why) == PEN_OK) fail_msg("%s", nonsense[i]);
        if (strstr(why.text, nonsense[i]) == NULL) fail_msg("%s: %s", nonsense[i], why.text);
        if (transport_dial(nonsense[i], NULL, &t, &why) == PEN_OK) transport_close(t, 0);
    }
}

/* ---- diallers -------------------------------------------------------------------------------- */

/* A dialler must survive whatever answers, and find the real listener when that comes. */
static void test_transport_zmq_dialler_outlives_a_stranger_at_its_address(void **state)
{
    (void)state;
    char address[64];
    const int listening = plain_listen(address);
    transport *d        = dial(address);
    const int fd        = accept(listening, NULL, NULL);
    plain_send(fd, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
               67);
    is_closed_by_peer(fd, 50);
    close(fd);
    close(listening);
    expect(d, TRANSPORT_REFUSED);
    assert_int_equal(transport_send(d, 0, "x", 1, NULL), PEN_AGAIN);

    transport *l = listen_at(address, NULL);
    expect(d, TRANSPORT_UP);
    say(d, 0, "at last");
    assert_hears(l, "at last");
    transport_close(d, 0);
    transport_close(l, 0);
}

/* The same when the listener itself breaks the protocol later. */
static void test_transport_zmq_dialler_comes_back_after_a_breach_of_protocol(void **state)
{
    (void)state;
    const transport_options small = {.head_bytes_max = 100, .body_bytes_max = 100};
    transport *l                  = listen_anywhere(), *d;
    assert_int_equal(transport_dial(transport_address(l), &small, &d, NULL), PEN_OK);
    expect(d, TRANSPORT_UP);
    say(d, 0, "hello");
    const uint32_t peer = expect(l, TRANSPORT_MESSAGE).peer;
    buf *body           = buf_new(1 << 20);
    assert_int_equal(transport_send(l, peer, "x", 1, body), PEN_OK);
    expect(d, TRANSPORT_DOWN);
    assert_int_equal(expect(l, TRANSPORT_DOWN).peer, peer);
    expect(d, TRANSPORT_UP);
    say(d, 0, "again");
    assert_hears(l, "again");
    transport_close(d, 0);
    transport_close(l, 0);
}

/* ---- other processes ------------------------------------------------------------------------- */

/* This program again, as a peer: "peer ADDRESS" says hello and answers until it is killed. */
static int run_peer(const char *address)
{
    transport *t;
    transport_event event;
    if (transport_dial(address, NULL, &t, NULL) != PEN_OK) return 1;
    for (;;) {
        if (transport_recv(t, &event) != PEN_OK) {
            rest(t);
            continue;
        }
        buf_release(event.body);
        if (event.kind == TRANSPORT_UP || event.kind == TRANSPORT_MESSAGE)
            (void)transport_send(t, 0, "hello", 5, NULL);
    }
}

/* "leave ADDRESS MS" queues what nobody reads, closes and exits. */
static int run_leaver(const char *address, const char *linger_ms)
{
    transport *t, *lost;
    transport_event event;
    if (transport_dial(address, NULL, &t, NULL) != PEN_OK) return 1;
    if (transport_dial("tcp://127.0.0.1:1", NULL, &lost, NULL) != PEN_OK) return 1;
    while (transport_recv(t, &event) != PEN_OK || event.kind != TRANSPORT_UP) rest(t);
    for (int i = 0; i < 40; i++) (void)transport_send(t, 0, "x", 1, buf_new(1 << 20));
    transport_close(lost, (uint32_t)atoi(linger_ms));
    transport_close(t, (uint32_t)atoi(linger_ms));
    return 0;
}

static pid_t start(const char *what, const char *address, const char *more)
{
    const pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "transport_zmq_test", what, address, more, (char *)NULL);
        _exit(127);
    }
    assert_true(child > 0);
    return child;
}

static void end(pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void test_transport_zmq_killed_peer_is_down_within_a_second(void **state)
{
    (void)state;
    transport *l            = listen_anywhere();
    const pid_t child       = start("peer", transport_address(l), NULL);
    const uint32_t peer     = expect(l, TRANSPORT_MESSAGE).peer;
    const uint64_t start_ms = now_ms();
    end(child);
    assert_int_equal(expect(l, TRANSPORT_DOWN).peer, peer);
    assert_true(now_ms() - start_ms < 1000);
    assert_int_equal(transport_send(l, peer, "x", 1, NULL), PEN_PEER_LOST);
    transport_close(l, 0);
}

/* Silent for three heartbeats it is down; awake again it comes back as somebody new. */
static void test_transport_zmq_stopped_peer_is_down_by_heartbeat(void **state)
{
    (void)state;
    const transport_options quick = {.heartbeat_ms = 200};
    transport *l                  = listen_at("tcp://127.0.0.1:0", &quick);
    const pid_t child             = start("peer", transport_address(l), NULL);
    const uint32_t peer           = expect(l, TRANSPORT_MESSAGE).peer;
    transport_event event;
    assert_false(next(l, &event, 1200)); /* awake and silent is not dead */
    const uint64_t start_ms = now_ms();
    kill(child, SIGSTOP);
    assert_int_equal(expect(l, TRANSPORT_DOWN).peer, peer);
    const uint64_t took_ms = now_ms() - start_ms;
    assert_true(took_ms >= 300 && took_ms < 2500);
    kill(child, SIGCONT);
    assert_int_not_equal(expect(l, TRANSPORT_MESSAGE).peer, peer);
    end(child);
    transport_close(l, 0);
}

/* A listener that shakes hands and then answers no ping. */
static void test_transport_zmq_stopped_listener_is_down_for_its_dialler(void **state)
{
    (void)state;
    const transport_options quick = {.heartbeat_ms = 100};
    char address[64];
    transport *d;
    const int listening = plain_listen(address);
    assert_int_equal(transport_dial(address, &quick, &d, NULL), PEN_OK);
    const int fd = accept(listening, NULL, NULL);
    shake_hands(fd, "ROUTER", "");
    expect(d, TRANSPORT_UP);
    const uint64_t start_ms = now_ms();
    expect(d, TRANSPORT_DOWN);
    assert_true(now_ms() - start_ms < 2500);
    transport_close(d, 0);
    close(fd);
    close(listening);
}

static void test_transport_zmq_exit_waits_for_what_lingers_and_no_longer(void **state)
{
    (void)state;
    transport *l            = listen_anywhere();
    const pid_t child       = start("leave", transport_address(l), "300");
    const uint64_t start_ms = now_ms();
    int status, ended = 0;
    while (ended == 0 && now_ms() - start_ms < PATIENCE_MS) { /* nobody reads */
        ended = waitpid(child, &status, WNOHANG);
        poll(NULL, 0, 5);
    }
    if (ended == 0) end(child);
    assert_int_equal(ended, child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    transport_close(l, 0);
}

static void test_transport_zmq_in_a_forked_child_is_wrong_state(void **state)
{
    (void)state;
    transport *l = listen_anywhere(), *d = dial_up(transport_address(l));
    const pid_t child = fork();
    if (child == 0) {
        transport_event event;
        int wrong = transport_recv(d, &event) != PEN_WRONG_STATE;
        wrong |= (transport_send(d, 0, "x", 1, NULL) != PEN_WRONG_STATE) << 1;
        wrong |= (transport_recv(l, &event) != PEN_WRONG_STATE) << 2;
        transport_close(d, 1000);
        transport_close(l, 1000);
        _exit(wrong);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    say(d, 0, "the parent goes on");
    assert_hears(l, "the parent goes on");
    transport_close(d, 0);
    transport_close(l, 0);
}

/* ---- signals --------------------------------------------------------------------------------- */

static void ignore_signal(int number)
{
    (void)number;
}

/* A profiler's timer interrupts ZeroMQ in the middle of messages; none may be cut in two. */
static void test_transport_zmq_messages_stay_whole_under_signals(void **state)
{
    (void)state;
    const struct sigaction quiet = {.sa_handler = ignore_signal};
    struct itimerval often       = {.it_interval.tv_usec = 100, .it_value.tv_usec = 100};
    struct sigaction before;
    transport *l = listen_anywhere(), *d = dial_up(transport_address(l));
    transport_event event;
    sigaction(SIGALRM, &quiet, &before);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 20000; i++) {
        transport *from = i % 2 == 0 ? d : l, *to = i % 2 == 0 ? l : d;
        static uint32_t peer;
        const int word = i << 8 | 1; /* a head does not begin with a zero */
        buf *body      = buf_new(100);
        memset(body->data, i, 100);
        assert_int_equal(transport_send(from, i % 2 == 0 ? 0 : peer, &word, sizeof word, body),
                         PEN_OK);
        while (transport_recv(to, &event) != PEN_OK) rest(to);
        assert_int_equal(event.kind, TRANSPORT_MESSAGE);
        assert_memory_equal(event.head, &word, sizeof word);
        assert_int_equal(event.body->size, 100);
        assert_int_equal(((uint8_t *)event.body->data)[99], (uint8_t)i);
        buf_release(event.body);
        peer = i % 2 == 0 ? event.peer : peer;
    }
    often = (struct itimerval){0};
    setitimer(ITIMER_REAL, &often, NULL);
    sigaction(SIGALRM, &before, NULL);
    transport_close(d, 0);
    transport_close(l, 0);
}

/* ---- descriptors used again ------------------------------------------------------------------ */

typedef struct {
    transport *dialler;
    atomic_uint heard; /* of its messages, by the listener */
    atomic_bool stop;
} flood;

/* Always some thousand messages ahead of the reader. */
static void *pour(void *arg)
{
    flood *f      = arg;
    unsigned said = 0;
    while (!atomic_load(&f->stop)) {
        if (said - atomic_load(&f->heard) < 5000 &&
            transport_send(f->dialler, 0, "f", 1, NULL) == PEN_OK)
            said++;
        else
            sched_yield();
    }
    return NULL;
}

typedef struct {
    uint32_t number;
    int said, down;
} life;

static life *life_of(life *lives, int *n, uint32_t number)
{
    for (int i = *n; i-- > 0;)
        if (lives[i].number == number) return &lives[i];
    lives[*n] = (life){.number = number};
    return &lives[(*n)++];
}

/* Short lives, one after the other on the same descriptors, each with two messages; some by plain sockets that
 * never shake hands in between.  Every one that spoke must be heard twice, then go down, once. */
static void check_lives(bool is_flooded)
{
    enum { LIVES = 60 };
    transport *l = listen_anywhere();
    flood f      = {0};
    pthread_t thread;
    static life lives[4 * LIVES];
    int n = 0, down = 0, refused = 0;
    uint32_t flooder = 0;
    transport_event event;
    if (is_flooded) {
        f.dialler = dial_up(transport_address(l));
        say(f.dialler, 0, "flood");
        flooder = expect(l, TRANSPORT_MESSAGE).peer;
        pthread_create(&thread, NULL, pour, &f);
    }
    const uint64_t until = now_ms() + PATIENCE_MS;
    for (int started = 0; (down < LIVES || refused < LIVES / 3) && now_ms() < until;) {
        if (started < LIVES) {
            int fd = plain_connect(port_of(l));
            shake_hands(fd, "DEALER", "");
            plain_frame(fd, LAST, "one");
            plain_frame(fd, LAST, "two");
            shutdown(fd, SHUT_WR);
            is_closed_by_peer(fd, 2000);
            close(fd);
            if (started++ % 3 == 0) offend(l, &offences[1]);
        }
        for (int i = 0; i < 2000 && transport_recv(l, &event) == PEN_OK; i++) {
            buf_release(event.body);
            if (event.kind == TRANSPORT_MESSAGE && event.peer == flooder && is_flooded) {
                atomic_fetch_add(&f.heard, 1);
            } else if (event.kind == TRANSPORT_REFUSED) {
                refused++;
            } else {
                life *lf = life_of(lives, &n, event.peer);
                assert_int_equal(lf->down, 0); /* nothing comes after */
                if (event.kind == TRANSPORT_MESSAGE)
                    lf->said++;
                else
                    lf->down++, down++;
            }
        }
    }
    if (is_flooded) {
        atomic_store(&f.stop, true);
        pthread_join(thread, NULL);
    }
    assert_int_equal(n, LIVES);
    for (int i = 0; i < n; i++) assert_true(lives[i].said == 2 && lives[i].down == 1);
    assert_int_equal(refused, LIVES / 3);
    transport_close(f.dialler, 0);
    transport_close(l, 0);
}

static void test_transport_zmq_short_lives_each_end_once(void **state)
{
    (void)state;
    check_lives(false);
}

static void test_transport_zmq_short_lives_each_end_once_while_another_floods(void **state)
{
    (void)state;
    check_lives(true);
}

static void test_transport_zmq_end_is_told_within_a_second_while_another_floods(void **state)
{
    (void)state;
    transport *l = listen_anywhere(), *d = dial_up(transport_address(l));
    flood f = {.dialler = dial_up(transport_address(l))};
    pthread_t thread;
    transport_event event;
    say(d, 0, "hello");
    const uint32_t peer = expect(l, TRANSPORT_MESSAGE).peer;
    pthread_create(&thread, NULL, pour, &f);
    bool is_down = false;
    for (int i = 0; i < 20000; i++) /* let it rise */
        if (transport_recv(l, &event) == PEN_OK) atomic_fetch_add(&f.heard, 1);
    transport_close(d, 0);
    const uint64_t start_ms = now_ms();
    while (!is_down && now_ms() - start_ms < PATIENCE_MS) {
        if (transport_recv(l, &event) != PEN_OK) continue;
        if (event.kind == TRANSPORT_MESSAGE) atomic_fetch_add(&f.heard, 1);
        is_down = event.kind == TRANSPORT_DOWN && event.peer == peer;
    }
    assert_true(is_down);
    assert_true(now_ms() - start_ms < 1000);
    atomic_store(&f.stop, true);
    pthread_join(thread, NULL);
    transport_close(f.dialler, 0);
    transport_close(l, 0);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "peer") == 0) return run_peer(argv[2]);
    if (argc > 3 && strcmp(argv[1], "leave") == 0) return run_leaver(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transport_zmq_reports_every_stranger_once_and_serves_its_peers),
        cmocka_unit_test(test_transport_zmq_gives_no_memory_for_a_claim),
        cmocka_unit_test(test_transport_zmq_ends_who_claims_too_much_before_any_word),
        cmocka_unit_test(test_transport_zmq_refuses_a_peer_that_names_itself),
        cmocka_unit_test(test_transport_zmq_refuses_messages_of_three_frames_by_name),
        cmocka_unit_test(test_transport_zmq_ends_a_peer_that_claims_too_much),
        cmocka_unit_test(test_transport_zmq_port_0_becomes_a_real_port),
        cmocka_unit_test(test_transport_zmq_port_in_use_is_named),
        cmocka_unit_test(test_transport_zmq_listener_at_all_addresses_is_dialled_by_any),
        cmocka_unit_test(test_transport_zmq_speaks_ipv6),
        cmocka_unit_test(test_transport_zmq_nonsense_for_an_address_is_a_sentence),
        cmocka_unit_test(test_transport_zmq_dialler_outlives_a_stranger_at_its_address),
        cmocka_unit_test(test_transport_zmq_dialler_comes_back_after_a_breach_of_protocol),
        cmocka_unit_test(test_transport_zmq_killed_peer_is_down_within_a_second),
        cmocka_unit_test(test_transport_zmq_stopped_peer_is_down_by_heartbeat),
        cmocka_unit_test(test_transport_zmq_stopped_listener_is_down_for_its_dialler),
        cmocka_unit_test(test_transport_zmq_exit_waits_for_what_lingers_and_no_longer),
        cmocka_unit_test(test_transport_zmq_in_a_forked_child_is_wrong_state),
        cmocka_unit_test(test_transport_zmq_messages_stay_whole_under_signals),
        cmocka_unit_test(test_transport_zmq_short_lives_each_end_once),
        cmocka_unit_test(test_transport_zmq_short_lives_each_end_once_while_another_floods),
        cmocka_unit_test(test_transport_zmq_end_is_told_within_a_second_while_another_floods),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
