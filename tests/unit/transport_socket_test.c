/* transport_socket_test.c - plain sockets: addresses, other processes, and peers that lie. */
#include "transport_tools.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANYWHERE "socket://127.0.0.1:0"

enum { MIB = 1 << 20 };

static transport *listen_here(void)
{
    return listen_at(ANYWHERE, NULL);
}

/* ---- the protocol by hand ---------------------------------------------------------------------- */
static void put(int fd, const void *bytes, size_t size)
{
    assert_int_equal(send(fd, bytes, size, MSG_NOSIGNAL), size);
}

/* A message's frame and head; the body, if body_bytes is not negative, is the caller's to send. */
static size_t compose(uint8_t *to, const char *head, int64_t body_bytes)
{
    const uint64_t body    = body_bytes < 0 ? 0 : (uint64_t)body_bytes + 1;
    const uint32_t rest[2] = {(uint32_t)strlen(head), 0};
    memcpy(to, &body, sizeof body);
    memcpy(to + sizeof body, rest, sizeof rest);
    memcpy(to + 16, head, strlen(head));
    return 16 + strlen(head);
}

static int greeted(transport *l)
{
    const int fd = plain_connect(port_of(l));
    put(fd, "PENSOCK\1", 8);
    return fd;
}

static void put_message(int fd, const char *head, int64_t body_bytes)
{
    uint8_t bytes[256];
    put(fd, bytes, compose(bytes, head, body_bytes));
}

static void assert_refused(transport *l, const char *note)
{
    const transport_event event = expect(l, TRANSPORT_REFUSED);
    assert_string_equal(event.note, note);
}

/* Until the listener has closed this connection; its events are dropped. */
static bool closes_within(transport *l, int fd, uint64_t ms)
{
    transport_event event;
    char sink[256];
    for (const uint64_t until = now_ms() + ms; now_ms() < until;) {
        next(l, &event, 5);
        const ssize_t n = recv(fd, sink, sizeof sink, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return true;
    }
    return false;
}

static void assert_serves(transport *l)
{
    transport *d = dial(transport_address(l));
    transport_event event;
    while (transport_recv(d, &event) != PEN_OK) rest(d);
    say(d, 0, "served");
    do assert_true(next(l, &event, PATIENCE_MS));
    while (event.kind != TRANSPORT_MESSAGE);
    assert_memory_equal(event.head, "served", 6);
    transport_close(d, 0);
    do assert_true(next(l, &event, PATIENCE_MS));
    while (event.kind != TRANSPORT_DOWN);
}

static long resident_mib(void)
{
    long pages = 0;
    FILE *f    = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE) / MIB;
}

/* ---- addresses --------------------------------------------------------------------------------- */
static void
test_transport_socket_listener_at_all_addresses_is_dialled_by_name_and_number(void **state)
{
    (void)state;
    static const char *const names[] = {"localhost", "127.0.0.1"};
    transport *l                     = listen_at("socket://*:0", NULL);
    for (size_t i = 0; i < 2; i++) {
        char address[64];
        snprintf(address, sizeof address, "socket://%s:%d", names[i], port_of(l));
        transport *d = dial_up(address);
        say(d, 0, names[i]);
        assert_hears(l, names[i]);
        transport_close(d, 0);
        expect(l, TRANSPORT_DOWN);
    }
    transport_close(l, 0);
}

static void test_transport_socket_invalid_address_is_a_sentence(void **state)
{
    (void)state;
    static const char *const nonsense[] = {"socket://",
                                           "socket://localhost",
                                           "socket://localhost:",
                                           "socket://:80",
                                           "socket://127.0.0.1:99999",
                                           "socket://127.0.0.1:http",
                                           "socket://[::1:0",
                                           "socket://:::",
                                           "socket://a b:1"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        transport *t;
        pen_error why = {0};
        if (transport_listen(nonsense[i], NULL, &t, &why) == PEN_OK) fail_msg("%s", nonsense[i]);
        if (strstr(why.text, nonsense[i]) == NULL) fail_msg("%s: %s", nonsense[i], why.text);
        if (transport_dial(nonsense[i], NULL, &t, &why) == PEN_OK) fail_msg("%s", nonsense[i]);
        if (strstr(why.text, nonsense[i]) == NULL) fail_msg("%s: %s", nonsense[i], why.text);
    }
}

