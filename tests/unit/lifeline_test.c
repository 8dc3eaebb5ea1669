/* lifeline_test.c - a connection that is renewed by a second one, over real sockets. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/lifeline.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { WAIT_MS = 20000 };

typedef struct {
    transport *listener;
    lifeline *line;
    int ups, downs;
    uint32_t peer;  /* that delivered the last message */
    uint32_t ended; /* the last peer that disconnected */
    char text[32];
} world;

static void hear(world *w)
{
    transport_event e;
    while (transport_recv(w->listener, &e) == PEN_OK) {
        if (e.kind == TRANSPORT_DOWN) w->ended = e.peer;
        if (e.kind != TRANSPORT_MESSAGE) continue;
        snprintf(w->text, sizeof w->text, "%.*s", (int)e.head_size, (const char *)e.head);
        w->peer = e.peer;
        buf_release(e.body);
    }
    while (lifeline_recv(w->line, &e) == PEN_OK) {
        w->ups += e.kind == TRANSPORT_UP;
        w->downs += e.kind == TRANSPORT_DOWN;
        if (e.kind == TRANSPORT_MESSAGE) buf_release(e.body);
    }
}

static void wait_ms(int ms)
{
    const struct timespec t = {.tv_nsec = ms * 1000000L};
    nanosleep(&t, NULL);
}

#define UNTIL(w, condition)                                                                        \
    do {                                                                                           \
        const uint64_t begun = clock_ms(&clock_real);                                              \
        for (hear(w); !(condition); hear(w), wait_ms(1))                                           \
            assert_true(clock_ms(&clock_real) - begun < WAIT_MS);                                  \
    } while (0)

static void say(world *w, const char *text)
{
    assert_int_equal(lifeline_send(w->line, text, strlen(text), NULL), PEN_OK);
}

static int open_world(void **state)
{
    static world w;
    pen_error why;
    w = (world){0};
    assert_int_equal(transport_listen("tcp://127.0.0.1:0", NULL, &w.listener, &why), PEN_OK);
    assert_int_equal(lifeline_dial(transport_address(w.listener), NULL, &w.line, &why), PEN_OK);
    UNTIL(&w, w.ups == 1);
    say(&w, "first");
    UNTIL(&w, strcmp(w.text, "first") == 0);
    *state = &w;
    return 0;
}

static int close_world(void **state)
{
    world *w = *state;
    lifeline_close(w->line, 0);
    transport_close(w->listener, 0);
    return 0;
}

static void test_lifeline_uses_the_old_connection_until_the_new_one_is_up(void **state)
{
    world *w             = *state;
    const uint32_t first = w->peer;
    lifeline_renew(w->line);
    say(w, "meanwhile");
    assert_int_equal(w->ups, 1);
    UNTIL(w, strcmp(w->text, "meanwhile") == 0);
    assert_int_equal(w->peer, first);
}

static void test_lifeline_renewal_reports_no_down_here_and_one_at_the_other_end(void **state)
{
    world *w             = *state;
    const uint32_t first = w->peer;
    lifeline_renew(w->line);
    lifeline_renew(w->line); /* a renewal is in progress: no other */
    UNTIL(w, w->ups == 2);
    assert_int_equal(w->downs, 0);
    say(w, "second");
    UNTIL(w, strcmp(w->text, "second") == 0);
    assert_int_not_equal(w->peer, first);
    UNTIL(w, w->ended == first);
    assert_int_equal(w->ups, 2);
}

static void test_lifeline_can_be_renewed_any_number_of_times(void **state)
{
    world *w = *state;
    for (int i = 2; i < 6; i++) {
        lifeline_renew(w->line);
        UNTIL(w, w->ups == i);
    }
    say(w, "last");
    UNTIL(w, strcmp(w->text, "last") == 0);
    assert_int_equal(w->downs, 0);
}

static void test_lifeline_keeps_its_descriptor(void **state)
{
    world *w     = *state;
    const int fd = lifeline_poll_fd(w->line);
    assert_true(fd >= 0);
    lifeline_renew(w->line);
    UNTIL(w, w->ups == 2);
    assert_int_equal(lifeline_poll_fd(w->line), fd);
}

static void test_lifeline_reports_a_bad_address_like_transport_dial(void **state)
{
    (void)state;
    lifeline *line = NULL;
    pen_error why;
    assert_int_equal(lifeline_dial("nonsense", NULL, &line, &why), PEN_INVALID_ARGUMENT);
    assert_string_equal(why.text, "invalid address 'nonsense'; expected tcp://HOST:PORT");
    assert_null(line);
}

