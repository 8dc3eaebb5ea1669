/* api_store_test.c - the key-value store of a program that runs alone. */
#include "penstock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <unistd.h>

static pen_ctx *ctx;

static int set_up(void **state)
{
    (void)state;
    alarm(200);
    unsetenv("RANK");
    return pen_init((const char *const[]){"log_level=error", NULL}, &ctx) == PEN_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return pen_finalize(ctx) == PEN_OK ? 0 : -1;
}

static void a_get_returns_the_bytes_of_the_last_set(void **state)
{
    (void)state;
    pen_bytes got = {0};
    assert_int_equal(pen_store_set(ctx, "a", "one", 3), PEN_OK);
    assert_int_equal(pen_store_set(ctx, "a", "three", 5), PEN_OK);
    assert_int_equal(pen_store_get(ctx, "a", &got, NULL), PEN_OK);
    assert_int_equal(got.size, 5);
    assert_memory_equal(got.data, "three", 5);
    pen_free(got.data);
    assert_int_equal(pen_store_set(ctx, "a", NULL, 0), PEN_OK);
    assert_int_equal(pen_store_get(ctx, "a", &got, NULL), PEN_OK);
    assert_int_equal(got.size, 0);
    pen_free(got.data);
}

static void a_counter_counts_from_0(void **state)
{
    (void)state;
    int64_t value = 0;
    assert_int_equal(pen_store_add(ctx, "n", 2, &value), PEN_OK);
    assert_int_equal(value, 2);
    assert_int_equal(pen_store_add(ctx, "n", -5, NULL), PEN_OK);
    assert_int_equal(pen_store_add(ctx, "n", 0, &value), PEN_OK);
    assert_int_equal(value, -3);
    assert_int_equal(pen_store_set(ctx, "text", "three", 5), PEN_OK);
    assert_int_equal(pen_store_add(ctx, "text", 1, &value), PEN_MISMATCH);
}

static void a_get_gives_up_at_its_deadline(void **state)
{
    (void)state;
    pen_bytes got;
    const pen_opts soon = {.deadline_ms = 30};
    assert_int_equal(pen_store_get(ctx, "never", &got, &soon), PEN_TIMED_OUT);
    assert_string_equal(pen_last_error(NULL), "pen_store_get: no value for 'never' within 0.03 s");
}

static void *set_later(void *user)
{
    (void)user;
    return pen_store_set(ctx, "later", "x", 1) == PEN_OK ? ctx : NULL;
}

static void a_get_waits_for_another_thread(void **state)
{
    (void)state;
    pthread_t thread;
    void *result;
    pen_bytes got;
    const pen_opts patient = {.deadline_ms = 20000};
    assert_int_equal(pthread_create(&thread, NULL, set_later, NULL), 0);
    assert_int_equal(pen_store_get(ctx, "later", &got, &patient), PEN_OK);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_non_null(result);
    assert_memory_equal(got.data, "x", 1);
    pen_free(got.data);
}

static void invalid_input_is_refused(void **state)
{
    (void)state;
    char key[600];
    int64_t value;
    pen_bytes got;
    memset(key, 'k', sizeof key);
    key[sizeof key - 1] = '\0';
    assert_int_equal(pen_store_set(NULL, "a", "x", 1), PEN_INVALID_ARGUMENT);
    assert_int_equal(pen_store_set(ctx, NULL, "x", 1), PEN_INVALID_ARGUMENT);
    assert_int_equal(pen_store_set(ctx, "", "x", 1), PEN_INVALID_ARGUMENT);
    assert_int_equal(pen_store_set(ctx, key, "x", 1), PEN_INVALID_ARGUMENT);
    assert_int_equal(pen_store_set(ctx, "a\nb", "x", 1), PEN_INVALID_ARGUMENT);
    assert_int_equal(pen_store_set(ctx, "a", NULL, 1), PEN_INVALID_ARGUMENT);
    assert_int_equal(pen_store_set(ctx, "a", key, ((size_t)1 << 20) + 1), PEN_UNSUPPORTED);
    assert_int_equal(pen_store_get(ctx, "a", NULL, NULL), PEN_INVALID_ARGUMENT);
    assert_int_equal(pen_store_get(ctx, NULL, &got, NULL), PEN_INVALID_ARGUMENT);
    assert_int_equal(pen_store_add(ctx, NULL, 1, &value), PEN_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_get_returns_the_bytes_of_the_last_set, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_counter_counts_from_0, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_get_gives_up_at_its_deadline, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_get_waits_for_another_thread, set_up, tear_down),
        cmocka_unit_test_setup_teardown(invalid_input_is_refused, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