static void test_transport_socket_dialler_outlives_a_stranger_at_its_address(void **state)
{
    (void)state;
    char tcp[64], address[80];
    const int listening = plain_listen(tcp);
    snprintf(address, sizeof address, "socket://%s", tcp + 6);
    transport *d = dial_up(address);
    const int fd = accept(listening, NULL, NULL);
    plain_send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
    assert_refused(d, "a connection that does not speak the workers' protocol");
    expect(d, TRANSPORT_DOWN);
    close(fd);
    close(listening);
    assert_int_equal(transport_send(d, 0, "x", 1, NULL), PEN_AGAIN);

    transport *l = listen_at(address, NULL);
    transport_event event;
    do assert_true(next(d, &event, PATIENCE_MS));
    while (event.kind != TRANSPORT_UP);
    say(d, 0, "at last");
    assert_hears(l, "at last");
    transport_close(d, 0);
    transport_close(l, 0);
}

/* ---- framing ----------------------------------------------------------------------------------- */
static void test_transport_socket_messages_arrive_in_whatever_pieces(void **state)
{
    (void)state;
    transport *l = listen_here();
    const int fd = greeted(l);
    uint8_t one[64], many[100 * 64];
    transport_event event;
    size_t n = compose(one, "bit by bit", 4), all = 0;
    memcpy(one + n, "body", 4);
    for (size_t i = 0; i < n + 4; i++) {
        put(fd, one + i, 1);
        assert_int_equal(next(l, &event, 2), i == n + 3);
    }
    assert_int_equal(event.head_size, 10);
    for (int i = 0; i < 100; i++) all += compose(many + all, "all at once", -1);
    put(fd, many, all);
    for (int i = 0; i < 100; i++) assert_hears(l, "all at once");
    close(fd);
    expect(l, TRANSPORT_DOWN);
    transport_close(l, 0);
}

static void test_transport_socket_half_a_message_is_none(void **state)
{
    (void)state;
    transport *l = listen_here();
    const int fd = greeted(l);
    put_message(fd, "whole", -1);
    put_message(fd, "half", 1000);
    put(fd, "of the body", 11);
    assert_hears(l, "whole");
    close(fd);
    expect(l, TRANSPORT_DOWN);
    assert_serves(l);
    transport_close(l, 0);
}

static bool tells_of_parts(transport *l, uint64_t ms)
{
    transport_event event;
    for (const uint64_t until = now_ms() + ms; now_ms() < until; rest(l))
        if (transport_recv(l, &event) == PEN_AGAIN && event.has_moved) return true;
    return false;
}

/* Whoever waits for a message spins on then. */
static void test_transport_socket_parts_of_a_message_are_told_if_its_peer_is_known(void **state)
{
    (void)state;
    transport *l    = listen_here();
    const int known = greeted(l), stranger = greeted(l);
    put_message(known, "first", -1);
    assert_hears(l, "first");
    put_message(stranger, "half", 1000);
    put(stranger, "of the body", 11);
    assert_false(tells_of_parts(l, 100));
    put_message(known, "half", 1000);
    assert_true(tells_of_parts(l, PATIENCE_MS));
    close(known);
    close(stranger);
    transport_close(l, 0);
}

/* ---- places ------------------------------------------------------------------------------------ */
enum { LARGE = 200000 };
typedef struct {
    uint8_t memory[LARGE];
    uint32_t asked, peer;
} destination;

