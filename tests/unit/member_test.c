/* member_test.c - the life of a member, as its table defines it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "scheduler/core/membership/member.h"

#include <stdlib.h>
#include <string.h>

static void test_member_connection_pause_is_not_a_death(void **state)
{
    (void)state;
    member_state s = MEMBER_ACTIVE;
    assert_int_equal(member_next(&s, MEMBER_EVENT_DOWN), PEN_OK);
    assert_int_equal(s, MEMBER_AWAY);
    assert_int_equal(member_next(&s, MEMBER_EVENT_HELLO), PEN_OK);
    assert_int_equal(s, MEMBER_ACTIVE);
}

static void test_member_frees_its_slot_when_it_leaves_before_the_job_begins(void **state)
{
    (void)state;
    member_state s = MEMBER_ABSENT;
    assert_int_equal(member_next(&s, MEMBER_EVENT_HELLO), PEN_OK);
    assert_int_equal(member_next(&s, MEMBER_EVENT_DOWN), PEN_OK);
    assert_int_equal(s, MEMBER_ABSENT);
}

static void test_member_that_is_dead_stays_dead_and_is_refused(void **state)
{
    (void)state;
    const member_event told[] = {MEMBER_EVENT_HELLO, MEMBER_EVENT_MESSAGE, MEMBER_EVENT_BYE};
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        member_state s = MEMBER_DEAD;
        assert_int_equal(member_next(&s, told[i]), PEN_NOT_A_MEMBER);
        assert_int_equal(s, MEMBER_DEAD);
    }
}

static void test_member_handles_every_message_in_every_state(void **state)
{
    (void)state;
    for (int from = 0; from < MEMBER_STATE_COUNT; from++)
        for (int event = MEMBER_EVENT_HELLO; event <= MEMBER_EVENT_EXITED; event++) {
            member_state s          = (member_state)from;
            const pen_status status = member_next(&s, (member_event)event);
            assert_true(status == PEN_OK || status == PEN_NOT_A_MEMBER);
            assert_true(s < MEMBER_STATE_COUNT);
            if (status != PEN_OK) assert_int_equal(s, from);
        }
}

static void test_member_prints_its_table_as_a_graph(void **state)
{
    (void)state;
    char *text  = NULL;
    size_t size = 0;
    FILE *out   = open_memstream(&text, &size);
    assert_non_null(out);
    member_write_dot(out);
    fclose(out);
    assert_non_null(strstr(text, "digraph member {"));
    assert_non_null(strstr(text, "active -> away [label=\"DOWN\"];"));
    assert_null(strstr(text, "dead -> "));
    for (int s = 0; s < MEMBER_STATE_COUNT; s++)
        assert_non_null(strstr(text, member_state_name((member_state)s)));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_member_connection_pause_is_not_a_death),
        cmocka_unit_test(test_member_frees_its_slot_when_it_leaves_before_the_job_begins),
        cmocka_unit_test(test_member_that_is_dead_stays_dead_and_is_refused),
        cmocka_unit_test(test_member_handles_every_message_in_every_state),
        cmocka_unit_test(test_member_prints_its_table_as_a_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