/* A listener that accepts and never answers, as an address of a host that has gone does. */
static void test_lifeline_replaces_a_renewal_that_hangs(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size        = sizeof at;
    const int fd          = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    char address[64];
    int accepted[8], n = 0;
    lifeline *line;
    pen_error why;
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    snprintf(address, sizeof address, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    const transport_options patient = lifeline_options(60000);
    assert_int_equal(lifeline_dial(address, &patient, &line, &why), PEN_OK);
    const uint64_t begun = clock_ms(&clock_real);
    while (n < 3) { /* the connection, its renewal, and the one that replaced it */
        lifeline_renew(line);
        const int one = accept(fd, NULL, NULL);
        if (one >= 0) accepted[n++] = one;
        if (one < 0) wait_ms(1);
        assert_true(clock_ms(&clock_real) - begun < WAIT_MS);
    }
    assert_true(clock_ms(&clock_real) - begun >= 900);
    lifeline_close(line, 0);
    while (n > 0) close(accepted[--n]);
    close(fd);
}

/* ---- silent hosts and processes ------------------------------------------------------------------ */
static void take_line(int level, const char *text, void *user)
{
    (void)level;
    snprintf(user, 256, "%s", text);
}

static void watch(lifeline *line, uint64_t silent_ms)
{
    lifeline_watch(line, silent_ms, 10000, "worker 1 (b)", "the scheduler at a:29500", "look there",
                   clock_ms(&clock_real));
}

static void test_lifeline_reports_once_why_a_silent_host_is_unreachable(void **state)
{
    (void)state;
    lifeline *line;
    char said[256] = "";
    /* no route leads to this address */
    assert_int_equal(lifeline_dial("tcp://255.255.255.255:9", NULL, &line, NULL), PEN_OK);
    pen_log_set(take_line, said, LOG_NOTICE);
    watch(line, 0);
    watch(line, 4999);
    wait_ms(20);
    watch(line, 4999);
    assert_string_equal(said, "");
    const uint64_t begun = clock_ms(&clock_real);
    for (; said[0] == 0; wait_ms(1), watch(line, 5000))
        assert_true(clock_ms(&clock_real) - begun < WAIT_MS);
    const char *const about = "worker 1 (b) cannot reach the scheduler at a:29500: ";
    assert_memory_equal(said, about, strlen(about));
    assert_non_null(strstr(said, "; look there"));
    said[0] = 0;
    for (int i = 0; i < 400; i++, wait_ms(1)) watch(line, 6000);
    assert_string_equal(said, "");
    watch(line, 10);
    assert_string_equal(said, "worker 1 (b) reaches the scheduler at a:29500 again");
    pen_log_set(NULL, NULL, LOG_NOTICE);
    lifeline_close(line, 0);
}

static void
test_lifeline_reports_nothing_about_a_silent_process_on_a_host_that_answers(void **state)
{
    world *w       = *state;
    char said[256] = "";
    pen_log_set(take_line, said, LOG_NOTICE);
    for (int i = 0; i < 400; i++, wait_ms(1)) watch(w->line, 6000);
    watch(w->line, 0);
    pen_log_set(NULL, NULL, LOG_NOTICE);
    assert_string_equal(said, "");
}

static void test_lifeline_options_fit_attempts_into_a_lease_and_leave_silence_to_it(void **state)
{
    (void)state;
    for (uint64_t lease_ms = 2000; lease_ms <= 600000; lease_ms += 500) {
        const transport_options o = lifeline_options(lease_ms);
        assert_true(5 * ((uint64_t)o.connect_ms + o.reconnect_ms_max) <= lease_ms);
        assert_in_range(o.connect_ms, 200, 1000);
        assert_true(3 * (uint64_t)o.heartbeat_ms > lease_ms);
    }
}

int main(void)
{
#define IN_WORLD(test) cmocka_unit_test_setup_teardown(test, open_world, close_world)
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_lifeline_uses_the_old_connection_until_the_new_one_is_up),
        IN_WORLD(test_lifeline_renewal_reports_no_down_here_and_one_at_the_other_end),
        IN_WORLD(test_lifeline_can_be_renewed_any_number_of_times),
        IN_WORLD(test_lifeline_keeps_its_descriptor),
        cmocka_unit_test(test_lifeline_replaces_a_renewal_that_hangs),
        cmocka_unit_test(test_lifeline_reports_once_why_a_silent_host_is_unreachable),
        IN_WORLD(test_lifeline_reports_nothing_about_a_silent_process_on_a_host_that_answers),
        cmocka_unit_test(test_lifeline_options_fit_attempts_into_a_lease_and_leave_silence_to_it),
        cmocka_unit_test(test_lifeline_reports_a_bad_address_like_transport_dial),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