static void *to_destination(void *user, uint32_t peer, const void *head, size_t head_size,
                            uint64_t bytes, const void **owner)
{
    destination *d = user;
    d->asked++;
    d->peer = peer;
    *owner  = d;
    return head_size == 5 && memcmp(head, "place", 5) == 0 && bytes == LARGE ? d->memory : NULL;
}

/* A listener whose bodies go there, and a connection that has sent its first message. */
static transport *listen_for(destination *d, int *fd)
{
    const transport_options o = {.place = to_destination, .place_user = d};
    memset(d, 0, sizeof *d);
    transport *l = listen_at(ANYWHERE, &o);
    put_message(*fd = greeted(l), "first", -1);
    assert_hears(l, "first");
    return l;
}

/* Sends this part of the body, which is 0, 1, ... 250, 0, ..., and lets it arrive. */
/* Unless it is the last part, it is read into `place`, where it is waited for. */
static void put_body(transport *l, int fd, size_t from, size_t to, const uint8_t *place)
{
    uint8_t bytes[1000];
    transport_event event;
    while (from < to) {
        const size_t n = to - from < sizeof bytes ? to - from : sizeof bytes;
        for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)((from + i) % 251);
        put(fd, bytes, n);
        from += n;
    }
    const uint64_t until = now_ms() + PATIENCE_MS;
    while (place != NULL && place[to - 1] != (to - 1) % 251 && now_ms() < until)
        assert_false(next(l, &event, 20));
}

/* Its body is the caller's. */
static transport_event next_message(transport *l)
{
    transport_event event = {0};
    const uint64_t until  = now_ms() + PATIENCE_MS;
    while (transport_recv(l, &event) != PEN_OK && now_ms() < until) rest(l);
    assert_int_equal(event.kind, TRANSPORT_MESSAGE);
    assert_non_null(event.body);
    return event;
}

static void test_transport_socket_body_arrives_at_its_place(void **state)
{
    (void)state;
    static destination d;
    int fd;
    transport *l = listen_for(&d, &fd);
    put_message(fd, "place", LARGE);
    put_body(l, fd, 0, 500, d.memory);
    put_body(l, fd, 500, LARGE, NULL);
    const transport_event event = next_message(l);
    assert_true(event.is_placed);
    assert_ptr_equal(event.body->data, d.memory);
    assert_int_equal(event.body->size, LARGE);
    assert_int_equal(event.peer, d.peer);
    for (size_t i = 0; i < LARGE; i++) assert_int_equal(d.memory[i], i % 251);
    buf_release(event.body);
    put_message(fd, "other", LARGE);
    put_body(l, fd, 0, LARGE, NULL);
    const transport_event other = next_message(l);
    assert_false(other.is_placed);
    assert_int_equal(((uint8_t *)other.body->data)[1], 1);
    buf_release(other.body);
    assert_int_equal(d.asked, 2);
    close(fd);
    transport_close(l, 0);
}

static void test_transport_socket_withdrawn_place_is_written_no_more(void **state)
{
    (void)state;
    static destination d;
    int fd;
    transport *l = listen_for(&d, &fd);
    put_message(fd, "place", LARGE);
    put_body(l, fd, 0, LARGE / 2, d.memory);
    assert_int_equal(d.memory[LARGE / 2 - 1], (LARGE / 2 - 1) % 251);
    transport_unplace(l, &fd); /* of another owner */
    put_body(l, fd, LARGE / 2, LARGE - 1000, d.memory);
    assert_int_equal(d.memory[LARGE - 1001], (LARGE - 1001) % 251);
    transport_unplace(l, &d);
    memset(d.memory, 0, sizeof d.memory);
    put_body(l, fd, LARGE - 1000, LARGE, NULL);
    put_message(fd, "after", -1);
    assert_hears(l, "after");
    for (size_t i = 0; i < LARGE; i++) assert_int_equal(d.memory[i], 0);
    close(fd);
    expect(l, TRANSPORT_DOWN);
    transport_close(l, 0);
}

