/* value_table_test.c - values by key: get returns what set stored, counters count, bounds hold. */
#include "common/containers/value_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static pen_error why;

static void a_get_returns_the_last_value_set(void **state)
{
    (void)state;
    value_table *t = value_table_create(1000000);
    size_t size;
    assert_null(value_table_get(t, "a", &size));
    assert_int_equal(value_table_set(t, "a", "one", 3, &why), PEN_OK);
    assert_int_equal(value_table_set(t, "a", "three", 5, &why), PEN_OK);
    assert_memory_equal(value_table_get(t, "a", &size), "three", 5);
    assert_int_equal(size, 5);
    assert_int_equal(value_table_set(t, "a", NULL, 0, &why), PEN_OK);
    assert_non_null(value_table_get(t, "a", &size)); /* set, but empty */
    assert_int_equal(size, 0);
    value_table_destroy(t);
}

static void many_keys_do_not_get_mixed_up(void **state)
{
    (void)state;
    value_table *t = value_table_create(10000000);
    char key[32];
    for (int i = 0; i < 20000; i++) {
        snprintf(key, sizeof key, "key %d", i);
        assert_int_equal(value_table_set(t, key, &i, sizeof i, &why), PEN_OK);
    }
    for (int i = 0; i < 20000; i++) {
        size_t size;
        snprintf(key, sizeof key, "key %d", i);
        assert_memory_equal(value_table_get(t, key, &size), &i, sizeof i);
    }
    value_table_destroy(t);
}

static void a_counter_begins_at_0_and_wraps(void **state)
{
    (void)state;
    value_table *t = value_table_create(1000000);
    int64_t value;
    assert_int_equal(value_table_add(t, "n", 5, &value, &why), PEN_OK);
    assert_int_equal(value, 5);
    assert_int_equal(value_table_add(t, "n", -7, &value, &why), PEN_OK);
    assert_int_equal(value, -2);
    assert_int_equal(value_table_add(t, "n", INT64_MAX, &value, &why), PEN_OK);
    assert_int_equal(value_table_add(t, "n", INT64_MAX, &value, &why), PEN_OK);
    assert_true(value < 0);
    assert_int_equal(value_table_set(t, "text", "three", 5, &why), PEN_OK);
    assert_int_equal(value_table_add(t, "text", 1, &value, &why), PEN_MISMATCH);
    assert_string_equal(why.text, "'text' holds 5 bytes, a counter has 8");
    value_table_destroy(t);
}

static void bounds_hold_and_existing_values_stay(void **state)
{
    (void)state;
    static char large[VALUE_BYTES_MAX + 1];
    value_table *t = value_table_create(3 << 20);
    size_t size;
    assert_int_equal(value_table_set(t, "a", large, VALUE_BYTES_MAX, &why), PEN_OK);
    assert_int_equal(value_table_set(t, "a", large, VALUE_BYTES_MAX + 1, &why), PEN_UNSUPPORTED);
    assert_int_equal(value_table_set(t, "b", large, VALUE_BYTES_MAX, &why), PEN_OK);
    assert_int_equal(value_table_set(t, "c", large, VALUE_BYTES_MAX, &why), PEN_UNSUPPORTED);
    assert_null(value_table_get(t, "c", &size));
    assert_int_equal(value_table_set(t, "a", "x", 1, &why), PEN_OK); /* which makes room */
    assert_int_equal(value_table_set(t, "c", large, VALUE_BYTES_MAX, &why), PEN_OK);
    assert_memory_equal(value_table_get(t, "a", &size), "x", 1);
    value_table_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_get_returns_the_last_value_set),
        cmocka_unit_test(many_keys_do_not_get_mixed_up),
        cmocka_unit_test(a_counter_begins_at_0_and_wraps),
        cmocka_unit_test(bounds_hold_and_existing_values_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
