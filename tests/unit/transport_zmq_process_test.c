/* transport_zmq_process_test.c - peers in other processes: killed, stopped, forked, interrupted by signals. */
#include "transport_tools.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- other processes ------------------------------------------------------------------------- */
/* This program again, as a peer: "peer ADDRESS" sends hello and answers until it is killed. */
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

/* "leave ADDRESS MS" queues messages that no peer reads, closes and exits. */
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

/* The number that a listener of a new process gives to its first peer. */
static uint32_t first_number_of_a_process(void)
{
    int ends[2];
    uint32_t number = 0;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        transport *l = listen_anywhere(), *d = dial_up(transport_address(l));
        say(d, 0, "hello");
        number = expect(l, TRANSPORT_MESSAGE).peer;
        _exit(write(ends[1], &number, sizeof number) != sizeof number);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &number, sizeof number), sizeof number);
    close(ends[0]);
    waitpid(child, NULL, 0);
    return number;
}

/* libzmq's own would be 0x6b8b4567 in every process; whoever knows it can end the process (docs/design/security.md). */
static void test_transport_zmq_numbers_of_peers_are_not_those_of_another_process(void **state)
{
    (void)state;
    const uint32_t a = first_number_of_a_process(), b = first_number_of_a_process();
    assert_true(a - b > 1000 && b - a > 1000);
    assert_true(a - 0x6b8b4567u > 1000 && b - 0x6b8b4567u > 1000);
}

static void test_transport_zmq_leaves_the_programs_random_sequence_alone(void **state)
{
    (void)state;
    srand(7);
    const int first = rand(), second = rand();
    srand(7);
    assert_int_equal(rand(), first);
    transport_close(listen_anywhere(), 0);
    assert_int_equal(rand(), second);
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

/* After three silent heartbeats it is down; when it wakes it connects as a new peer. */
static void test_transport_zmq_stopped_peer_is_down_by_heartbeat(void **state)
{
    (void)state;
    const transport_options quick = {.heartbeat_ms = 200};
    transport *l                  = listen_at("tcp://127.0.0.1:0", &quick);
    const pid_t child             = start("peer", transport_address(l), NULL);
    const uint32_t peer           = expect(l, TRANSPORT_MESSAGE).peer;
    transport_event event;
    assert_false(next(l, &event, 1200)); /* silence without a stop is not death */
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

static void test_transport_zmq_exit_waits_for_lingering_messages_only(void **state)
{
    (void)state;
    transport *l            = listen_anywhere();
    const pid_t child       = start("leave", transport_address(l), "300");
    const uint64_t start_ms = now_ms();
    int status, ended = 0;
    while (ended == 0 && now_ms() - start_ms < PATIENCE_MS) { /* the peer does not read */
        ended = waitpid(child, &status, WNOHANG);
        poll(NULL, 0, 5);
    }
    if (ended == 0) end(child);
    assert_int_equal(ended, child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    transport_close(l, 0);
}

static atomic_int released;

static void count_release(void *memory)
{
    (void)memory;
    atomic_fetch_add(&released, 1);
}

/* ZeroMQ's own way to linger aborts the process here: transport_zmq_linger.c. */
static void test_transport_zmq_closes_beside_a_peer_that_sends_unread_and_breaks(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20, BODIES = 64, HEARTBEAT_MS = 100 };
    static uint8_t bytes[BYTES];
    transport *other =
                  listen_anywhere(), /* the last endpoint of a process waits for what lingers */
        *l = listen_at("tcp://127.0.0.1:0", &(transport_options){.heartbeat_ms = HEARTBEAT_MS});
    const int fd = plain_connect(port_of(l));
    shake_hands(fd, "DEALER", "");
    plain_send(fd, "\x00\x05hello", 7);
    const uint32_t peer = expect(l, TRANSPORT_MESSAGE).peer;
    atomic_store(&released, 0);
    for (int i = 0; i < BODIES; i++) {
        buf *body = buf_wrap(bytes, BYTES, count_release, bytes);
        assert_int_equal(transport_send(l, peer, "x", 1, body), PEN_OK);
    }
    transport_close(l, 2000);
    poll(NULL, 0, 20);
    assert_in_range(atomic_load(&released), 0, BODIES - 1); /* it lingers */
    plain_send(fd, "\x00\x05hello", 7);
    poll(NULL, 0, 20);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
    close(fd); /* a reset */
    poll(NULL, 0, 2 * HEARTBEAT_MS);
    const uint64_t until = now_ms() + PATIENCE_MS;
    while (atomic_load(&released) < BODIES && now_ms() < until) poll(NULL, 0, 1);
    assert_int_equal(atomic_load(&released), BODIES);
    transport_close(other, 0);
}

static void test_transport_zmq_in_a_forked_child_is_wrong_state(void **state)
{
    (void)state;
    transport *l = listen_anywhere(), *d = dial_up(transport_address(l));
    assert_belong_to_the_parent(l, d, NULL);
    transport_close(d, 0);
    transport_close(l, 0);
}

/* ---- signals --------------------------------------------------------------------------------- */
static void ignore_signal(int number)
{
    (void)number;
}

/* A profiler's timer interrupts ZeroMQ in the middle of messages; none may be truncated. */
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

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "peer") == 0) return run_peer(argv[2]);
    if (argc > 3 && strcmp(argv[1], "leave") == 0) return run_leaver(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transport_zmq_numbers_of_peers_are_not_those_of_another_process),
        cmocka_unit_test(test_transport_zmq_leaves_the_programs_random_sequence_alone),
        cmocka_unit_test(test_transport_zmq_killed_peer_is_down_within_a_second),
        cmocka_unit_test(test_transport_zmq_stopped_peer_is_down_by_heartbeat),
        cmocka_unit_test(test_transport_zmq_stopped_listener_is_down_for_its_dialler),
        cmocka_unit_test(test_transport_zmq_exit_waits_for_lingering_messages_only),
        cmocka_unit_test(test_transport_zmq_closes_beside_a_peer_that_sends_unread_and_breaks),
        cmocka_unit_test(test_transport_zmq_in_a_forked_child_is_wrong_state),
        cmocka_unit_test(test_transport_zmq_messages_stay_whole_under_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