static void test_transport_socket_place_is_free_when_the_connection_ends(void **state)
{
    (void)state;
    static destination d;
    int fd;
    transport *l = listen_for(&d, &fd);
    put_message(fd, "place", LARGE);
    put_body(l, fd, 0, LARGE / 2, d.memory);
    close(fd);
    expect(l, TRANSPORT_DOWN);
    transport_unplace(l, &d);
    assert_serves(l);
    transport_close(l, 0);
}

static void test_transport_socket_stranger_has_no_place(void **state)
{
    (void)state;
    static destination d;
    const transport_options o = {.place = to_destination, .place_user = &d};
    memset(&d, 0, sizeof d);
    transport *l = listen_at(ANYWHERE, &o);
    const int fd = greeted(l);
    put_message(fd, "place", LARGE);
    put_body(l, fd, 0, LARGE, NULL);
    const transport_event event = next_message(l);
    assert_false(event.is_placed);
    assert_int_equal(d.asked, 0);
    buf_release(event.body);
    close(fd);
    transport_close(l, 0);
}

/* ---- liars ------------------------------------------------------------------------------------- */
static void
test_transport_socket_other_protocols_are_refused_and_named_by_their_address(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *note;
    } other[] = {
        {"GET / HTTP/1.1\r\n\r\n", 18, "a connection that does not speak the workers' protocol"},
        {"\xff\0\0\0\0\0\0\0\1\x7f\3", 11, TRANSPORT_DIFFERS},
        {"PENSOCK\2", 8, "a connection that does not speak the workers' protocol"}};
    transport *l = listen_here();
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        const int fd = plain_connect(port_of(l));
        put(fd, other[i].bytes, other[i].size);
        const transport_event event = expect(l, TRANSPORT_REFUSED);
        assert_string_equal(event.note, other[i].note);
        assert_int_equal(strncmp(event.from, "127.0.0.1:", 10), 0);
        assert_int_equal(event.peer, 0);
        assert_true(closes_within(l, fd, PATIENCE_MS));
        close(fd);
    }
    close(plain_connect(port_of(l)));
    assert_refused(l, "a connection that ended without a message");
    assert_serves(l);
    transport_close(l, 0);
}

static void test_transport_socket_claimed_size_costs_no_memory(void **state)
{
    (void)state;
    enum { LIARS = 40, CLAIMED = 64 * MIB };
    transport *l      = listen_here();
    const long before = resident_mib();
    int fd[LIARS];
    transport_event event;
    for (int i = 0; i < LIARS; i++) {
        put_message(fd[i] = greeted(l), "I am large", CLAIMED);
        assert_false(next(l, &event, 1));
    }
    assert_in_range(resident_mib() - before + 1, 0, 16);
    assert_serves(l);
    for (int i = 0; i < LIARS; i++) close(fd[i]);
    transport_close(l, 0);
}

static void test_transport_socket_claim_beyond_twice_the_limit_ends_the_connection(void **state)
{
    (void)state;
    const transport_options small = {.head_bytes_max = 100, .body_bytes_max = 1000};
    static const int64_t claims[] = {2002, (int64_t)1 << 40, INT64_MAX};
    transport *l                  = listen_at(ANYWHERE, &small);
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        const int fd = greeted(l);
        put_message(fd, "x", claims[i]);
        assert_refused(l, "a body that is too large");
        assert_true(closes_within(l, fd, PATIENCE_MS));
        close(fd);
    }
    static const uint8_t wrong[2][16] = {{[8] = 1, [15] = 1}, {0}};
    static const char *const notes[] = {"a frame that is no frame", "a message with an empty head"};
    for (int i = 0; i < 2; i++) {
        const int fd = greeted(l);
        put(fd, wrong[i], sizeof wrong[i]);
        assert_refused(l, notes[i]);
        assert_true(closes_within(l, fd, PATIENCE_MS));
        close(fd);
    }
    assert_serves(l);
    transport_close(l, 0);
}

