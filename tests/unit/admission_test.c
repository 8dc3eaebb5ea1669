/* admission_test.c - which gradients a server accepts; a refused one leaves no trace. */
#include "server/shard/admission.h"
#include "tests/support/shard_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* ---- the setting ----------------------------------------------------------------------------- */

static void test_admission_setting_is_off_finite_or_a_bound(void **state)
{
    (void)state;
    admission a;
    pen_error why;
    assert_int_equal(admission_parse("off", &a, &why), PEN_OK);
    assert_false(a.finite);
    assert_int_equal(admission_parse("finite", &a, &why), PEN_OK);
    assert_true(a.finite && a.norm_max == 0);
    assert_int_equal(admission_parse("norm:2.5e3", &a, &why), PEN_OK);
    assert_true(a.finite && a.norm_max == 2500);
}

static void test_admission_setting_of_anything_else_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",        "on",      "norm",      "norm:",    "norm:0",
                                        "norm:-1", "norm:x",  "norm:1x",   "norm:nan", "norm:inf",
                                        "FINITE",  "finite ", "norm:1e999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        admission a = {.norm_max = 7};
        pen_error why;
        assert_int_equal(admission_parse(wrong[i], &a, &why), PEN_BAD_SETTING);
        assert_non_null(strstr(why.text, "admission is '"));
        assert_true(a.norm_max == 7);
    }
}

/* ---- the check ------------------------------------------------------------------------------- */

static admission_gradient gradient(const void *data, size_t count, pen_dtype dtype)
{
    return (admission_gradient){.rank       = 3,
                                .step       = 41,
                                .tensor     = "fc1.weight",
                                .data       = data,
                                .count      = count,
                                .dtype      = dtype,
                                .loss_scale = 1};
}

static void test_admission_names_rank_tensor_and_step(void **state)
{
    (void)state;
    const admission finite = {.finite = true}, bounded = {.finite = true, .norm_max = 5};
    float data[10000] = {0};
    pen_error why;
    admission_gradient g = gradient(data, 10000, PEN_F32);
    assert_int_equal(admission_check(&finite, &g, &why), PEN_OK);
    data[9999] = INFINITY;
    assert_int_equal(admission_check(&finite, &g, &why), PEN_INVALID_ARGUMENT);
    assert_string_equal(why.text, "the gradient of 'fc1.weight' from worker 3 for step 41 is not "
                                  "finite; admission accepts finite ones only");
    data[9999] = 4, data[0] = 3;
    assert_int_equal(admission_check(&bounded, &g, &why), PEN_OK); /* exactly 5 */
    data[4096] = 1;
    assert_int_equal(admission_check(&bounded, &g, &why), PEN_INVALID_ARGUMENT);
    assert_string_equal(
        why.text, "a piece of the gradient of 'fc1.weight' from worker 3 for step 41 has norm "
                  "5.09902; admission accepts norms up to 5");
    g.loss_scale = 1024; /* scaled on the wire; the check compares the unscaled value */
    assert_int_equal(admission_check(&bounded, &g, &why), PEN_OK);
    const admission off = {0};
    data[0]             = NAN;
    assert_int_equal(admission_check(&off, &g, &why), PEN_OK);
}

