/* stat_test.c - named counters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/stat.h"

#include <pthread.h>
#include <string.h>

static void test_stat_every_row_has_its_own_name_a_unit_and_a_sentence(void **state)
{
    (void)state;
    for (int i = 0; i < STAT_COUNT; i++) {
        assert_int_equal(stat_find(stat_rows[i].name),
                         i); /* fails on the second of two equal names */
        assert_true(strlen(stat_rows[i].unit) > 0);
        assert_int_equal(stat_rows[i].doc[strlen(stat_rows[i].doc) - 1], '.');
    }
}

static void test_stat_find_refuses_an_unknown_name(void **state)
{
    (void)state;
    assert_int_equal(stat_find("push.gallons"), -1);
    assert_int_equal(stat_find(""), -1);
}

static void test_stat_add_max_and_store_touch_only_their_counter(void **state)
{
    (void)state;
    stat_set set = {0};
    stat_add(&set, STAT_RETRIES, 2);
    stat_add(&set, STAT_RETRIES, 3);
    stat_max(&set, STAT_GAP_MAX, 7);
    stat_max(&set, STAT_GAP_MAX, 4);
    stat_store(&set, STAT_PARKED_BYTES, 100);
    stat_store(&set, STAT_PARKED_BYTES, 60);
    for (int i = 0; i < STAT_COUNT; i++) {
        const uint64_t expected = i == STAT_RETRIES        ? 5
                                  : i == STAT_GAP_MAX      ? 7
                                  : i == STAT_PARKED_BYTES ? 60
                                                           : 0;
        assert_int_equal(stat_get(&set, (stat_id)i), expected);
    }
}

static void test_stat_hold_keeps_the_maximum_of_each_kind_and_of_all_together(void **state)
{
    (void)state;
    stat_set set = {0};
    stat_hold(&set, STAT_PARAM_BYTES, 100);
    stat_hold(&set, STAT_GRAD_BYTES, 70);
    stat_hold(&set, STAT_GRAD_BYTES, -60);
    stat_hold(&set, STAT_SLOT_BYTES, 30);
    assert_int_equal(stat_get(&set, STAT_GRAD_BYTES), 10);
    assert_int_equal(stat_get(&set, STAT_PARAM_PEAK), 100);
    assert_int_equal(stat_get(&set, STAT_GRAD_PEAK), 70);
    assert_int_equal(stat_get(&set, STAT_SLOT_PEAK), 30);
    assert_int_equal(stat_get(&set, STAT_MEMORY_PEAK), 170);
}

enum { THREADS = 4, ROUNDS = 20000 };

typedef struct {
    stat_set *set;
    uint64_t number;
} bumper;

static void *bump(void *user)
{
    const bumper *b = user;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        stat_add(b->set, STAT_PUSH_OPS, 1);
        stat_max(b->set, STAT_GAP_MAX, i * THREADS + b->number);
    }
    return NULL;
}

static void test_stat_loses_nothing_between_threads(void **state)
{
    (void)state;
    stat_set set = {0};
    pthread_t threads[THREADS];
    bumper bumpers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        bumpers[i] = (bumper){.set = &set, .number = (uint64_t)i};
        assert_int_equal(pthread_create(&threads[i], NULL, bump, &bumpers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(stat_get(&set, STAT_PUSH_OPS), THREADS * ROUNDS);
    assert_int_equal(stat_get(&set, STAT_GAP_MAX), THREADS * ROUNDS - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stat_every_row_has_its_own_name_a_unit_and_a_sentence),
        cmocka_unit_test(test_stat_find_refuses_an_unknown_name),
        cmocka_unit_test(test_stat_add_max_and_store_touch_only_their_counter),
        cmocka_unit_test(test_stat_hold_keeps_the_maximum_of_each_kind_and_of_all_together),
        cmocka_unit_test(test_stat_loses_nothing_between_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
