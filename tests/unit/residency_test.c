/* residency_test.c - which units are fetched and dropped, in which order: the golden traces of FSDP's three prefetches,
 * bounds, reuse, changed orders. */
#include "worker/tensor/residency/residency_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { A, B, C, UNITS_MAX = 8 };

typedef struct {
    residency *r;
    char log[4096];
    uint32_t coming[64], n_coming;
    int warnings;
} scene;

static void note(scene *s, const char *what, uint32_t unit)
{
    const size_t at = strlen(s->log);
    snprintf(s->log + at, sizeof s->log - at, "%s%s %c", at > 0 ? ", " : "", what, 'A' + (int)unit);
}

static void on_fetch(void *user, uint32_t unit)
{
    scene *s = user;
    note(s, "fetch", unit);
    s->coming[s->n_coming++] = unit;
}

static void on_drop(void *user, uint32_t unit)
{
    note(user, "free", unit);
}

static void on_warn(void *user, const char *line)
{
    scene *s = user;
    assert_non_null(strstr(line, "another order"));
    s->warnings++;
}

static void begin(scene *s, residency_setup setup, uint32_t n_units, uint64_t each)
{
    static const residency_actions actions = {on_fetch, on_drop, on_warn};
    uint64_t moving[UNITS_MAX];
    pen_error why;
    for (uint32_t i = 0; i < n_units; i++) moving[i] = each;
    setup.n_units = n_units;
    setup.moving  = moving;
    *s            = (scene){0};
    s->r          = residency_create(&setup, &actions, s, &why);
    assert_non_null(s->r);
}

/* Everything that was requested arrives. */
static void arrive(scene *s)
{
    for (uint32_t i = 0; i < s->n_coming; i++) residency_arrived(s->r, s->coming[i]);
    s->n_coming = 0;
}

static void use(scene *s, uint32_t unit, pen_phase phase, int64_t step)
{
    residency_use(s->r, unit, phase, step);
    arrive(s);
    assert_true(residency_has(s->r, unit));
}

static void forward(scene *s, uint32_t unit, int64_t step)
{
    use(s, unit, PEN_FORWARD, step);
    note(s, "fwd", unit);
    residency_release(s->r, unit, PEN_FORWARD);
}

static void backward(scene *s, uint32_t unit, int64_t step)
{
    use(s, unit, PEN_BACKWARD, step);
    note(s, "bwd", unit);
    residency_release(s->r, unit, PEN_BACKWARD);
    note(s, "push", unit);
}

/* A, B, C and back; the log has the backward pass only. */
static void step_of_three(scene *s, int64_t step)
{
    for (uint32_t u = A; u <= C; u++) forward(s, u, step);
    s->log[0] = '\0';
    for (uint32_t u = C + 1; u-- > A;) backward(s, u, step);
    const size_t length = strlen(s->log);
    residency_step_end(s->r);
    assert_int_equal(strlen(s->log), length); /* nothing was left to drop */
}

#define WIDE .max_live = 1000, .prefetch_bucket = 1000

/* ---- golden traces --------------------------------------------------------------------------- */
static void check_trace(residency_prefetch backward, const char *golden, uint64_t peak)
{
    scene s;
    begin(&s, (residency_setup){.backward = backward, WIDE}, 3, 10);
    step_of_three(&s, 0);
    assert_string_equal(s.log, "fetch C, bwd C, free C, push C, fetch B, bwd B, free B, push B, "
                               "fetch A, bwd A, free A, push A"); /* the first is only recorded */
    for (int64_t step = 1; step < 4; step++) {
        step_of_three(&s, step);
        assert_string_equal(s.log, golden);
    }
    assert_int_equal(residency_peak(s.r), peak);
    assert_int_equal(residency_live(s.r), 0);
    assert_int_equal(s.warnings, 0);
    residency_destroy(s.r);
}

static void test_residency_pre_fetches_the_next_unit_before_the_backward_of_this_one(void **state)
{
    (void)state;
    check_trace(PREFETCH_PRE,
                "fetch C, fetch B, bwd C, free C, push C, fetch A, bwd B, free B, push B, bwd A, "
                "free A, push A",
                20);
}