static void test_transport_socket_peer_that_sends_nonsense_loses_its_connection(void **state)
{
    (void)state;
    const transport_options small = {.head_bytes_max = 8, .body_bytes_max = 8};
    transport *l                  = listen_at(ANYWHERE, &small);
    const int fd                  = greeted(l);
    put_message(fd, "hello", -1);
    const uint32_t peer = expect(l, TRANSPORT_MESSAGE).peer;
    transport_event event;
    for (int i = 0; i < TRANSPORT_BLAMES + 20; i++) {
        uint8_t bytes[64];
        plain_send(fd, bytes, compose(bytes, "a large head", -1));
    }
    do {
        assert_true(next(l, &event, PATIENCE_MS));
        assert_int_equal(event.peer, peer);
        assert_int_equal(event.kind, TRANSPORT_REFUSED);
    } while (strcmp(event.note, "too much that was refused: its connection was ended") != 0);
    assert_int_equal(expect(l, TRANSPORT_DOWN).peer, peer);
    assert_int_equal(transport_send(l, peer, "x", 1, NULL), PEN_PEER_LOST);
    close(fd);
    assert_serves(l);
    transport_close(l, 0);
}

static void test_transport_socket_silent_connection_is_ended(void **state)
{
    (void)state;
    const transport_options quick = {.heartbeat_ms = 400};
    transport *l                  = listen_at(ANYWHERE, &quick);
    const int fd                  = plain_connect(port_of(l));
    put(fd, "PEN", 3);
    assert_true(closes_within(l, fd, 4000));
    close(fd);
    assert_serves(l);
    transport_close(l, 0);
}

static void test_transport_socket_flood_of_silent_connections_evicts_only_its_own(void **state)
{
    (void)state;
    enum { MAX = 16, FLOOD = 60 };
    const transport_options few = {.connections_max = MAX};
    int fd[FLOOD];
    transport *l = listen_at(ANYWHERE, &few), *d = dial_up(transport_address(l));
    transport_event event;
    say(d, 0, "here first");
    assert_hears(l, "here first");
    for (int i = 0; i < FLOOD; i++) {
        fd[i] = i % 2 == 0 ? plain_connect(port_of(l)) : greeted(l);
        next(l, &event, 1);
    }
    assert_true(closes_within(l, fd[0], PATIENCE_MS));
    assert_true(closes_within(l, fd[FLOOD - MAX - 4], PATIENCE_MS));
    say(d, 0, "still here");
    do assert_true(next(l, &event, PATIENCE_MS));
    while (event.kind != TRANSPORT_MESSAGE);
    assert_memory_equal(event.head, "still here", 10);
    for (int i = 0; i < FLOOD; i++) close(fd[i]);
    transport_close(d, 0);
    transport_close(l, 0);
}

/* A process without descriptors serves whom it has, does not spin, and accepts again when there are some. */
static void test_transport_socket_lack_of_descriptors_ends_no_connection(void **state)
{
    (void)state;
    enum { MANY = 4096 };
    static int taken[MANY];
    int n        = 0;
    transport *l = listen_here(), *d = dial_up(transport_address(l));
    transport_event event;
    say(d, 0, "before");
    assert_hears(l, "before");
    struct sockaddr_in to = loopback(port_of(l));
    const int late        = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (n < MANY && (taken[n] = dup(late)) >= 0) n++;
    if (n < MANY) assert_int_equal(connect(late, (struct sockaddr *)&to, sizeof to), 0);
    int rounds = 0;
    for (const uint64_t until = now_ms() + 300; n < MANY && now_ms() < until; rounds++)
        next(l, &event, 0);
    assert_in_range(rounds, 0, 100);
    say(d, 0, "meanwhile");
    assert_hears(l, "meanwhile");
    for (int i = 0; i < n; i++) close(taken[i]);
    if (n < MANY) {
        put(late, "PENSOCK\1", 8);
        put_message(late, "after", -1);
        assert_hears(l, "after");
    }
    close(late);
    transport_close(d, 0);
    transport_close(l, 0);
}

