/* reach_test.c - the obstacle to a connection, in the system's words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/net/reach.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { NAME_MS = 60000 };

/* A port of this host; is_open: a listener is there. */
static int port_of(bool is_open, char *address, size_t size)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n           = sizeof at;
    const int fd          = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    if (is_open) assert_int_equal(listen(fd, 8), 0);
    snprintf(address, size, "tcp://127.0.0.1:%u", ntohs(at.sin_port));
    return fd;
}

/* The finding once the patience is over; NULL: nothing within a second. */
static const char *finding(reach *r, const char *address, uint64_t now_ms)
{
    const uint64_t end = clock_ms(&clock_real) + 1000;
    const char *words  = NULL;
    while (words == NULL && clock_ms(&clock_real) < end) {
        words = reach_look(r, address, now_ms);
        poll(NULL, 0, 5);
    }
    return words;
}

static void a_port_without_a_listener_is_reported_after_the_patience_and_not_before(void **state)
{
    (void)state;
    char address[64];
    reach r      = {0};
    const int fd = port_of(false, address, sizeof address);
    reach_begin(&r, NAME_MS, 1000);
    assert_null(finding(&r, address, 1000 + REACH_FIRST_MS - 1));
    assert_string_equal(finding(&r, address, 1000 + REACH_FIRST_MS), "connection refused");
    assert_null(reach_look(&r, address, 1000 + REACH_FIRST_MS));
    assert_string_equal(finding(&r, address, 1000 + REACH_FIRST_MS + REACH_AGAIN_MS),
                        "connection refused");
    reach_end(&r);
    close(fd);
}

static void a_slow_listener_is_no_obstacle_and_one_of_another_job_is(void **state)
{
    (void)state;
    char address[64];
    reach r      = {0};
    const int fd = port_of(true, address, sizeof address);
    reach_begin(&r, NAME_MS, 0);
    assert_null(finding(&r, address, REACH_FIRST_MS));
    reach_refused(&r, "the other end does not know this job's secret");
    assert_string_equal(finding(&r, address, REACH_FIRST_MS + REACH_AGAIN_MS),
                        "the other end does not know this job's secret");
    reach_end(&r);
    close(fd);
}

static void a_name_may_be_unknown_for_as_long_as_a_start_may_take(void **state)
{
    (void)state;
    reach r             = {0};
    const char *address = "tcp://there.is.no.such.host.invalid:4711";
    reach_begin(&r, NAME_MS, 0);
    assert_null(finding(&r, address, REACH_FIRST_MS));
    reach_begin(&r, NAME_MS, 0);
    r.due_ms = NAME_MS;
    for (int i = 0; i < 20 && r.words[0] == '\0'; i++) (void)finding(&r, address, NAME_MS);
    assert_string_equal(r.words, "its name does not resolve");
    reach_end(&r);
}

static void a_live_connection_is_not_probed_until_it_breaks(void **state)
{
    (void)state;
    char address[64];
    reach r      = {0};
    const int fd = port_of(false, address, sizeof address);
    assert_false(reach_is_missing(&r));
    reach_begin(&r, NAME_MS, 0);
    assert_true(reach_is_missing(&r));
    reach_up(&r);
    assert_false(reach_is_missing(&r));
    assert_null(finding(&r, address, 100000));
    reach_down(&r, 10000, 200000);
    assert_null(finding(&r, address, 209999));
    assert_string_equal(finding(&r, address, 210000), "connection refused");
    reach_end(&r);
    assert_false(reach_is_missing(&r));
    close(fd);
}

static void a_connection_without_acknowledgements_is_probed_while_it_is_up(void **state)
{
    (void)state;
    enum { LEASE_MS = 10000 };
    char address[64];
    reach r      = {0};
    const int fd = port_of(false, address, sizeof address);
    reach_begin(&r, NAME_MS, 0);
    reach_up(&r);
    reach_doubt(&r, LEASE_MS / 4 - 1, LEASE_MS, 100000);
    assert_false(reach_is_missing(&r));
    reach_doubt(&r, LEASE_MS / 4, LEASE_MS, 100000);
    assert_true(reach_is_missing(&r));
    assert_string_equal(finding(&r, address, 100000), "connection refused"); /* at once */
    reach_down(&r, 5000, 100100); /* and what follows does not wait again */
    assert_string_equal(finding(&r, address, 100100 + REACH_AGAIN_MS), "connection refused");

    reach_up(&r);
    reach_doubt(&r, LEASE_MS / 4, LEASE_MS, 200000);
    reach_doubt(&r, 0, LEASE_MS, 200001); /* it has acknowledged everything */
    assert_false(reach_is_missing(&r));
    assert_null(finding(&r, address, 300000));
    reach_end(&r);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_port_without_a_listener_is_reported_after_the_patience_and_not_before),
        cmocka_unit_test(a_slow_listener_is_no_obstacle_and_one_of_another_job_is),
        cmocka_unit_test(a_name_may_be_unknown_for_as_long_as_a_start_may_take),
        cmocka_unit_test(a_live_connection_is_not_probed_until_it_breaks),
        cmocka_unit_test(a_connection_without_acknowledgements_is_probed_while_it_is_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
