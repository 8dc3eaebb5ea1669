/* lr_schedule_test.c - the rates of every schedule, and what it refuses. */
#include "penstock.h"
#include "tests/support/golden_training.h"
#include "worker/train/schedule/lr_schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* A few roundings in double, relative to the highest rate. */
static const double tolerance = 1e-14;

static double compare(const golden_schedule *g)
{
    lr_schedule s;
    pen_error why;
    double most = 0, highest = 0;
    if (lr_schedule_parse(g->words, &s, &why) != PEN_OK) fail_msg("%s", why.text);
    for (int i = 0; i < GOLDEN_RATES; i++) highest = fmax(highest, g->rate[i]);
    for (int i = 0; i < GOLDEN_RATES; i++) {
        const double rate = lr_schedule_rate(&s, g->base, golden_applied[i]);
        const double off  = fabs(rate - g->rate[i]) / highest;
        if (!(off <= tolerance))
            fail_msg("%s: %.17g after %lld updates, and not %.17g", g->words, rate,
                     (long long)golden_applied[i], g->rate[i]);
        most = fmax(most, off);
    }
    return most;
}

static void test_schedules_give_the_golden_rates(void **state)
{
    (void)state;
    double most = 0;
    for (size_t i = 0; i < sizeof golden_schedules / sizeof golden_schedules[0]; i++)
        most = fmax(most, compare(&golden_schedules[i]));
    print_message("largest difference: %.2g, %.0f %% of the tolerance\n", most,
                  most / tolerance * 100);
}

static void test_schedules_have_golden_rates_all_of_them(void **state)
{
    (void)state;
    for (int r = 1; lr_rules[r] != NULL; r++) {
        size_t n = 0;
        for (size_t i = 0; i < sizeof golden_schedules / sizeof golden_schedules[0]; i++)
            n += strncmp(golden_schedules[i].words, lr_rules[r]->name, strlen(lr_rules[r]->name)) ==
                 0;
        if (n == 0) fail_msg("%s has none", lr_rules[r]->name);
    }
}

/* Step k of training uses the rate that pen_lr() gives after k - 1 updates. */
static void test_schedules_of_deepspeed_give_its_first_hundred_rates(void **state)
{
    (void)state;
    static const struct {
        int step;
        double log, linear;
    } rows[] = {{1, 0, 0},
                {2, 0, 0},
                {3, 3.0103e-4, 1e-4},
                {4, 4.77121e-4, 2e-4},
                {6, 6.9897e-4, 4e-4},
                {10, 9.54243e-4, 8e-4},
                {11, 1e-3, 9e-4},
                {12, 1e-3, 1e-3},
                {13, 9.88889e-4, 9.88889e-4},
                {57, 5e-4, 5e-4},
                {101, 1.1111e-5, 1.1111e-5},
                {102, 0, 0},
                {1000, 0, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double log, linear;
        assert_int_equal(
            pen_lr("WarmupDecayLR warmup_num_steps=10 total_num_steps=100", rows[i].step - 1, &log),
            PEN_OK);
        assert_int_equal(
            pen_lr("WarmupDecayLR warmup_num_steps=10 total_num_steps=100 warmup_type=linear",
                   rows[i].step - 1, &linear),
            PEN_OK);
        assert_true(fabs(log - rows[i].log) <= 5e-10); /* as many digits as possible */
        assert_true(fabs(linear - rows[i].linear) <= 5e-10);
    }
}

static void test_schedules_that_scale_a_rate_give_the_factor_without_one(void **state)
{
    (void)state;
    double lr;
    assert_int_equal(pen_lr(NULL, 3, &lr), PEN_OK);
    assert_true(lr == 1);
    assert_int_equal(pen_lr("constant lr=0.25", 3, &lr), PEN_OK);
    assert_true(lr == 0.25);
    assert_int_equal(pen_lr(" linear  total_num_steps=4", 3, &lr), PEN_OK);
    assert_true(lr == 0.25);
    assert_int_equal(pen_lr("linear total_num_steps=4", INT64_MAX, &lr), PEN_OK);
    assert_true(lr == 0);
}

static void refuses(const char *words, pen_status status, const char *sentence)
{
    lr_schedule s;
    pen_error why;
    double lr = 7;
    assert_int_equal(lr_schedule_parse(words, &s, &why), status);
    assert_string_equal(why.text, sentence);
    assert_int_equal(lr_schedule_parse(words, &s, NULL), status);
    assert_int_equal(pen_lr(words, 0, &lr), status);
    assert_string_equal(pen_last_error(NULL), sentence);
    assert_true(lr == 7);
}

static void test_schedules_refuse_unknown_words_and_missing_numbers(void **state)
{
    (void)state;
    refuses("cosin total_num_steps=4", PEN_BAD_SETTING,
            "schedule is 'cosin'; choose one of constant, cosine, linear, WarmupLR, WarmupDecayLR, "
            "WarmupCosineLR, OneCycle, LRRangeTest");
    refuses("WarmupLR warmup_num_step=4", PEN_BAD_SETTING,
            "WarmupLR: unknown setting 'warmup_num_step'; did you mean 'warmup_num_steps'?");
    refuses("WarmupDecayLR", PEN_BAD_SETTING,
            "WarmupDecayLR: missing total_num_steps; set total_num_steps=10000");
    refuses("OneCycle cycle_min_lr=1", PEN_BAD_SETTING,
            "OneCycle: missing cycle_min_lr or cycle_max_lr; set cycle_min_lr=1e-4 "
            "cycle_max_lr=1e-3");
    refuses("OneCycle cycle_min_lr=1 cycle_max_lr=2 cycle_momentum=true", PEN_UNSUPPORTED,
            "OneCycle: cycle_momentum=yes: schedules change rates only, not other numbers of an "
            "update rule; set cycle_momentum=no");
    double lr;
    assert_int_equal(pen_lr("constant", -1, &lr), PEN_INVALID_ARGUMENT);
    assert_int_equal(pen_lr("constant", 1, NULL), PEN_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules_give_the_golden_rates),
        cmocka_unit_test(test_schedules_have_golden_rates_all_of_them),
        cmocka_unit_test(test_schedules_of_deepspeed_give_its_first_hundred_rates),
        cmocka_unit_test(test_schedules_that_scale_a_rate_give_the_factor_without_one),
        cmocka_unit_test(test_schedules_refuse_unknown_words_and_missing_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