static void test_residency_post_fetches_the_next_unit_after_the_backward_of_this_one(void **state)
{
    (void)state;
    check_trace(PREFETCH_POST,
                "fetch C, bwd C, free C, fetch B, push C, bwd B, free B, fetch A, push B, bwd A, "
                "free A, push A",
                10);
}

static void test_residency_none_fetches_a_unit_when_it_is_used(void **state)
{
    (void)state;
    check_trace(PREFETCH_NONE,
                "fetch C, bwd C, free C, push C, fetch B, bwd B, free B, push B, fetch A, bwd A, "
                "free A, push A",
                10);
}

static void test_residency_forward_prefetch_is_one_unit_ahead(void **state)
{
    (void)state;
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_NONE, .forward = true, WIDE}, 3, 10);
    step_of_three(&s, 0);
    s.log[0] = '\0';
    for (uint32_t u = A; u <= C; u++) forward(&s, u, 1);
    assert_string_equal(s.log,
                        "fetch A, fetch B, fwd A, free A, fetch C, fwd B, free B, fwd C, free C");
    residency_destroy(s.r);
}

/* ---- bounds ---------------------------------------------------------------------------------- */
static void test_residency_fetch_ahead_waits_for_room_below_max_live(void **state)
{
    (void)state;
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_PRE, .max_live = 19, .prefetch_bucket = 10}, 3,
          10);
    step_of_three(&s, 0);
    step_of_three(&s, 1);
    assert_string_equal(s.log,
                        "fetch C, bwd C, free C, fetch B, push C, bwd B, free B, fetch A, push B, "
                        "bwd A, free A, push A");
    assert_int_equal(residency_peak(s.r), 10);
    residency_destroy(s.r);
}

static void test_residency_current_unit_may_exceed_max_live(void **state)
{
    (void)state;
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_PRE, .max_live = 5, .prefetch_bucket = 10}, 3,
          10);
    step_of_three(&s, 0);
    step_of_three(&s, 1);
    use(&s, A, PEN_FORWARD, 2);
    use(&s, B, PEN_FORWARD, 2); /* both at once: a program that nests uses */
    assert_int_equal(residency_live(s.r), 20);
    residency_destroy(s.r);
}

static void test_residency_unit_larger_than_prefetch_bucket_is_not_fetched_ahead(void **state)
{
    (void)state;
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_PRE, .max_live = 1000, .prefetch_bucket = 9},
          3, 10);
    step_of_three(&s, 0);
    step_of_three(&s, 1);
    assert_string_equal(s.log,
                        "fetch C, bwd C, free C, push C, fetch B, bwd B, free B, push B, fetch A, "
                        "bwd A, free A, push A");
    residency_destroy(s.r);
}

static void test_residency_unit_without_moving_elements_is_always_here(void **state)
{
    (void)state;
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_PRE, WIDE}, 3, 0);
    for (int64_t step = 0; step < 3; step++)
        for (uint32_t u = A; u <= C; u++) forward(&s, u, step);
    assert_null(strstr(s.log, "fetch"));
    assert_null(strstr(s.log, "free"));
    residency_destroy(s.r);
}

/* ---- reuse ----------------------------------------------------------------------------------- */
static void test_residency_unit_is_kept_when_it_is_used_again_within_max_reuse(void **state)
{
    (void)state;
    scene s; /* from fwd C to bwd C 0; from B to B 10 of C twice; from A to A 40 */
    begin(&s, (residency_setup){.backward = PREFETCH_NONE, .max_reuse = 21, WIDE}, 3, 10);
    step_of_three(&s, 0);
    s.log[0] = '\0';
    for (uint32_t u = A; u <= C; u++) forward(&s, u, 1);
    assert_string_equal(s.log, "fetch A, fwd A, free A, fetch B, fwd B, fetch C, fwd C");
    s.log[0] = '\0';
    for (uint32_t u = C + 1; u-- > A;) backward(&s, u, 1);
    assert_string_equal(s.log,
                        "bwd C, free C, push C, bwd B, free B, push B, fetch A, bwd A, free A, "
                        "push A");
    residency_destroy(s.r);
}

