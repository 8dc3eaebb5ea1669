/* batch_plan_test.c - train_batch = micro_batch x accum x workers, given any of them. */
#include "worker/train/schedule/batch_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_batch_plan_calculates_missing_values(void **state)
{
    (void)state;
    static const struct {
        uint64_t world;
        batch_plan given, want;
    } rows[] = {
        {1, {524288, 16 * 1024, 0}, {524288, 16 * 1024, 32}}, /* as GPT-2's half a million tokens */
        {8, {524288, 16 * 1024, 0}, {524288, 16 * 1024, 4}},
        {4, {32, 0, 2}, {32, 4, 2}},
        {4, {0, 3, 2}, {24, 3, 2}},
        {4, {32, 4, 2}, {32, 4, 2}},
        {4, {32, 0, 0}, {32, 8, 1}},
        {4, {0, 3, 0}, {12, 3, 1}},
        {4, {0, 0, 5}, {0, 0, 5}},
        {4, {0, 0, 0}, {0, 0, 1}}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        batch_plan b = rows[i].given;
        pen_error why;
        if (batch_plan_resolve(&b, rows[i].world, &why) != PEN_OK) fail_msg("%s", why.text);
        assert_int_equal(b.train, rows[i].want.train);
        assert_int_equal(b.micro, rows[i].want.micro);
        assert_int_equal(b.accum, rows[i].want.accum);
    }
}

static void test_batch_plan_names_the_nearest_numbers_that_fit(void **state)
{
    (void)state;
    static const struct {
        uint64_t world;
        batch_plan given;
        const char *sentence;
    } rows[] = {
        {3,
         {524288, 16 * 1024, 0},
         "train_batch=524288 cannot be divided by micro_batch=16384 x 3 workers = 49152: set "
         "train_batch=491520 or 540672"},
        {4,
         {30, 0, 2},
         "train_batch=30 cannot be divided by accum=2 x 4 workers = 8: set train_batch=24 or 32"},
        {4,
         {30, 0, 0},
         "train_batch=30 cannot be divided by accum=1 x 4 workers = 4: set train_batch=28 or 32"},
        {4,
         {3, 0, 0},
         "train_batch=3 cannot be divided by accum=1 x 4 workers = 4: set train_batch=4"},
        {3,
         {32, 4, 2},
         "train_batch=32 contradicts micro_batch=4 x accum=2 x 3 workers = 24: set two of the "
         "three, or set train_batch=24"},
        {1,
         {1000000, 1, 0},
         "train_batch=1000000 in micro-batches of 1 on 1 worker is 1000000 micro-batches a step; "
         "at most 65536 are allowed: make micro_batch larger"},
        {1024,
         {0, UINT64_MAX / 1000, 7},
         "micro_batch x accum x workers does not fit in 64 bits: make micro_batch smaller"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        batch_plan b = rows[i].given;
        pen_error why;
        assert_int_equal(batch_plan_resolve(&b, rows[i].world, &why), PEN_BAD_SETTING);
        assert_string_equal(why.text, rows[i].sentence);
        assert_memory_equal(&b, &rows[i].given, sizeof b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_plan_calculates_missing_values),
        cmocka_unit_test(test_batch_plan_names_the_nearest_numbers_that_fit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
