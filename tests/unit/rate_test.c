/* rate_test.c - a burst at once, then a steady rate per second. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/rate.h"

static int taken(rate *r, int times, uint64_t now_ms)
{
    int n = 0;
    for (int i = 0; i < times; i++) n += rate_take(r, 8, 10, now_ms);
    return n;
}

static void test_rate_allows_a_burst_and_then_a_steady_rate_per_second(void **state)
{
    (void)state;
    rate r = {0};
    assert_int_equal(taken(&r, 20, 5000), 8);
    assert_int_equal(taken(&r, 20, 5050), 0);
    assert_int_equal(taken(&r, 20, 5100), 1);
    assert_int_equal(taken(&r, 20, 6100), 8); /* and no more than one burst */
    assert_int_equal(taken(&r, 20, UINT64_MAX / 100), 8);
}

static void test_rate_of_a_steady_asker_is_not_forgotten(void **state)
{
    (void)state;
    rate r = {0};
    int n  = 0;
    for (uint64_t ms = 1000; ms < 11000; ms++) n += rate_take(&r, 8, 10, ms);
    assert_in_range(n, 100, 110);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate_allows_a_burst_and_then_a_steady_rate_per_second),
        cmocka_unit_test(test_rate_of_a_steady_asker_is_not_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