static void test_residency_drops_kept_units_before_a_used_one_exceeds_max_live(void **state)
{
    (void)state;
    scene s;
    begin(&s,
          (residency_setup){
              .backward = PREFETCH_NONE, .max_reuse = 1000, .max_live = 20, .prefetch_bucket = 10},
          3, 10);
    step_of_three(&s, 0);
    s.log[0] = '\0';
    for (uint32_t u = A; u <= C; u++) forward(&s, u, 1);
    /* of the two that are kept, A is needed last */
    assert_string_equal(s.log, "fetch A, fwd A, fetch B, fwd B, free A, fetch C, fwd C");
    assert_int_equal(residency_peak(s.r), 20);
    residency_destroy(s.r);
}

static void test_residency_keeps_forward_drops_after_the_backward_only(void **state)
{
    (void)state;
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_NONE, .keeps_forward = true, WIDE}, 3, 10);
    for (uint32_t u = A; u <= C; u++) forward(&s, u, 0);
    for (uint32_t u = C + 1; u-- > A;) backward(&s, u, 0);
    assert_string_equal(s.log,
                        "fetch A, fwd A, fetch B, fwd B, fetch C, fwd C, bwd C, free C, push C, "
                        "bwd B, free B, push B, bwd A, free A, push A");
    residency_destroy(s.r);
}

static void test_residency_values_of_an_earlier_step_are_fetched_again(void **state)
{
    (void)state;
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_NONE, .max_reuse = 1000, WIDE}, 3, 10);
    use(&s, A, PEN_FORWARD, 0); /* and never released */
    residency_step_end(s.r);
    assert_false(residency_has(s.r, A));
    use(&s, A, PEN_FORWARD, 1);
    assert_string_equal(s.log, "fetch A, free A, fetch A");
    assert_int_equal(residency_live(s.r), 10);
    residency_destroy(s.r);
}

static void test_residency_late_arrival_of_an_old_value_is_not_taken_for_a_new_one(void **state)
{
    (void)state;
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_NONE, WIDE}, 3, 10);
    residency_use(s.r, A, PEN_FORWARD, 0); /* it does not arrive in this step */
    residency_step_end(s.r);
    residency_arrived(s.r, A);
    assert_false(residency_has(s.r, A));
    assert_string_equal(s.log, "fetch A, free A, fetch A");
    residency_arrived(s.r, A);
    assert_true(residency_has(s.r, A));
    residency_destroy(s.r);
}

static void test_residency_unit_released_before_it_came_is_dropped_when_it_comes(void **state)
{
    (void)state;
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_NONE, WIDE}, 3, 10);
    residency_use(s.r, A, PEN_FORWARD, 0);
    residency_release(s.r, A, PEN_FORWARD);
    assert_string_equal(s.log, "fetch A");
    residency_arrived(s.r, A);
    assert_string_equal(s.log, "fetch A, free A");
    assert_int_equal(residency_live(s.r), 0);
    residency_destroy(s.r);
}

static void test_residency_uses_nest(void **state)
{
    (void)state;
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_NONE, WIDE}, 3, 10);
    use(&s, A, PEN_FORWARD, 0);
    use(&s, A, PEN_FORWARD, 0);
    residency_release(s.r, A, PEN_FORWARD);
    assert_true(residency_has(s.r, A));
    residency_release(s.r, A, PEN_FORWARD);
    assert_string_equal(s.log, "fetch A, free A");
    residency_release(s.r, A, PEN_FORWARD); /* once too often: no effect */
    assert_string_equal(s.log, "fetch A, free A");
    residency_destroy(s.r);
}

