/* worker_step_test.c - the steps of a program that trains alone: results, the order of calls, overlapping tensors. */
#include "tests/unit/worker_api_rig.h"

#include <math.h>

/* ---- training -------------------------------------------------------------------------------- */
static void test_api_linear_regression_converges(void **state)
{
    (void)state;
    trained t = train(SETTINGS("optim=sgd lr=0.5", "steps=200"), 2, 0);
    pen_step step;
    pen_status s;
    int64_t index = 0;
    while ((s = pen_step_begin(t.ctx, &step)) == PEN_OK) {
        assert_int_equal(step.index, index++);
        float slope = 0, offset = 0; /* y = 3 x - 1 on x in [-1, 1] */
        for (int i = 0; i < 20; i++) {
            float x = (float)(i - 10) / 10, error = t.param[0] * x + t.param[1] - (3 * x - 1);
            slope += error * x / 20, offset += error / 20;
        }
        t.grad[0] = slope, t.grad[1] = offset;
        pen_ready(t.ctx, t.w, PEN_ALL);
        ok(pen_step_end(t.ctx, &step));
        assert_int_equal(step.outcome, PEN_APPLIED);
        assert_int_equal(step.applied, index);
    }
    assert_int_equal(s, PEN_END);
    assert_int_equal(index, 200);
    assert_float_equal(t.param[0], 3, 1e-4);
    assert_float_equal(t.param[1], -1, 1e-4);
    finish(&t);
    assert_string_equal(log_text, "alone (no RANK in the environment; `penstock run "
                                  "--nproc-per-node 2 ./unit_worker_step_test` starts two)\n");
}

static void test_api_step_reports_norm_and_clips(void **state)
{
    (void)state;
    trained t = train(SETTINGS("optim=sgd lr=1", "clip=1"), 2, 0);
    pen_step step;
    ok(pen_step_begin(t.ctx, &step));
    t.grad[0] = 3, t.grad[1] = 4;
    pen_ready(t.ctx, NULL, PEN_ALL);
    ok(pen_step_end(t.ctx, &step));
    assert_float_equal(step.grad_norm, 5, 1e-12);
    assert_float_equal(step.clip, 0.2, 1e-6);
    assert_float_equal(t.param[0], -0.6, 1e-6);
    finish(&t);
}

static void test_api_step_that_is_not_finite_is_skipped_and_changes_nothing(void **state)
{
    (void)state;
    trained t = train(SETTINGS("optim=adamw lr=0.1"), 5000, 0);
    pen_step step;
    uint32_t before, after;
    double skipped;
    for (int i = 0; i < 2; i++) {
        ok(pen_step_begin(t.ctx, &step));
        for (int j = 0; j < 5000; j++) t.grad[j] = 1;
        if (i == 1) t.grad[4999] = NAN;
        ok(pen_digest(t.ctx, &before));
        pen_ready(t.ctx, t.w, PEN_ALL);
        ok(pen_step_end(t.ctx, &step));
        ok(pen_digest(t.ctx, &after));
        assert_int_equal(before == after, i == 1);
    }
    assert_int_equal(step.outcome, PEN_SKIPPED_NONFINITE);
    assert_int_equal(step.bad_rank, 0);
    assert_ptr_equal(step.bad_tensor, t.w);
    assert_int_equal(step.applied, 1);
    ok(pen_stat(t.ctx, "steps.skipped", &skipped));
    assert_float_equal(skipped, 1, 0);
    assert_non_null(strstr(log_text, "step 1 skipped: first non-finite gradient in 'w' on rank 0"));
    finish(&t);
}

static void test_api_weight_of_zero_is_an_empty_step(void **state)
{
    (void)state;
    trained t = train(SETTINGS("optim=sgd lr=1"), 2, 0);
    pen_step step;
    ok(pen_step_begin(t.ctx, &step));
    step.weight = 0;
    t.grad[0]   = 1;
    pen_ready(t.ctx, t.w, PEN_ALL);
    ok(pen_step_end(t.ctx, &step));
    assert_int_equal(step.outcome, PEN_SKIPPED_EMPTY);
    assert_true(t.param[0] == 0);
    finish(&t);
}

static void test_api_weight_is_a_mean_and_not_a_sum(void **state)
{
    (void)state;
    trained t = train(SETTINGS("optim=sgd lr=1"), 2, 0);
    pen_step step;
    ok(pen_step_begin(t.ctx, &step));
    step.weight = 32; /* samples */
    t.grad[0]   = 1;
    pen_ready(t.ctx, t.w, PEN_ALL);
    ok(pen_step_end(t.ctx, &step));
    assert_float_equal(t.param[0], -1, 1e-6);
    finish(&t);
}

