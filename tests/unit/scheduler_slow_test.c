/* scheduler_slow_test.c - the members that others wait for, according to beats. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/scheduler_scene.h"

#include <string.h>

static void beats(scene *r, int32_t rank, int64_t step, const char *call, uint64_t call_ms)
{
    wire_control c = {.kind   = WIRE_BEAT,
                      .u.beat = {.step = step, .call = call, .call_ms = call_ms}};
    scene_say(r, SCENE_WORKER(rank), &c);
}

static double waited_for(scene *r, int32_t rank)
{
    wire_control ask = {.kind = WIRE_STATUS_ASK};
    scene_forget(r);
    scene_say(r, SCENE_OBSERVER, &ask);
    const wire_control *status = scene_must(r, SCENE_OBSERVER, WIRE_STATUS);
    for (uint32_t i = 0; i < status->u.status.n_members; i++) {
        const wire_member_status *m = &status->u.status.member[i];
        for (uint32_t k = 0;
             m->member.role == PEN_WORKER && m->member.rank == rank && k < m->n_stats; k++)
            if (strcmp(m->stat[k].name, "waited_for_s") == 0) return m->stat[k].value;
    }
    fail_msg("nothing is said of worker %d", rank);
    return -1;
}

static void the_others_wait_for_the_rank_that_is_behind(void **state)
{
    (void)state;
    scene *r = scene_train(3, 1, NULL, NULL);
    for (int i = 0; i < 4; i++) {
        beats(r, 2, 7, "after pen_ready", 1000 * (uint64_t)i);
        beats(r, 1, 7, "after pen_ready", 10);
        beats(r, 0, 7, "pen_step_end", 1000 * (uint64_t)i);
        r->now += 1000;
    }
    assert_true(waited_for(r, 2) > 2.9 && waited_for(r, 2) < 3.1);
    assert_true(waited_for(r, 1) == 0);
    assert_true(waited_for(r, 0) == 0);
    scene_drop(r);
}

static void a_rank_in_an_earlier_step_is_further_behind(void **state)
{
    (void)state;
    scene *r = scene_train(3, 1, NULL, NULL);
    for (int i = 0; i < 3; i++) {
        beats(r, 2, 6, "pen_wait", 10);
        beats(r, 1, 7, "after pen_ready", 5000);
        beats(r, 0, 7, "pen_step_end", 1000 * (uint64_t)i);
        r->now += 1000;
    }
    assert_true(waited_for(r, 2) > 1.9 && waited_for(r, 2) < 2.1);
    assert_true(waited_for(r, 1) == 0);
    scene_drop(r);
}

static void no_rank_is_blamed_when_all_compute_or_all_wait(void **state)
{
    (void)state;
    scene *r = scene_train(2, 1, NULL, NULL);
    for (int i = 0; i < 3; i++) {
        beats(r, 1, 7, i == 2 ? "pen_step_end" : "after pen_ready", i == 2 ? 0 : 3000);
        beats(r, 0, 7, i == 2 ? "pen_step_end" : "after pen_ready", i == 2 ? 0 : 3000);
        r->now += 1000;
    }
    assert_true(waited_for(r, 0) == 0);
    assert_true(waited_for(r, 1) == 0);
    scene_drop(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_others_wait_for_the_rank_that_is_behind),
        cmocka_unit_test(a_rank_in_an_earlier_step_is_further_behind),
        cmocka_unit_test(no_rank_is_blamed_when_all_compute_or_all_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
