/* scheduler_settings_test.c - every row of the scheduler's settings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "scheduler/core/scheduler_settings.h"
#include "tests/support/settings_walk.h"

static void test_scheduler_settings_keep_the_rules_of_tables(void **state)
{
    (void)state;
    settings_walk(scheduler_settings_rows, sizeof(scheduler_settings));
}

static void test_scheduler_settings_have_the_promised_time_outs(void **state)
{
    (void)state;
    scheduler_settings s;
    config_defaults(scheduler_settings_rows, &s);
    assert_int_equal(s.lease_ms, 10000);
    assert_int_equal(s.down_grace_ms, 1000);
    assert_int_equal(s.init_timeout_ms, 300000);
    assert_int_equal(s.on_worker_loss, LOSS_FAIL);
    assert_int_equal(s.wait_ms, 300000);
    assert_int_equal(s.grace_ms, 60000);
    assert_int_equal(s.replicas, 0);
    assert_string_equal(s.state, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scheduler_settings_keep_the_rules_of_tables),
        cmocka_unit_test(test_scheduler_settings_have_the_promised_time_outs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