static void test_api_lr_scale_multiplies_the_rate_and_is_fixed_by_the_first_ready(void **state)
{
    (void)state;
    trained t = train(SETTINGS("optim=sgd lr=1"), 2, 0);
    pen_step step;
    ok(pen_step_begin(t.ctx, &step));
    assert_float_equal(step.lr, 1, 0);
    step.lr_scale = 0.25;
    t.grad[0]     = 1;
    pen_ready(t.ctx, t.w, PEN_ALL);
    step.lr_scale = 0.5;
    expect(pen_step_end(t.ctx, &step), PEN_INVALID_ARGUMENT,
           "pen_step_end: step.weight or step.lr_scale changed after the first pen_ready() of step "
           "0, which sends them; set them before it");
    step.lr_scale = 0.25;
    ok(pen_step_end(t.ctx, &step));
    assert_float_equal(t.param[0], -0.25, 1e-6);
    finish(&t);
}

static void test_api_groups_have_their_own_rule_and_rate(void **state)
{
    (void)state;
    pen_ctx *ctx;
    pen_params *slow;
    pen_step step;
    float a = 0, b = 0, frozen = 7, ga = 1, gb = 1;
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    ok(pen_params_new(ctx, &(pen_params_desc){.name = "slow", .optim = "sgd lr=0.125"}, &slow));
    assert_int_equal(pen_params_lr(slow, 1), PEN_WRONG_STATE);
    ok(pen_register(
        ctx, &(pen_tensor_desc){.name = "a", .ndim = 1, .shape = {1}, .param = &a, .grad = &ga},
        NULL));
    ok(pen_register(
        ctx,
        &(pen_tensor_desc){
            .name = "b", .ndim = 1, .shape = {1}, .param = &b, .grad = &gb, .params = slow},
        NULL));
    ok(pen_register(
        ctx, &(pen_tensor_desc){.name = "f", .ndim = 0, .flags = PEN_FROZEN, .param = &frozen},
        NULL));
    ok(pen_commit(ctx));
    ok(pen_step_begin(ctx, &step));
    pen_ready(ctx, NULL, PEN_ALL);
    ok(pen_step_end(ctx, &step));
    assert_true(a == -1 && b == -0.125f && frozen == 7);
    ok(pen_params_lr(slow, 4)); /* of one group only, from the next step on */
    ok(pen_step_begin(ctx, &step));
    pen_ready(ctx, NULL, PEN_ALL);
    assert_int_equal(pen_params_lr(slow, 5), PEN_WRONG_STATE);
    ok(pen_step_end(ctx, &step));
    assert_true(a == -2 && b == -4.125f);
    assert_int_equal(pen_params_lr(slow, -1), PEN_INVALID_ARGUMENT);
    assert_int_equal(pen_params_lr(slow, NAN), PEN_INVALID_ARGUMENT);
    assert_int_equal(pen_params_lr(NULL, 1), PEN_INVALID_ARGUMENT);
    ok(pen_finalize(ctx));
}

static void test_api_sixteen_bits_train_with_a_master_of_thirty_two(void **state)
{
    (void)state;
    pen_ctx *ctx;
    pen_step step;
    uint16_t one = 0x3f80; /* bf16 1.0: one step of 2^-9 is lost in it, 8 of them are not */
    float grad   = 1;
    ok(pen_init(SETTINGS("optim=sgd lr=0.001953125"), &ctx));
    ok(pen_register(ctx,
                    &(pen_tensor_desc){.name       = "w",
                                       .dtype      = PEN_BF16,
                                       .grad_dtype = PEN_F32,
                                       .ndim       = 1,
                                       .shape      = {1},
                                       .param      = &one,
                                       .grad       = &grad},
                    NULL));
    ok(pen_commit(ctx));
    for (int i = 0; i < 8; i++) {
        ok(pen_step_begin(ctx, &step));
        pen_ready(ctx, NULL, PEN_ALL);
        ok(pen_step_end(ctx, &step));
    }
    assert_int_equal(one, 0x3f7c); /* 1 - 8/512 = 0.984375 */
    ok(pen_finalize(ctx));
}