/* ---- peers that do not read -------------------------------------------------------------------- */
static atomic_int left_here; /* bodies that have left the sender */

static void count_leaving(void *memory)
{
    (void)memory;
    atomic_fetch_add(&left_here, 1);
}

static void test_transport_socket_peer_that_does_not_read_loses_its_connection(void **state)
{
    (void)state;
    const transport_options o = {.queue_bytes_max = 4 * MIB};
    transport *l              = listen_at(ANYWHERE, &o);
    const int fd              = greeted(l);
    put_message(fd, "hello", -1);
    const uint32_t peer = expect(l, TRANSPORT_MESSAGE).peer;
    pen_status status   = PEN_OK;
    for (int i = 0; i < 100 && status == PEN_OK; i++) {
        buf *body = buf_new(MIB);
        status    = transport_send(l, peer, "x", 1, body);
        if (status != PEN_OK) buf_release(body);
    }
    assert_int_equal(status, PEN_PEER_LOST);
    assert_refused(l, "it does not read, and more than queue_bytes_max waits: ended");
    assert_int_equal(expect(l, TRANSPORT_DOWN).peer, peer);
    close(fd);
    assert_serves(l);
    transport_close(l, 0);
}

static void
test_transport_socket_what_waits_for_all_who_are_not_trusted_is_bounded_together(void **state)
{
    (void)state;
    enum { SILENT = 12, EACH_MIB = 12, BOUND_MIB = 32, TRUSTED_MIB = 64 };
    static uint8_t body[MIB];
    const transport_options o = {.observers_bytes_max = BOUND_MIB * MIB};
    transport *l              = listen_at(ANYWHERE, &o);
    int fd[SILENT + 1], sent = 0, told = 0;
    uint32_t peer[SILENT + 1];
    transport_event event;
    for (int i = 0; i <= SILENT; i++) {
        put_message(fd[i] = greeted(l), "hello", -1);
        peer[i] = expect(l, TRANSPORT_MESSAGE).peer;
    }
    transport_trust(l, peer[SILENT]);
    for (int n = 0; n < TRUSTED_MIB; n++)
        for (int i = 0; i <= SILENT; i++) {
            if (i < SILENT && n >= EACH_MIB) continue;
            buf *b = buf_wrap(body, MIB, count_leaving, body);
            if (transport_send(l, peer[i], "x", 1, b) != PEN_OK) buf_release(b);
            sent++;
        }
    while (next(l, &event, 50)) {
        if (event.kind != TRANSPORT_REFUSED) continue;
        told++;
        assert_int_not_equal(event.peer, peer[SILENT]);
        assert_string_equal(
            event.note, "it does not read, and too much waits for observers and strangers: ended");
    }
    assert_in_range(sent - atomic_load(&left_here), 1, BOUND_MIB + TRUSTED_MIB);
    assert_true(told > 0);
    assert_int_equal(transport_send(l, peer[SILENT], "you stay", 8, NULL), PEN_OK);
    for (int i = 0; i <= SILENT; i++) close(fd[i]);
    transport_close(l, 0);
}

/* ---- other processes --------------------------------------------------------------------------- */
/* "peer ADDRESS" says hello and waits to be killed; "leave ADDRESS" says it, sends 40 MiB, closes and exits. */
static int run_peer(const char *what, const char *address)
{
    transport *t = dial(address);
    transport_event event;
    while (transport_recv(t, &event) != PEN_OK || event.kind != TRANSPORT_UP) rest(t);
    say(t, 0, "hello");
    for (int i = 0; i < 40 && strcmp(what, "leave") == 0; i++)
        if (transport_send(t, 0, "x", 1, buf_new(MIB)) != PEN_OK) return 1;
    if (strcmp(what, "leave") == 0) {
        transport_close(t, 10000);
        return 0;
    }
    for (;;) pause();
}