/* ---- orders that change ---------------------------------------------------------------------- */
static void test_residency_order_that_changes_stops_fetching_ahead_in_that_step(void **state)
{
    (void)state;
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_PRE, .forward = true, WIDE}, 3, 10);
    step_of_three(&s, 0);
    s.log[0] = '\0';
    forward(&s, A, 1); /* B is fetched ahead, but C is used */
    forward(&s, C, 1);
    assert_string_equal(s.log, "fetch A, fetch B, fwd A, free A, free B, fetch C, fwd C, free C");
    s.log[0] = '\0';
    backward(&s, C, 1);
    backward(&s, A, 1);
    assert_string_equal(s.log, "fetch C, bwd C, free C, push C, fetch A, bwd A, free A, push A");
    residency_step_end(s.r);
    s.log[0] = '\0';
    forward(&s, C, 2); /* begins like none: no guess */
    forward(&s, B, 2);
    assert_string_equal(s.log, "fetch C, fwd C, free C, fetch B, fwd B, free B");
    residency_step_end(s.r);
    s.log[0] = '\0';
    forward(&s, C, 3);
    assert_string_equal(s.log, "fetch C, fetch B, fwd C, free C");
    residency_destroy(s.r);
}

static void test_residency_warns_once_of_three_new_orders_in_a_row(void **state)
{
    (void)state;
    static const char orders[][4] = {"ABC", "ACB", "BAC", "BCA", "CAB", "CBA"};
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_PRE, .forward = true, WIDE}, 3, 10);
    for (int64_t step = 0; step < 18; step++) {
        for (const char *unit = orders[step % 6]; *unit != '\0'; unit++)
            forward(&s, (uint32_t)(*unit - 'A'), step);
        residency_step_end(s.r);
        assert_int_equal(s.warnings, step < 3 ? 0 : 1);
        assert_int_equal(residency_live(s.r), 0);
    }
    residency_destroy(s.r);
}

/* Validates, a forward pass, before each third step, as language models do; the first step, too. */
static void test_residency_steps_with_and_without_validation_are_both_fetched_ahead(void **state)
{
    (void)state;
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_PRE, .forward = true, WIDE}, 3, 10);
    for (int64_t step = 0; step < 12; step++) {
        const bool validates = step % 3 == 0;
        s.log[0]             = '\0';
        for (uint32_t u = A; validates && u <= C; u++) forward(&s, u, step);
        if (validates && step > 0) /* its end looks like the begin of a backward pass */
            assert_string_equal(
                s.log, "fetch A, fetch B, fwd A, free A, fetch C, fwd B, free B, fwd C, free C");
        step_of_three(&s, step);
        if (step > 5) /* the more usual order is known: nothing is fetched in vain */
            assert_string_equal(s.log, "fetch C, fetch B, bwd C, free C, push C, fetch A, bwd B, "
                                       "free B, push B, bwd A, free A, push A");
    }
    assert_int_equal(s.warnings, 0);
    residency_destroy(s.r);
}

static void test_residency_step_with_fewer_uses_is_an_order_of_its_own(void **state)
{
    (void)state;
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_PRE, .forward = true, WIDE}, 3, 10);
    step_of_three(&s, 0);
    forward(&s, A, 1); /* B was fetched ahead */
    residency_step_end(s.r);
    assert_int_equal(residency_live(s.r), 0);
    s.log[0] = '\0';
    forward(&s, A, 2);
    assert_string_equal(s.log, "fetch A, fwd A, free A");
    residency_destroy(s.r);
}

static void test_residency_uses_outside_of_steps_leave_no_trace(void **state)
{
    (void)state;
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_PRE, .forward = true, WIDE}, 3, 10);
    step_of_three(&s, 0);
    for (int i = 0; i < 2; i++) forward(&s, B, -1);
    s.log[0] = '\0';
    forward(&s, A, 1);
    assert_string_equal(s.log, "fetch A, fetch B, fwd A, free A");
    assert_int_equal(s.warnings, 0);
    residency_destroy(s.r);
}

static void test_residency_fetch_that_failed_is_tried_again_by_the_next_use(void **state)
{
    (void)state;
    scene s;
    begin(&s, (residency_setup){.backward = PREFETCH_NONE, WIDE}, 3, 10);
    residency_use(s.r, A, PEN_FORWARD, 0);
    residency_failed(s.r, A);
    assert_int_equal(residency_live(s.r), 0);
    residency_release(s.r, A, PEN_FORWARD);
    s.n_coming = 0;
    use(&s, A, PEN_FORWARD, 0);
    assert_string_equal(s.log, "fetch A, fetch A");
    residency_destroy(s.r);
}

