/* tcp_address_test.c - host addresses as people write them. */
#include "common/net/tcp_address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void expect(const char *host, const char *address)
{
    char text[64];
    tcp_address_format(host, 29500, text, sizeof text);
    assert_string_equal(text, address);
}

static void test_an_ipv6_number_gets_brackets_with_or_without_them_in_the_input(void **state)
{
    (void)state;
    expect("fd79::1", "tcp://[fd79::1]:29500");
    expect("[fd79::1]", "tcp://[fd79::1]:29500");
    expect("fe80::1%eth0", "tcp://[fe80::1%eth0]:29500");
    expect("::", "tcp://[::]:29500");
}

static void test_all_else_stays_as_it_is(void **state)
{
    (void)state;
    expect("node0", "tcp://node0:29500");
    expect("10.0.0.1", "tcp://10.0.0.1:29500");
    expect("*", "tcp://*:29500");
    expect("inproc://x", "inproc://x");
}

static void test_text_that_does_not_fit_is_truncated(void **state)
{
    (void)state;
    char text[8];
    tcp_address_format("fd79::1", 29500, text, sizeof text);
    assert_string_equal(text, "tcp://[");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_ipv6_number_gets_brackets_with_or_without_them_in_the_input),
        cmocka_unit_test(test_all_else_stays_as_it_is),
        cmocka_unit_test(test_text_that_does_not_fit_is_truncated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
