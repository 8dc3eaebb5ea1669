/* library_test.c - libraries that are loaded when they are first needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/system/library.h"

#include <string.h>

typedef struct {
    double (*cos)(double);
    double (*sin)(double);
} table;

static pen_error why;

static void a_table_gets_its_functions_and_keeps_them(void **state)
{
    static const char *const names[] = {"cos", "sin"}, *const others[] = {"sin", "cos"};
    table t = {0};
    (void)state;
    assert_int_equal(library_load("libm.so.6", names, 2, &t, &why), PEN_OK);
    assert_true(t.cos(0) == 1 && t.sin(0) == 0);
    assert_int_equal(library_load("libm.so.6", others, 2, &t, &why), PEN_OK);
    assert_true(t.cos(0) == 1 && t.sin(0) == 0);
}

static void a_missing_library_is_named_and_the_table_stays_empty(void **state)
{
    static const char *const names[] = {"cos", "sin"};
    table t                          = {0};
    (void)state;
    assert_int_equal(library_load("libnowhere.so.7", names, 2, &t, &why), PEN_UNSUPPORTED);
    assert_non_null(strstr(why.text, "libnowhere.so.7"));
    assert_non_null(strstr(why.text, "install its package"));
    assert_true(t.cos == NULL && t.sin == NULL);
}

static void a_missing_function_is_named_and_the_table_stays_empty(void **state)
{
    static const char *const names[] = {"cos", "tan_of_a_later_version"};
    table t                          = {0};
    (void)state;
    assert_int_equal(library_load("libm.so.6", names, 2, &t, &why), PEN_UNSUPPORTED);
    assert_string_equal(why.text, "libm.so.6 has no function tan_of_a_later_version; install the "
                                  "version that this was built with");
    assert_true(t.cos == NULL && t.sin == NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_gets_its_functions_and_keeps_them),
        cmocka_unit_test(a_missing_library_is_named_and_the_table_stays_empty),
        cmocka_unit_test(a_missing_function_is_named_and_the_table_stays_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
