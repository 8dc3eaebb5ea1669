/* own_address_test.c - the address under which a process is shown to others. */
#include "common/net/own_address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

static pen_status find(const char *given, const char *scheduler, own_address *own, pen_error *why)
{
    const own_address_query q = {
        .given = given, .scheduler = scheduler, .port = 7, .patience_ms = 300};
    return own_address_find(&q, own, why);
}

static void expect(const char *given, const char *scheduler, const char *host, const char *listen)
{
    own_address own;
    pen_error why = {0};
    assert_int_equal(find(given, scheduler, &own, &why), PEN_OK);
    assert_string_equal(own.host, host);
    assert_string_equal(own.listen, listen);
}

static void test_the_address_is_that_of_the_side_facing_the_scheduler(void **unused)
{
    (void)unused;
    expect("", "127.0.0.1", "127.0.0.1", "tcp://127.0.0.1:0");
    expect("", "localhost", "127.0.0.1", "tcp://127.0.0.1:0");
    expect("", "::1", "::1", "tcp://[::1]:0");
}

static void test_alone_or_with_a_whole_address_it_is_loopback(void **unused)
{
    (void)unused;
    expect("", "", "127.0.0.1", "tcp://127.0.0.1:0");
    expect(NULL, "inproc://x", "127.0.0.1", "tcp://127.0.0.1:0");
}

static void test_a_given_address_comes_first_and_the_socket_listens_everywhere(void **unused)
{
    (void)unused;
    expect("gate.example", "no such name", "gate.example", "tcp://*:0");
    expect("10.0.0.9", "127.0.0.1", "10.0.0.9", "tcp://*:0");
    expect("fd00::9", "127.0.0.1", "fd00::9", "tcp://*:0");
    expect("127.0.0.11", "127.0.0.1", "127.0.0.11", "tcp://127.0.0.1:0");
}

static void test_the_wildcard_address_is_not_shown_to_others(void **unused)
{
    (void)unused;
    expect("*", "127.0.0.1", "127.0.0.1", "tcp://127.0.0.1:0");
    expect("0.0.0.0", "127.0.0.1", "127.0.0.1", "tcp://127.0.0.1:0");
    expect("::", "127.0.0.1", "127.0.0.1", "tcp://127.0.0.1:0");
}

static void test_an_unresolved_name_is_an_error_that_names_it_and_never_loopback(void **unused)
{
    own_address own;
    pen_error why = {0};
    (void)unused;
    assert_int_equal(find("", "no such name", &own, &why), PEN_TIMED_OUT);
    assert_non_null(strstr(why.text, "'no such name', does not resolve after 0.3 s"));
}

static void test_others_see_the_host_and_the_listening_port(void **unused)
{
    own_address own = {.host = "node7"};
    char text[64];
    (void)unused;
    own_address_show(&own, "tcp://0.0.0.0:4711", text, sizeof text);
    assert_string_equal(text, "tcp://node7:4711");
    own_address_show(&own, "inproc://x", text, sizeof text);
    assert_string_equal(text, "inproc://x");
    own = (own_address){.host = "fd00::7"};
    own_address_show(&own, "tcp://[::]:4711", text, sizeof text);
    assert_string_equal(text, "tcp://[fd00::7]:4711");
}

static void test_an_unreachable_address_is_reported_with_the_systems_reason(void **unused)
{
    char host[64] = "as it was";
    (void)unused;
    const struct sockaddr_in nowhere = {.sin_family = AF_INET, .sin_port = htons(9)};
    const struct sockaddr odd        = {.sa_family = AF_UNSPEC};
    assert_int_not_equal(own_address_towards(&odd, sizeof odd, host, sizeof host), 0);
    assert_string_equal(host, "as it was");
    /* address 0 is this host */
    assert_int_equal(own_address_towards((const struct sockaddr *)(const void *)&nowhere,
                                         sizeof nowhere, host, sizeof host),
                     0);
    assert_string_equal(host, "127.0.0.1");
    assert_false(own_address_is_here("localhost"));
    assert_false(own_address_is_here("no such name"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_address_is_that_of_the_side_facing_the_scheduler),
        cmocka_unit_test(test_alone_or_with_a_whole_address_it_is_loopback),
        cmocka_unit_test(test_a_given_address_comes_first_and_the_socket_listens_everywhere),
        cmocka_unit_test(test_the_wildcard_address_is_not_shown_to_others),
        cmocka_unit_test(test_an_unresolved_name_is_an_error_that_names_it_and_never_loopback),
        cmocka_unit_test(test_others_see_the_host_and_the_listening_port),
        cmocka_unit_test(test_an_unreachable_address_is_reported_with_the_systems_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