static void test_api_digest_depends_on_every_byte_and_on_nothing_else(void **state)
{
    (void)state;
    uint32_t a, b, c;
    trained t = train(SETTINGS("optim=sgd lr=1"), 100, 0);
    ok(pen_digest(t.ctx, &a));
    ok(pen_digest(t.ctx, &b));
    assert_int_equal(a, b);
    t.param[99] = 1;
    ok(pen_digest(t.ctx, &c));
    assert_int_not_equal(a, c);
    finish(&t);
}

static void test_api_two_runs_give_the_same_bits(void **state)
{
    (void)state;
    uint32_t crc[2];
    for (int run = 0; run < 2; run++) {
        trained t = train(SETTINGS("optim=adamw lr=0.01", "steps=20", "clip=0.5"), 70001, 0);
        pen_step step;
        while (pen_step_begin(t.ctx, &step) == PEN_OK) {
            for (int i = 0; i < 70001; i++)
                t.grad[i] = (float)((i + step.index) % 13) - 6 + t.param[i];
            pen_ready(t.ctx, t.w, PEN_ALL);
            ok(pen_step_end(t.ctx, &step));
        }
        ok(pen_digest(t.ctx, &crc[run]));
        finish(&t);
    }
    assert_int_equal(crc[0], crc[1]);
}

/* ---- order ----------------------------------------------------------------------------------- */
static void test_api_step_end_names_the_tensor_it_has_not_seen(void **state)
{
    (void)state;
    pen_ctx *ctx;
    pen_tensor *w;
    pen_step step;
    pen_error error;
    float a[4] = {0}, b[2] = {0};
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    ok(pen_register(
        ctx,
        &(pen_tensor_desc){.name = "fc2.weight", .ndim = 1, .shape = {2}, .param = a, .grad = b},
        &w));
    ok(pen_register(
        ctx,
        &(pen_tensor_desc){.name = "fc2.bias", .ndim = 1, .shape = {2}, .param = a + 2, .grad = b},
        NULL));
    ok(pen_commit(ctx));
    ok(pen_step_begin(ctx, &step));
    pen_ready(ctx, w, PEN_ALL);
    expect(pen_step_end(ctx, &step), PEN_WRONG_STATE,
           "step 0 has not seen 'fc2.bias' from this rank; call pen_ready() on it, or register it "
           "with PEN_ZERO_IF_UNUSED");
    pen_last_error(&error);
    assert_string_equal(error.tensor, "fc2.bias");
    assert_int_equal(error.step, 0);
    pen_ready(ctx, NULL, PEN_ALL); /* and can be corrected */
    ok(pen_step_end(ctx, &step));
    ok(pen_finalize(ctx));
}

static void test_api_unused_tensor_may_count_as_zero(void **state)
{
    (void)state;
    trained t = train(SETTINGS("optim=sgd lr=1 weight_decay=0.5"), 3, PEN_ZERO_IF_UNUSED);
    pen_step step;
    t.param[0] = 2, t.grad[0] = 100;
    ok(pen_step_begin(t.ctx, &step));
    ok(pen_step_end(t.ctx, &step));
    assert_float_equal(t.param[0], 1, 1e-6); /* decay only */
    assert_float_equal(step.grad_norm, 0, 0);
    finish(&t);
}

static void test_api_calls_out_of_order_say_the_order(void **state)
{
    (void)state;
    pen_ctx *ctx;
    pen_step step;
    uint32_t crc;
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    expect(pen_step_begin(ctx, &step), PEN_WRONG_STATE,
           "pen_step_begin: pen_commit has not been called; the order is: register, then commit, "
           "then step");
    expect(pen_step_end(ctx, &step), PEN_WRONG_STATE,
           "pen_step_end: pen_commit has not been called; the order is: register, then commit, "
           "then step");
    expect(pen_digest(ctx, &crc), PEN_WRONG_STATE,
           "pen_digest: pen_commit has not been called; the order is: register, then commit, "
           "then step");
    expect(pen_commit(ctx), PEN_WRONG_STATE,
           "no tensor is registered; the order is: register, then commit, then step");
    ok(pen_finalize(ctx));
}

static void test_api_errors_of_ready_are_remembered_until_step_end(void **state)
{
    (void)state;
    trained t = train(SETTINGS("optim=sgd lr=1"), 2, 0);
    pen_step step;
    ok(pen_step_begin(t.ctx, &step));
    pen_ready(t.ctx, t.w, PEN_ALL);
    pen_ready(t.ctx, t.w, PEN_ALL);
    expect(pen_step_end(t.ctx, &step), PEN_WRONG_STATE,
           "pen_ready('w') was called twice in step 0");
    ok(pen_step_end(t.ctx, &step));
    finish(&t);
}

