/* members_test.c - the step from which a program sees that members joined or left. */
#include "worker/io/members.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void see(member_list *m, uint32_t n, int32_t last)
{
    int32_t rank[8] = {0};
    assert_int_equal(members_ranks(m, rank, 8), n);
    assert_int_equal(members_count(m), n);
    assert_int_equal(rank[n - 1], last);
}

static void test_members_change_is_seen_by_the_step_after_the_one_it_hits(void **state)
{
    (void)state;
    member_list m;
    members_init(&m);
    assert_true(members_set(&m, 1, (const int32_t[]){1, 0, 2}, 3));
    assert_false(members_advance(&m, 0));
    assert_true(members_change(&m, 2, 5, (const int32_t[]){2, 0}, 2));
    assert_false(members_advance(&m, 4)); /* a slow rank, for which the change arrives early */
    assert_false(members_advance(&m, 5));
    see(&m, 3, 2);
    assert_int_equal(members_epoch(&m), 1);
    assert_true(members_advance(&m, 6));
    see(&m, 2, 2);
    assert_int_equal(members_epoch(&m), 2);
    assert_false(members_advance(&m, 7));
    members_fini(&m);
}

static void test_members_consecutive_changes_are_seen_in_consecutive_steps(void **state)
{
    (void)state;
    member_list m;
    members_init(&m);
    assert_true(members_set(&m, 1, (const int32_t[]){0}, 1));
    assert_true(members_change(&m, 2, 3, (const int32_t[]){0, 1}, 2));
    assert_true(members_change(&m, 3, 4, (const int32_t[]){0, 1, 2}, 3));
    assert_true(members_advance(&m, 4));
    see(&m, 2, 1);
    assert_true(members_advance(&m, 5));
    see(&m, 3, 2);
    members_fini(&m);
}

static void test_members_change_without_a_step_is_seen_by_the_next(void **state)
{
    (void)state;
    member_list m;
    members_init(&m);
    assert_false(members_advance(&m, 0));
    assert_int_equal(members_count(&m), 0);
    assert_true(members_change(&m, 2, -1, (const int32_t[]){0, 3}, 2));
    assert_true(members_advance(&m, 0));
    see(&m, 2, 3);
    members_fini(&m);
}

static void test_members_forgets_the_oldest_of_too_many_changes(void **state)
{
    (void)state;
    member_list m;
    members_init(&m);
    for (int i = 0; i < MEMBERS_PENDING_MAX + 4; i++)
        assert_true(members_change(&m, (uint64_t)i, 10 + i, (const int32_t[]){i}, 1));
    assert_false(members_advance(&m, 12));
    assert_true(members_advance(&m, 1000));
    see(&m, 1, MEMBERS_PENDING_MAX + 3);
    members_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members_change_is_seen_by_the_step_after_the_one_it_hits),
        cmocka_unit_test(test_members_consecutive_changes_are_seen_in_consecutive_steps),
        cmocka_unit_test(test_members_change_without_a_step_is_seen_by_the_next),
        cmocka_unit_test(test_members_forgets_the_oldest_of_too_many_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