static pid_t start(const char *what, const char *address)
{
    const pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "transport_socket_test", what, address, (char *)NULL);
        _exit(127);
    }
    assert_true(child > 0);
    return child;
}

static void test_transport_socket_killed_peer_is_down_at_once(void **state)
{
    (void)state;
    transport *l        = listen_here();
    const pid_t child   = start("peer", transport_address(l));
    const uint32_t peer = expect(l, TRANSPORT_MESSAGE).peer;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_int_equal(expect(l, TRANSPORT_DOWN).peer, peer);
    transport_close(l, 0);
}

static void test_transport_socket_exit_waits_for_what_has_not_left(void **state)
{
    (void)state;
    transport *l      = listen_here();
    const pid_t child = start("leave", transport_address(l));
    transport_event event;
    int status;
    assert_hears(l, "hello");
    poll(NULL, 0, 200); /* its kernel is full, and it has nothing to do but to end */
    for (int i = 0; i < 40; i++) expect(l, TRANSPORT_MESSAGE);
    expect(l, TRANSPORT_DOWN);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_false(next(l, &event, 10));
    transport_close(l, 0);
}

static void test_transport_socket_in_a_forked_child_is_wrong_state(void **state)
{
    (void)state;
    transport *l = listen_here(), *d = dial_up(transport_address(l));
    say(d, 0, "hello");
    const uint32_t peer = expect(l, TRANSPORT_MESSAGE).peer;
    assert_belong_to_the_parent(l, d, ANYWHERE);
    say(l, peer, "both ways");
    assert_hears(d, "both ways");
    transport_close(d, 0);
    transport_close(l, 0);
}

int main(int argc, char **argv)
{
    if (argc == 3) return run_peer(argv[1], argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_transport_socket_listener_at_all_addresses_is_dialled_by_name_and_number),
        cmocka_unit_test(test_transport_socket_invalid_address_is_a_sentence),
        cmocka_unit_test(test_transport_socket_dialler_outlives_a_stranger_at_its_address),
        cmocka_unit_test(test_transport_socket_messages_arrive_in_whatever_pieces),
        cmocka_unit_test(test_transport_socket_half_a_message_is_none),
        cmocka_unit_test(test_transport_socket_parts_of_a_message_are_told_if_its_peer_is_known),
        cmocka_unit_test(test_transport_socket_body_arrives_at_its_place),
        cmocka_unit_test(test_transport_socket_withdrawn_place_is_written_no_more),
        cmocka_unit_test(test_transport_socket_place_is_free_when_the_connection_ends),
        cmocka_unit_test(test_transport_socket_stranger_has_no_place),
        cmocka_unit_test(
            test_transport_socket_other_protocols_are_refused_and_named_by_their_address),
        cmocka_unit_test(test_transport_socket_claimed_size_costs_no_memory),
        cmocka_unit_test(test_transport_socket_claim_beyond_twice_the_limit_ends_the_connection),
        cmocka_unit_test(test_transport_socket_peer_that_sends_nonsense_loses_its_connection),
        cmocka_unit_test(test_transport_socket_silent_connection_is_ended),
        cmocka_unit_test(test_transport_socket_flood_of_silent_connections_evicts_only_its_own),
        cmocka_unit_test(test_transport_socket_lack_of_descriptors_ends_no_connection),
        cmocka_unit_test(test_transport_socket_peer_that_does_not_read_loses_its_connection),
        cmocka_unit_test(
            test_transport_socket_what_waits_for_all_who_are_not_trusted_is_bounded_together),
        cmocka_unit_test(test_transport_socket_killed_peer_is_down_at_once),
        cmocka_unit_test(test_transport_socket_exit_waits_for_what_has_not_left),
        cmocka_unit_test(test_transport_socket_in_a_forked_child_is_wrong_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
