/* progress_test.c - the phases of a step add up, and a report line is printed when due. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/io/progress.h"

#include <string.h>

enum { MS = 1000000 };

/* Two micro-batches of 3 ms forward and 5 ms backward, 4 ms of exchange, 1 ms between; begins at `at` ms. */
static uint64_t run_step(progress *p, uint64_t at)
{
    for (int micro = 0; micro < 2; micro++) {
        progress_enter(p, PROGRESS_FORWARD, (at + 0) * MS);
        progress_gradient(p, (at + 3) * MS);
        progress_gradient(p, (at + 4) * MS);
        at += 8;
    }
    progress_enter(p, PROGRESS_PS, at * MS);
    progress_enter(p, PROGRESS_OTHER, (at + 4) * MS);
    return at + 5;
}

static void test_a_report_line_is_printed_when_due_and_phases_add_up_to_the_step(void **state)
{
    (void)state;
    progress p = {.steps = 0};
    char text[300];
    uint64_t at = 7;
    for (int64_t i = 0; i < 8; i++) {
        const pen_step step = {.index     = i,
                               .lr        = 3e-4,
                               .grad_norm = 1.5,
                               .outcome   = i == 5 ? PEN_SKIPPED_NONFINITE : PEN_APPLIED};
        at                  = run_step(&p, at);
        text[0]             = '\0';
        assert_int_equal(progress_step(&p, &step, 4, true, text, sizeof text), i % 4 == 3);
        if (i == 7)
            assert_string_equal(text,
                                "step 8: rate 0.0003, norm 1.5, 47.62 steps/s, 1 skipped; ms a "
                                "step: forward 6, backward 10, exchange 4, other 1");
    }
}

static void test_without_report_every_no_line_is_printed(void **state)
{
    (void)state;
    progress p          = {.steps = 0};
    const pen_step step = {.index = 0};
    char text[300];
    assert_false(progress_step(&p, &step, 0, true, text, sizeof text));
}

static void test_times_are_left_out_unless_they_are_wanted(void **state)
{
    (void)state;
    progress p          = {.steps = 0};
    const pen_step step = {.index = 0, .outcome = PEN_APPLIED};
    char text[300];
    run_step(&p, 1);
    assert_true(progress_step(&p, &step, 1, false, text, sizeof text));
    assert_null(strstr(text, "forward"));
    assert_non_null(strstr(text, "step 1: rate 0"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_report_line_is_printed_when_due_and_phases_add_up_to_the_step),
        cmocka_unit_test(test_without_report_every_no_line_is_printed),
        cmocka_unit_test(test_times_are_left_out_unless_they_are_wanted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
