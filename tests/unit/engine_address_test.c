/* engine_address_test.c - the own address that a worker tells the others. */
#include "worker/coll/engine_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <string.h>

static void test_it_is_the_side_that_faces_the_scheduler(void **unused)
{
    char text[ENGINE_ADDRESS_SIZE];
    pen_error why = {0};
    (void)unused;
    assert_int_equal(engine_listen_address("127.0.0.1", 7, 0, text, sizeof text, &why), PEN_OK);
    assert_string_equal(text, "tcp://127.0.0.1:0");
}

static void test_alone_or_with_a_whole_address_it_is_loopback(void **unused)
{
    char text[ENGINE_ADDRESS_SIZE];
    pen_error why = {0};
    (void)unused;
    assert_int_equal(engine_listen_address("", 0, 0, text, sizeof text, &why), PEN_OK);
    assert_string_equal(text, "tcp://127.0.0.1:0");
    assert_int_equal(engine_listen_address("inproc://x", 0, 0, text, sizeof text, &why), PEN_OK);
    assert_string_equal(text, "tcp://127.0.0.1:0");
}

static void test_a_name_that_never_comes_is_named_and_loopback_never_guessed(void **unused)
{
    char text[ENGINE_ADDRESS_SIZE] = "";
    pen_error why                  = {0};
    (void)unused;
    assert_int_equal(engine_listen_address("no such name", 7, 300, text, sizeof text, &why),
                     PEN_TIMED_OUT);
    assert_non_null(strstr(why.text, "'no such name', does not resolve after 0.3 s"));
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_is_the_side_that_faces_the_scheduler),
        cmocka_unit_test(test_alone_or_with_a_whole_address_it_is_loopback),
        cmocka_unit_test(test_a_name_that_never_comes_is_named_and_loopback_never_guessed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
