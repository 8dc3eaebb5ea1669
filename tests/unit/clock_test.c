/* clock_test.c - real and simulated time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/clock_simulated.h"

#include <time.h>

static void test_clock_real_is_the_monotonic_clock(void **state)
{
    (void)state;
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    const uint64_t now = clock_ns(&clock_real);
    clock_gettime(CLOCK_MONOTONIC, &after);
    assert_true(now >= (uint64_t)before.tv_sec * 1000000000u + (uint64_t)before.tv_nsec);
    assert_true(now <= (uint64_t)after.tv_sec * 1000000000u + (uint64_t)after.tv_nsec);
}

static void test_clock_simulated_moves_only_when_its_owner_says(void **state)
{
    (void)state;
    clock_simulated clock = clock_simulated_at(5000000);
    assert_int_equal(clock_ns(&clock.source), 5000000);
    assert_int_equal(clock_ns(&clock.source), 5000000);
    clock.ns += 1999999;
    assert_int_equal(clock_ns(&clock.source), 6999999);
}

static void test_clock_ms_rounds_down(void **state)
{
    (void)state;
    clock_simulated clock = clock_simulated_at(1999999);
    assert_int_equal(clock_ms(&clock.source), 1);
    clock.ns++;
    assert_int_equal(clock_ms(&clock.source), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clock_real_is_the_monotonic_clock),
        cmocka_unit_test(test_clock_simulated_moves_only_when_its_owner_says),
        cmocka_unit_test(test_clock_ms_rounds_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
