/* loss_scale_test.c - the loss scale after every step, compared with DeepSpeed's. */
#include "worker/train/schedule/loss_scale.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    double scale;
    uint32_t hysteresis;
} trace;

static void follow(loss_scale *l, const char *overflows, const trace *want)
{
    for (size_t i = 0; overflows[i] != '\0'; i++) {
        assert_true(loss_scale_update(l, overflows[i] == '1'));
        if (l->scale != want[i].scale || l->hysteresis_left != want[i].hysteresis)
            fail_msg("after step %zu of %s: scale %g, hysteresis %u, and not %g, %u", i, overflows,
                     l->scale, l->hysteresis_left, want[i].scale, want[i].hysteresis);
    }
}

static void test_loss_scale_follows_the_trace_of_deepspeed(void **state)
{
    (void)state;
    static const trace want[] = {{65536, 1}, {32768, 1}, {16384, 1}, {16384, 1}, {16384, 1},
                                 {16384, 1}, {16384, 1}, {32768, 2}, {32768, 2}, {32768, 2},
                                 {32768, 2}, {65536, 2}, {65536, 1}, {65536, 1}, {32768, 1}};
    loss_scale l;
    loss_scale_dynamic(&l, 65536, 1, 4, 2, false);
    follow(&l, "111000000000101", want);
}

static void test_loss_scale_forgives_lone_overflows_with_consecutive_hysteresis(void **state)
{
    (void)state;
    static const trace want[] = {{65536, 1}, {65536, 2}, {65536, 1},
                                 {65536, 2}, {65536, 1}, {32768, 1}};
    loss_scale l;
    loss_scale_dynamic(&l, 65536, 1, 4, 2, true);
    follow(&l, "101011", want);
}

static void test_loss_scale_doubles_after_each_window(void **state)
{
    (void)state;
    loss_scale l;
    loss_scale_dynamic(&l, 65536, 1, 1000, 2, false);
    for (int step = 0; step <= 3500; step++) {
        const double before = l.scale;
        assert_true(loss_scale_update(&l, false));
        const bool doubles = step > 0 && step % 1000 == 0;
        assert_true(l.scale == (doubles ? 2 : 1) * before);
    }
    assert_true(l.scale == 524288);
}

static void test_loss_scale_reports_an_overflow_at_its_minimum(void **state)
{
    (void)state;
    loss_scale l;
    loss_scale_dynamic(&l, 8, 3, 2, 1, false);
    assert_true(loss_scale_update(&l, true));
    assert_true(l.scale == 4);
    assert_true(loss_scale_update(&l, true));
    assert_true(l.scale == 3); /* not less */
    assert_false(loss_scale_update(&l, true));
    assert_true(l.scale == 3);
    for (int i = 0; i < 3; i++)
        assert_true(loss_scale_update(&l, false)); /* the caller may go on all the same */
    assert_true(l.scale == 6);
}

static void test_loss_scale_that_is_fixed_never_changes(void **state)
{
    (void)state;
    loss_scale l;
    loss_scale_static(&l, 128);
    for (int i = 0; i < 5000; i++) assert_true(loss_scale_update(&l, i % 3 == 0));
    assert_true(l.scale == 128);
}

static void test_loss_scale_stays_finite(void **state)
{
    (void)state;
    loss_scale l;
    loss_scale_dynamic(&l, 65536, 1, 1, 2, false);
    for (int i = 0; i < 5000; i++) assert_true(loss_scale_update(&l, false));
    assert_true(l.scale < 1e308 && l.scale > 1e300);
}

/* ---- saved ----------------------------------------------------------------------------------- */
static void test_loss_scale_resumes_from_its_saved_state(void **state)
{
    (void)state;
    static const char pattern[] = "0010000110000000010100000000";
    for (size_t capture = 0; capture < sizeof pattern - 1; capture++) {
        loss_scale through, first, second;
        uint8_t bytes[LOSS_SCALE_BYTES];
        pen_error why;
        loss_scale_dynamic(&through, 65536, 1, 3, 2, false);
        first = second = through;
        for (size_t i = 0; i < capture; i++) loss_scale_update(&first, pattern[i] == '1');
        loss_scale_save(&first, bytes);
        assert_int_equal(loss_scale_load(&second, bytes, sizeof bytes, &why), PEN_OK);
        for (size_t i = 0; pattern[i] != '\0'; i++) {
            loss_scale_update(&through, pattern[i] == '1');
            if (i >= capture) loss_scale_update(&second, pattern[i] == '1');
        }
        assert_memory_equal(&through.scale, &second.scale, sizeof through.scale);
        assert_int_equal(through.hysteresis_left, second.hysteresis_left);
        assert_int_equal(through.iteration, second.iteration);
        assert_int_equal(through.last_overflow, second.last_overflow);
    }
}

static void test_loss_scale_checks_what_it_loads(void **state)
{
    (void)state;
    loss_scale l, before;
    uint8_t good[LOSS_SCALE_BYTES], bad[LOSS_SCALE_BYTES];
    pen_error why;
    loss_scale_dynamic(&l, 1024, 1, 10, 2, false);
    loss_scale_save(&l, good);
    before = l;
    for (size_t size = 0; size < sizeof good; size++)
        assert_int_equal(loss_scale_load(&l, good, size, &why), PEN_CORRUPT);
    static const int at[] = {7, 8, 16,
                             23}; /* scale, hysteresis, iteration less than the last overflow */
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        memcpy(bad, good, sizeof bad);
        bad[at[i]] = at[i] == 8 ? 0 : at[i] == 16 ? 0 : 0xff;
        if (at[i] == 16) bad[24] = 0, memset(bad + 25, 0, 7);
        assert_int_equal(loss_scale_load(&l, bad, sizeof bad, &why), PEN_CORRUPT);
        assert_non_null(strstr(why.text, "invalid saved loss scale"));
        assert_memory_equal(&l, &before, sizeof l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_scale_follows_the_trace_of_deepspeed),
        cmocka_unit_test(test_loss_scale_forgives_lone_overflows_with_consecutive_hysteresis),
        cmocka_unit_test(test_loss_scale_doubles_after_each_window),
        cmocka_unit_test(test_loss_scale_reports_an_overflow_at_its_minimum),
        cmocka_unit_test(test_loss_scale_that_is_fixed_never_changes),
        cmocka_unit_test(test_loss_scale_stays_finite),
        cmocka_unit_test(test_loss_scale_resumes_from_its_saved_state),
        cmocka_unit_test(test_loss_scale_checks_what_it_loads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