static void test_api_errors_of_register_are_remembered_until_commit(void **state)
{
    (void)state;
    pen_ctx *ctx;
    float a[2] = {0};
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    pen_register(
        ctx, &(pen_tensor_desc){.name = "w", .ndim = 1, .shape = {2}, .param = a, .grad = a}, NULL);
    pen_register(
        ctx, &(pen_tensor_desc){.name = "w", .ndim = 1, .shape = {2}, .param = a, .grad = a}, NULL);
    pen_register(ctx, &(pen_tensor_desc){.name = "v", .ndim = 9, .param = a, .grad = a}, NULL);
    expect(pen_commit(ctx), PEN_INVALID_ARGUMENT, "'w' is registered twice");
    ok(pen_finalize(ctx));
}

static void test_api_step_begun_and_not_ended_is_void_unless_something_was_sent(void **state)
{
    (void)state;
    trained t = train(SETTINGS("optim=sgd lr=1"), 2, 0);
    pen_step step;
    ok(pen_step_begin(t.ctx, &step));
    ok(pen_step_begin(t.ctx, &step));
    assert_int_equal(step.index, 0);
    pen_ready(t.ctx, t.w, PEN_ALL);
    expect(pen_step_begin(t.ctx, &step), PEN_WRONG_STATE,
           "pen_step_begin: step 0 has sent gradients; call pen_step_end() first");
    ok(pen_step_end(t.ctx, &step));
    finish(&t);
}

/* ---- the program's memory -------------------------------------------------------------------- */
static void test_api_tensors_that_overlap_are_refused_by_name(void **state)
{
    (void)state;
    static float memory[10], grad[10];
    static const struct {
        int second;
        pen_status status;
    } rows[] = {{0, PEN_INVALID_ARGUMENT}, {3, PEN_INVALID_ARGUMENT}, {4, PEN_OK}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        pen_ctx *ctx;
        pen_tensor *t;
        pen_tensor_desc d = {.ndim = 1, .shape = {4}, .grad = grad};
        ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
        d.name = "second", d.param = memory + rows[i].second;
        ok(pen_register(ctx, &d, &t));
        d.name = "first", d.param = memory;
        ok(pen_register(ctx, &d, &t));
        const pen_status status = pen_commit(ctx);
        assert_int_equal(status, rows[i].status);
        if (status != PEN_OK) {
            const char *said = pen_last_error(NULL);
            assert_non_null(strstr(said, "'first'"));
            assert_non_null(strstr(said, "'second'"));
            assert_non_null(strstr(said, "overlap; use separate memory, or register the "
                                         "second with tied_to"));
        }
        (void)pen_finalize(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_api_linear_regression_converges, set_up),
        cmocka_unit_test_setup(test_api_step_reports_norm_and_clips, set_up),
        cmocka_unit_test_setup(test_api_step_that_is_not_finite_is_skipped_and_changes_nothing,
                               set_up),
        cmocka_unit_test_setup(test_api_weight_of_zero_is_an_empty_step, set_up),
        cmocka_unit_test_setup(test_api_weight_is_a_mean_and_not_a_sum, set_up),
        cmocka_unit_test_setup(
            test_api_lr_scale_multiplies_the_rate_and_is_fixed_by_the_first_ready, set_up),
        cmocka_unit_test_setup(test_api_groups_have_their_own_rule_and_rate, set_up),
        cmocka_unit_test_setup(test_api_sixteen_bits_train_with_a_master_of_thirty_two, set_up),
        cmocka_unit_test_setup(test_api_digest_depends_on_every_byte_and_on_nothing_else, set_up),
        cmocka_unit_test_setup(test_api_two_runs_give_the_same_bits, set_up),
        cmocka_unit_test_setup(test_api_step_end_names_the_tensor_it_has_not_seen, set_up),
        cmocka_unit_test_setup(test_api_unused_tensor_may_count_as_zero, set_up),
        cmocka_unit_test_setup(test_api_calls_out_of_order_say_the_order, set_up),
        cmocka_unit_test_setup(test_api_errors_of_ready_are_remembered_until_step_end, set_up),
        cmocka_unit_test_setup(test_api_errors_of_register_are_remembered_until_commit, set_up),
        cmocka_unit_test_setup(test_api_step_begun_and_not_ended_is_void_unless_something_was_sent,
                               set_up),
        cmocka_unit_test_setup(test_api_tensors_that_overlap_are_refused_by_name, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
