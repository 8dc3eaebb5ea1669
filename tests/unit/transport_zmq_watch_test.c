/* transport_zmq_watch_test.c - strangers, and reused descriptors. */
#include "transport_tools.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

/* ---- tools ----------------------------------------------------------------------------------- */
static void expect_quiet(transport *t)
{
    transport_event event;
    if (next(t, &event, QUIET_MS))
        fail_msg("event %d ('%s') instead of none", event.kind, event.note);
}

/* ---- the protocol of ZeroMQ by hand ---------------------------------------------------------- */
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
    is_closed_by_peer(fd, 20); /* some wait for more; then the client closes */
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
static void test_transport_zmq_allocates_nothing_for_a_claimed_size(void **state)
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

static void
test_transport_zmq_ends_a_peer_that_claims_too_much_before_its_first_message(void **state)
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
    assert_string_equal(event.note, "a peer that chose its own id");
    assert_int_equal(event.peer, 0);
    close(fd);
    expect_quiet(l); /* it is not a peer, so it is not down either */
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

/* A peer that spoke, then claims too much, ends with one DOWN, after its earlier messages. */
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

/* ---- reused descriptors ---------------------------------------------------------------------- */
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
 * never shake hands in between.  Each that spoke must be received twice, then go down, once. */
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
                assert_int_equal(lf->down, 0); /* nothing follows */
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

static void test_transport_zmq_end_is_reported_within_a_second_while_another_floods(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transport_zmq_reports_every_stranger_once_and_serves_its_peers),
        cmocka_unit_test(test_transport_zmq_allocates_nothing_for_a_claimed_size),
        cmocka_unit_test(
            test_transport_zmq_ends_a_peer_that_claims_too_much_before_its_first_message),
        cmocka_unit_test(test_transport_zmq_refuses_a_peer_that_names_itself),
        cmocka_unit_test(test_transport_zmq_refuses_messages_of_three_frames_by_name),
        cmocka_unit_test(test_transport_zmq_ends_a_peer_that_claims_too_much),
        cmocka_unit_test(test_transport_zmq_short_lives_each_end_once),
        cmocka_unit_test(test_transport_zmq_short_lives_each_end_once_while_another_floods),
        cmocka_unit_test(test_transport_zmq_end_is_reported_within_a_second_while_another_floods),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