static void test_admission_reads_gradients_as_they_travel(void **state)
{
    (void)state;
    const admission bounded = {.finite = true, .norm_max = 1};
    const uint16_t half = 0x4000 /* 2 in fp16 */, bf16 = 0x4000 /* 2 in bf16 */, nan = 0x7fff;
    pen_error why;
    const admission_gradient all[] = {gradient(&half, 1, PEN_F16), gradient(&bf16, 1, PEN_BF16),
                                      gradient(&nan, 1, PEN_F16), gradient(&nan, 1, PEN_BF16)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_int_equal(admission_check(&bounded, &all[i], &why), PEN_INVALID_ARGUMENT);
    const uint16_t small          = 0x3800 /* 0.5 in fp16 */;
    const admission_gradient fine = gradient(&small, 1, PEN_F16);
    assert_int_equal(admission_check(&bounded, &fine, &why), PEN_OK);
}

/* ---- in a shard ------------------------------------------------------------------------------- */

enum { RANKS = 2, ELEMENTS = 12300 };

static rig *start(const char *sync, admission a)
{
    static const wire_tensor tensor = {
        .name = "w", .dtype = PEN_F32, .ndim = 1, .shape = {ELEMENTS}, .init = ""};
    static wire_group group;
    group                  = (wire_group){.name = "all", .optim = "sgd lr=1", .sync = sync};
    const wire_model model = {.n_tensors = 1, .tensor = &tensor, .n_groups = 1, .group = &group};
    rig *r = rig_create(&model, &(rig_options){.n_shards = 1, .world_size = RANKS, .admission = a});
    rig_init(r);
    return r;
}

static float poisoned(int32_t rank, uint64_t step, uint32_t tensor, uint64_t i)
{
    return i == 77 ? NAN : rig_noise(rank, step, tensor, i);
}

static float huge(int32_t rank, uint64_t step, uint32_t tensor, uint64_t i)
{
    return 1e6f * rig_noise(rank, step, tensor, i);
}

static uint32_t trained_crc(const char *sync, admission a, rig_gradient bad)
{
    rig *r = start(sync, a);
    for (uint64_t step = 0; step < 3; step++)
        for (int32_t rank = 0; rank < RANKS; rank++) {
            if (bad != NULL && rank == 1) {
                const int before = r->reports;
                rig_push_all(r, rank, step, WIRE_WANT_VALUES, bad); /* refused, repeatedly */
                rig_push_all(r, rank, step, WIRE_WANT_VALUES, bad);
                const rig_message *m = rig_find(r, WIRE_REFUSED, rank, UINT32_MAX);
                assert_non_null(m);
                assert_int_equal(m->d.status, PEN_INVALID_ARGUMENT);
                assert_non_null(strstr(m->d.text, "'w' from worker 1 for step"));
                assert_int_equal(r->reports, before); /* only this rank's push failed */
            }
            rig_push_all(r, rank, step, WIRE_WANT_VALUES, rig_noise);
            rig_push_all(r, rank, step, WIRE_WANT_VALUES, rig_noise); /* a repeat, as before */
            rig_flush(r);
        }
    const uint32_t crc = rig_params_crc(r);
    rig_destroy(r);
    return crc;
}

static void test_admission_refused_pushes_leave_no_trace_and_a_good_repeat_counts_once(void **state)
{
    (void)state;
    const admission off = {0}, finite = {.finite = true},
                    bounded = {.finite = true, .norm_max = 1e4};
    const uint32_t clean    = trained_crc("async", off, NULL);
    assert_int_equal(trained_crc("async", finite, NULL), clean); /* a check changes no bit */
    assert_int_equal(trained_crc("async", finite, poisoned), clean);
    assert_int_equal(trained_crc("async", bounded, huge), clean);
}

/* The other ranks wait for that push: all of them get the rank that made it. */
static void test_admission_refusal_in_a_two_phase_step_is_reported_to_the_job(void **state)
{
    (void)state;
    rig *r = start("bsp", (admission){.finite = true});
    rig_push_all(r, 0, 0, 0, rig_noise);
    rig_push_all(r, 1, 0, 0, poisoned);
    rig_flush(r);
    assert_int_equal(r->reports, 1);
    assert_string_equal(r->report.text,
                        "the gradient of 'w' from worker 1 for step 0 is not finite; "
                        "admission accepts finite ones only");
    assert_int_equal(r->report.rank, 1);
    assert_int_equal(stat_get(&r->stats, STAT_REFUSED), 1);
    rig_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_admission_setting_is_off_finite_or_a_bound),
        cmocka_unit_test(test_admission_setting_of_anything_else_is_refused_and_changes_nothing),
        cmocka_unit_test(test_admission_names_rank_tensor_and_step),
        cmocka_unit_test(test_admission_reads_gradients_as_they_travel),
        cmocka_unit_test(
            test_admission_refused_pushes_leave_no_trace_and_a_good_repeat_counts_once),
        cmocka_unit_test(test_admission_refusal_in_a_two_phase_step_is_reported_to_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