/* Any sequence of calls: live is what was fetched and not dropped; nothing is dropped that is not here. */
static void test_residency_accounts_stay_right_under_random_calls(void **state)
{
    (void)state;
    uint64_t draw = 7;
    int fetches = 0, drops = 0;
    for (int round = 0; round < 200; round++) {
        scene s;
        begin(&s,
              (residency_setup){.backward        = (residency_prefetch)(round % 3),
                                .forward         = round % 2 == 0,
                                .max_live        = 10 + (uint64_t)(round % 5) * 10,
                                .prefetch_bucket = 10,
                                .max_reuse       = (uint64_t)(round % 4) * 15},
              5, 10);
        int64_t step  = 0;
        uint32_t held = 0;
        for (int call = 0; call < 60; call++) {
            draw                = draw * 6364136223846793005u + 1442695040888963407u;
            const uint32_t unit = (uint32_t)(draw >> 33) % 5, what = (uint32_t)(draw >> 60) % 5;
            s.log[0] = '\0';
            if (what <= 1) residency_use(s.r, unit, (pen_phase)(draw >> 40 & 1), step);
            if (what == 2) residency_release(s.r, unit, (pen_phase)(draw >> 40 & 1));
            if (what == 3 && s.n_coming > 0) residency_arrived(s.r, s.coming[--s.n_coming]);
            if (what == 4 && call % 7 == 0) {
                residency_step_end(s.r);
                step++;
            }
            for (const char *at = s.log; (at = strstr(at, "fetch")) != NULL; at++)
                held++, fetches++;
            for (const char *at = s.log; (at = strstr(at, "free")) != NULL; at++) held--, drops++;
            assert_int_equal(residency_live(s.r), 10 * held);
        }
        residency_destroy(s.r);
    }
    printf("%d fetches, %d drops\n", fetches, drops);
    assert_true(drops > 500 && fetches >= drops);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residency_pre_fetches_the_next_unit_before_the_backward_of_this_one),
        cmocka_unit_test(test_residency_post_fetches_the_next_unit_after_the_backward_of_this_one),
        cmocka_unit_test(test_residency_none_fetches_a_unit_when_it_is_used),
        cmocka_unit_test(test_residency_forward_prefetch_is_one_unit_ahead),
        cmocka_unit_test(test_residency_fetch_ahead_waits_for_room_below_max_live),
        cmocka_unit_test(test_residency_current_unit_may_exceed_max_live),
        cmocka_unit_test(test_residency_unit_larger_than_prefetch_bucket_is_not_fetched_ahead),
        cmocka_unit_test(test_residency_unit_without_moving_elements_is_always_here),
        cmocka_unit_test(test_residency_unit_is_kept_when_it_is_used_again_within_max_reuse),
        cmocka_unit_test(test_residency_drops_kept_units_before_a_used_one_exceeds_max_live),
        cmocka_unit_test(test_residency_keeps_forward_drops_after_the_backward_only),
        cmocka_unit_test(test_residency_values_of_an_earlier_step_are_fetched_again),
        cmocka_unit_test(test_residency_late_arrival_of_an_old_value_is_not_taken_for_a_new_one),
        cmocka_unit_test(test_residency_unit_released_before_it_came_is_dropped_when_it_comes),
        cmocka_unit_test(test_residency_uses_nest),
        cmocka_unit_test(test_residency_order_that_changes_stops_fetching_ahead_in_that_step),
        cmocka_unit_test(test_residency_warns_once_of_three_new_orders_in_a_row),
        cmocka_unit_test(test_residency_steps_with_and_without_validation_are_both_fetched_ahead),
        cmocka_unit_test(test_residency_step_with_fewer_uses_is_an_order_of_its_own),
        cmocka_unit_test(test_residency_uses_outside_of_steps_leave_no_trace),
        cmocka_unit_test(test_residency_fetch_that_failed_is_tried_again_by_the_next_use),
        cmocka_unit_test(test_residency_accounts_stay_right_under_random_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
