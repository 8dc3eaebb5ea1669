/* why_test.c - a failure as a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/why.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void test_why_set_returns_the_status_and_writes_the_sentence(void **state)
{
    (void)state;
    pen_error why;
    memset(&why, 0xee, sizeof why);
    assert_int_equal(why_set(&why, PEN_PEER_LOST, "worker %d is gone", 3), PEN_PEER_LOST);
    assert_int_equal(why.status, PEN_PEER_LOST);
    assert_string_equal(why.text, "worker 3 is gone");
}

static void test_why_set_names_no_culprit_and_leaves_nothing_of_before(void **state)
{
    (void)state;
    pen_error why;
    memset(&why, 0xee, sizeof why);
    why_set(&why, PEN_CORRUPT, "x");
    assert_int_equal(why.role, 0);
    assert_int_equal(why.rank, -1);
    assert_int_equal(why.step, -1);
    assert_int_equal(why.missing_n, 0);
    assert_int_equal(why.missing[31], 0);
    assert_string_equal(why.tensor, "");
    assert_true(why.last_seen_s == 0);
    for (size_t i = 0; i < sizeof why.reserved / sizeof why.reserved[0]; i++)
        assert_int_equal(why.reserved[i], 0);
}

static void test_why_set_may_put_a_sentence_around_the_one_it_replaces(void **state)
{
    (void)state;
    pen_error why;
    why_set(&why, PEN_STORE, "the disk is full");
    why_set(&why, PEN_STORE, "snapshot 7: %s", why.text);
    assert_string_equal(why.text, "snapshot 7: the disk is full");
}

static void test_why_set_marks_a_truncated_sentence(void **state)
{
    (void)state;
    pen_error why;
    char longer[2 * sizeof why.text];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    why_set(&why, PEN_INTERNAL, "%s", longer);
    assert_int_equal(strlen(why.text), sizeof why.text - 1);
    assert_string_equal(why.text + sizeof why.text - 4, "...");

    longer[sizeof why.text - 1] = '\0'; /* just fits */
    why_set(&why, PEN_INTERNAL, "%s", longer);
    assert_string_equal(why.text, longer);
}

static void test_why_set_knows_the_system_error(void **state)
{
    (void)state;
    pen_error why;
    errno = ENOENT;
    why_set(&why, PEN_NOT_FOUND, "cannot open x: %m");
    assert_string_equal(why.text, "cannot open x: No such file or directory");
}

static void test_why_culprit_adds_to_the_sentence(void **state)
{
    (void)state;
    pen_error why;
    why_set(&why, PEN_MISMATCH, "the shapes differ");
    why_culprit(&why, PEN_WORKER, 4, 17, "layer.weight");
    assert_string_equal(why.text, "the shapes differ");
    assert_int_equal(why.role, PEN_WORKER);
    assert_int_equal(why.rank, 4);
    assert_int_equal(why.step, 17);
    assert_string_equal(why.tensor, "layer.weight");
    why_culprit(&why, PEN_SERVER, 0, -1, NULL);
    assert_string_equal(why.tensor, "");
}

static void test_why_culprit_truncates_a_long_tensor_name(void **state)
{
    (void)state;
    pen_error why;
    char name[4 * sizeof why.tensor];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    why_set(&why, PEN_MISMATCH, "x");
    why_culprit(&why, PEN_WORKER, 0, 0, name);
    assert_int_equal(strlen(why.tensor), sizeof why.tensor - 1);
}

static void test_why_may_be_null(void **state)
{
    (void)state;
    assert_int_equal(why_set(NULL, PEN_TIMED_OUT, "%d", 1), PEN_TIMED_OUT);
    why_culprit(NULL, PEN_WORKER, 0, 0, "t");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_why_set_returns_the_status_and_writes_the_sentence),
        cmocka_unit_test(test_why_set_names_no_culprit_and_leaves_nothing_of_before),
        cmocka_unit_test(test_why_set_may_put_a_sentence_around_the_one_it_replaces),
        cmocka_unit_test(test_why_set_marks_a_truncated_sentence),
        cmocka_unit_test(test_why_set_knows_the_system_error),
        cmocka_unit_test(test_why_culprit_adds_to_the_sentence),
        cmocka_unit_test(test_why_culprit_truncates_a_long_tensor_name),
        cmocka_unit_test(test_why_may_be_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
