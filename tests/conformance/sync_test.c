/* sync_test.c - the contract of every consistency rule, for each member of sync_all. */
#include "proto/plan.h"
#include "server/shard/core/sync/sync.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { CLOCKS = 6, RANKS = 4 };

static void told_defaults(const sync_ops *rule, sync_hyper *hyper)
{
    const sync_ops *found;
    pen_error why;
    assert_int_equal(sync_parse(rule->name, &found, hyper, &why), PEN_OK);
    assert_ptr_equal(found, rule);
}

/* fn for each rule and each possible combination of counters: slowest <= clock, and with
 * averages the round is the slowest clock while it is open. */
typedef void (*visit)(const sync_ops *rule, const sync_hyper *hyper, const sync_view *view);

static void walk(visit fn)
{
    for (size_t i = 0; sync_all[i] != NULL; i++) {
        sync_hyper hyper;
        told_defaults(sync_all[i], &hyper);
        for (uint64_t slowest = 0; slowest < CLOCKS; slowest++)
            for (uint64_t clock = slowest; clock < CLOCKS; clock++)
                for (uint64_t seq = 0; seq < CLOCKS; seq++) {
                    if (sync_all[i]->averages && clock > slowest + 1) continue;
                    fn(sync_all[i], &hyper, &(sync_view){seq, clock, slowest, slowest});
                }
    }
}

static void test_sync_members_are_complete_and_found_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; sync_all[i] != NULL; i++) {
        const sync_ops *rule = sync_all[i];
        assert_non_null(rule->push);
        assert_non_null(rule->serve);
        assert_non_null(rule->hyper_rows);
        const sync_ops *found = NULL;
        sync_hyper hyper;
        assert_int_equal(sync_parse(rule->name, &found, &hyper, NULL), PEN_OK);
        assert_ptr_equal(found, rule);
        const wire_group group = {.sync = rule->name}; /* the plan has room for sums of the same */
        assert_int_equal(plan_group_averages(&group), rule->averages);
        assert_int_equal(rule->doc[strlen(rule->doc) - 1], '.');
    }
}

static void no_push_twice(const sync_ops *rule, const sync_hyper *hyper, const sync_view *view)
{
    const sync_verdict verdict = rule->push(hyper, view);
    assert_int_equal(verdict == SYNC_REPEAT, view->seq < view->clock);
    if (verdict == SYNC_ADD || verdict == SYNC_APPLY) assert_int_equal(view->seq, view->clock);
    assert_false(verdict == SYNC_ADD && !rule->averages);
    assert_false(verdict == SYNC_APPLY && rule->averages);
}

static void test_sync_accepts_each_push_once_and_in_order(void **state)
{
    (void)state;
    walk(no_push_twice);
}

static void slowest_is_served(const sync_ops *rule, const sync_hyper *hyper, const sync_view *view)
{
    if (view->clock == view->slowest && view->clock == view->round)
        assert_true(rule->serve(hyper, view));
}

static void test_sync_always_serves_the_slowest(void **state)
{
    (void)state;
    walk(slowest_is_served);
}

static void catching_up_helps(const sync_ops *rule, const sync_hyper *hyper, const sync_view *view)
{
    if (view->slowest >= view->clock || !rule->serve(hyper, view)) return;
    sync_view later = *view;
    later.slowest   = view->slowest + 1;
    later.round     = view->round + 1;
    assert_true(rule->serve(hyper, &later));
}

static void test_sync_a_rank_that_may_pass_may_pass_later_too(void **state)
{
    (void)state;
    walk(catching_up_helps);
}

/* Ranks push and wait for values at random; every rank must finish, and each push must count
 * once. */
static void run(const sync_ops *rule, const sync_hyper *hyper, unsigned seed)
{
    enum { STEPS = 50 };
    uint64_t clock[RANKS] = {0}, round = 0;
    bool waits[RANKS] = {false};
    srand(seed);
    for (int turn = 0; turn < 200000; turn++) {
        const int r      = rand() % RANKS;
        uint64_t slowest = clock[0];
        for (int i = 1; i < RANKS; i++)
            if (clock[i] < slowest) slowest = clock[i];
        if (slowest == STEPS) return;
        if (rule->averages) round = slowest;
        const sync_view view = {clock[r], clock[r], slowest, round};
        if (waits[r]) {
            waits[r] = !rule->serve(hyper, &view);
            continue;
        }
        if (clock[r] == STEPS) continue;
        const sync_verdict verdict = rule->push(hyper, &view);
        assert_int_equal(verdict, rule->averages ? SYNC_ADD : SYNC_APPLY);
        clock[r]++;
        waits[r] = true;
    }
    fail_msg("%s: somebody waits for ever", rule->name);
}

static void test_sync_blocks_no_rank_for_ever(void **state)
{
    (void)state;
    for (size_t i = 0; sync_all[i] != NULL; i++) {
        sync_hyper hyper;
        told_defaults(sync_all[i], &hyper);
        for (unsigned seed = 1; seed <= 20; seed++) run(sync_all[i], &hyper, seed);
    }
}

static void test_sync_names_an_unknown_rule(void **state)
{
    (void)state;
    const sync_ops *rule = NULL;
    sync_hyper hyper;
    pen_error why;
    assert_int_equal(sync_parse("never s=2", &rule, &hyper, &why), PEN_BAD_SETTING);
    assert_null(rule);
    assert_int_equal(sync_parse("ssp s=-1", &rule, &hyper, &why), PEN_BAD_SETTING);
    assert_int_equal(sync_parse(NULL, &rule, &hyper, &why), PEN_OK);
    assert_true(rule->averages);
    assert_int_equal(sync_parse("ssp s=7", &rule, &hyper, &why), PEN_OK);
    assert_int_equal(hyper.s, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sync_members_are_complete_and_found_by_name),
        cmocka_unit_test(test_sync_accepts_each_push_once_and_in_order),
        cmocka_unit_test(test_sync_always_serves_the_slowest),
        cmocka_unit_test(test_sync_a_rank_that_may_pass_may_pass_later_too),
        cmocka_unit_test(test_sync_blocks_no_rank_for_ever),
        cmocka_unit_test(test_sync_names_an_unknown_rule),
    };
    return cmocka_run_group_tests_name("sync", tests, NULL, NULL);
}
