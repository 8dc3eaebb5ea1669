/* status_test.c - every status has a name, a text and a remedy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/why.h"

#include <stdbool.h>
#include <string.h>

static const pen_status all[] = {
#define X(name, value, remedy, text) PEN_##name,
    PEN_STATUS_LIST(X)
#undef X
};
enum { ALL_COUNT = sizeof all / sizeof all[0] };

static void test_status_every_row_has_its_own_name_and_text(void **state)
{
    (void)state;
    for (int i = 0; i < ALL_COUNT; i++) {
        const pen_status_row *row = pen_status_info(all[i]);
        assert_int_equal(row->status, all[i]);
        assert_true(strlen(row->name) > 0);
        assert_true(strlen(row->text) > 0);
        for (int j = 0; j < i; j++) {
            assert_int_not_equal(all[j], all[i]);
            assert_string_not_equal(pen_status_info(all[j])->name, row->name);
            assert_string_not_equal(pen_status_info(all[j])->text, row->text);
        }
    }
}

static void test_only_known_statuses_below_ok_are_failures(void **state)
{
    (void)state;
    for (int i = 0; i < ALL_COUNT; i++)
        assert_int_equal(why_is_failure(all[i]), pen_status_info(all[i])->remedy > PEN_ACT_WAIT);
    assert_false(why_is_failure(-1));
    assert_false(why_is_failure(INT32_MIN));
    assert_false(why_is_failure(PEN_STATUS_MAX_));
}

/* The hundreds name the remedy, so that programs in any language can branch on them. */
static void test_status_values_are_grouped_by_remedy(void **state)
{
    (void)state;
    for (int i = 0; i < ALL_COUNT; i++) {
        const pen_remedy remedy = pen_status_info(all[i])->remedy;
        switch (-all[i] / 100) {
        case 0: assert_true(remedy == PEN_ACT_DONE || remedy == PEN_ACT_WAIT); break;
        case 1: assert_int_equal(remedy, PEN_ACT_CALLER); break;
        case 2: assert_int_equal(remedy, PEN_ACT_RETRY); break;
        case 3: assert_true(remedy == PEN_ACT_REJOIN || remedy == PEN_ACT_OPERATOR); break;
        case 4: assert_int_equal(remedy, PEN_ACT_STOP); break;
        default: fail_msg("status %d is in no group", all[i]);
        }
    }
}

static void test_status_info_reads_as_the_list_says(void **state)
{
    (void)state;
    assert_string_equal(pen_status_info(PEN_OK)->name, "OK");
    assert_string_equal(pen_status_info(PEN_TIMED_OUT)->name, "TIMED_OUT");
    assert_int_equal(pen_status_info(PEN_TIMED_OUT)->remedy, PEN_ACT_RETRY);
}

static void test_status_of_a_newer_version_still_has_a_row(void **state)
{
    (void)state;
    const pen_status_row *row = pen_status_info((pen_status)-9999);
    assert_non_null(row);
    assert_string_equal(row->name, "UNKNOWN");
    assert_true(strlen(row->text) > 0);
    assert_int_equal(row->remedy, PEN_ACT_STOP);
    assert_non_null(pen_status_info((pen_status)3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_every_row_has_its_own_name_and_text),
        cmocka_unit_test(test_only_known_statuses_below_ok_are_failures),
        cmocka_unit_test(test_status_values_are_grouped_by_remedy),
        cmocka_unit_test(test_status_info_reads_as_the_list_says),
        cmocka_unit_test(test_status_of_a_newer_version_still_has_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
