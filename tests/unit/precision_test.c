/* precision_test.c - training alone with a loss scale, schedules, clipping and batches, by the public
 * functions. */
#include "penstock.h"
#include "tests/support/golden_training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TENSORS = 2, F16_INF = 0x7c00, F16_ONE = 0x3c00 };

typedef struct {
    pen_ctx *ctx;
    pen_params *group[TENSORS];
    pen_tensor *tensor[TENSORS];
    float param[TENSORS], grad[TENSORS];
    uint16_t param16, grad16;
    pen_step step;
} job;

static void must(pen_status status)
{
    if (status != PEN_OK) fail_msg("%s", pen_last_error(NULL));
}

/* step() multiplies its gradients by the scale. */
static void start(job *j, const char *const settings[])
{
    const char *said[8] = {"applies_loss_scale=yes"};
    for (int i = 0; settings != NULL && i < 6 && settings[i] != NULL; i++)
        said[i + 1] = settings[i];
    memset(j, 0, sizeof *j);
    pen_log_set(NULL, NULL, -1);
    must(pen_init(said, &j->ctx));
}

/* Tensor i is one float32 with the initial value 1. */
static void add(job *j, int i, const char *optim, const char *schedule)
{
    const pen_params_desc group = {.optim = optim, .schedule = schedule};
    char name[8];
    snprintf(name, sizeof name, "w%d", i);
    j->param[i] = 1;
    must(pen_params_new(j->ctx, &group, &j->group[i]));
    must(pen_register(
        j->ctx,
        &(pen_tensor_desc){
            .name = name, .param = &j->param[i], .grad = &j->grad[i], .params = j->group[i]},
        &j->tensor[i]));
}

static void add_half(job *j, const char *optim)
{
    j->param16 = F16_ONE;
    must(pen_params_new(j->ctx, &(pen_params_desc){.optim = optim}, &j->group[0]));
    must(pen_register(j->ctx,
                      &(pen_tensor_desc){.name   = "half",
                                         .dtype  = PEN_F16,
                                         .param  = &j->param16,
                                         .grad   = &j->grad16,
                                         .params = j->group[0]},
                      &j->tensor[0]));
}

/* The program multiplies its loss by the scale, so its gradients are that much larger. */
static pen_status step(job *j, float g0, float g1)
{
    j->grad[0] = g0 * (float)j->step.loss_scale;
    j->grad[1] = g1 * (float)j->step.loss_scale;
    return pen_step_end(j->ctx, (must(pen_ready(j->ctx, NULL, PEN_ALL)), &j->step));
}

static void finish(job *j)
{
    must(pen_finalize(j->ctx));
}

/* ---- the loss scale -------------------------------------------------------------------------- */
static void follow(const char *const settings[], const char *overflows, const double *want)
{
    job j;
    start(&j, settings);
    add_half(&j, "sgd lr=0.5");
    must(pen_commit(j.ctx));
    for (size_t i = 0; overflows[i] != '\0'; i++) {
        must(pen_step_begin(j.ctx, &j.step));
        if (j.step.loss_scale != want[i])
            fail_msg("step %zu of %s: loss scale %g, and not %g", i, overflows, j.step.loss_scale,
                     want[i]);
        j.grad16 = overflows[i] == '1' ? F16_INF : 0;
        must(pen_ready(j.ctx, NULL, PEN_ALL));
        must(pen_step_end(j.ctx, &j.step));
        assert_int_equal(j.step.outcome, overflows[i] == '1' ? PEN_SKIPPED_NONFINITE : PEN_APPLIED);
    }
    finish(&j);
}

static void test_steps_have_the_loss_scale_of_deepspeeds_trace(void **state)
{
    (void)state;
    static const char *const usual[] = {"precision=fp16", "loss_scale_window=4", NULL};
    static const double want[]       = {65536, 65536, 32768, 16384, 16384, 16384, 16384, 16384,
                                        32768, 32768, 32768, 32768, 65536, 65536, 65536, 32768};
    follow(usual, "1110000000001010", want);
    static const char *const lone[] = {"precision=fp16", "loss_scale_window=4",
                                       "consecutive_hysteresis=yes", NULL};
    static const double alone[]     = {65536, 65536, 65536, 65536, 65536, 65536, 32768};
    follow(lone, "1010110", alone);
    static const char *const fixed[] = {"precision=fp16", "loss_scale=128", NULL};
    static const double always[]     = {128, 128, 128, 128};
    follow(fixed, "1101", always);
    static const char *const none[] = {"precision=bf16", NULL};
    static const double one[]       = {1, 1, 1};
    follow(none, "101", one);
}

/* Divided by a scale that has just doubled, every update after the first would be half as large. */
static void test_gradients_are_divided_by_the_scale_they_were_made_with(void **state)
{
    (void)state;
    static const char *const settings[] = {"precision=fp16", "loss_scale_window=1", NULL};
    job j;
    start(&j, settings);
    add(&j, 0, "sgd lr=1", NULL);
    must(pen_commit(j.ctx));
    double scale = 0;
    for (int i = 1; i <= 12; i++) {
        must(pen_step_begin(j.ctx, &j.step));
        assert_true(i < 3 || j.step.loss_scale == 2 * scale);
        scale = j.step.loss_scale;
        must(step(&j, 0x1p-10f, 0));
        assert_true(j.param[0] == 1 - (float)i * 0x1p-10f);
        assert_true(j.step.grad_norm == 0x1p-10);
    }
    finish(&j);
}

static void test_an_overflow_at_the_smallest_scale_names_tensor_and_rank(void **state)
{
    (void)state;
    static const char *const settings[] = {"precision=fp16", "loss_scale_power=3",
                                           "loss_scale_hysteresis=1", "loss_scale_min=4", NULL};
    job j;
    pen_error why;
    start(&j, settings);
    add(&j, 0, "sgd lr=1", NULL);
    add(&j, 1, "sgd lr=1", NULL);
    must(pen_commit(j.ctx));
    must(pen_step_begin(j.ctx, &j.step));
    must(step(&j, 0, INFINITY));
    assert_ptr_equal(j.step.bad_tensor, j.tensor[1]);
    must(pen_step_begin(j.ctx, &j.step));
    assert_true(j.step.loss_scale == 4);
    assert_int_equal(step(&j, 0, NAN), PEN_INVALID_ARGUMENT);
    assert_string_equal(
        pen_last_error(&why),
        "step 1 overflowed in 'w1' on rank 0 at the minimum loss scale, "
        "4 (loss_scale_min): the gradient itself is not finite, or too large for 16 "
        "bits");
    assert_int_equal(why.rank, 0);
    assert_int_equal(why.step, 1);
    assert_string_equal(why.tensor, "w1");
    must(pen_step_begin(j.ctx, &j.step)); /* the step has ended and was skipped */
    assert_int_equal(j.step.index, 2);
    must(step(&j, 0.25f, 0));
    assert_int_equal(j.step.applied, 1);
    assert_true(j.param[0] == 0.75f && j.param[1] == 1);
    finish(&j);
}

static void test_parameters_of_16_bits_add_up_updates_smaller_than_they_can_hold(void **state)
{
    (void)state;
    static const char *const settings[] = {"precision=fp16", "loss_scale=1024", NULL};
    job j;
    start(&j, settings);
    add_half(&j, "sgd lr=1");
    must(pen_commit(j.ctx));
    for (int i = 0; i < 64; i++) {
        must(pen_step_begin(j.ctx, &j.step));
        j.grad16 = 0x2c00; /* 2^-4: 2^-14 x 1024 */
        must(pen_ready(j.ctx, NULL, PEN_ALL));
        must(pen_step_end(j.ctx, &j.step));
    }
    assert_int_equal(j.param16, 0x3bf8); /* 1 - 2^-8 */
    finish(&j);
}

/* ---- rates ----------------------------------------------------------------------------------- */
static void test_rates_follow_applied_steps_and_not_skipped_ones(void **state)
{
    (void)state;
    static const char line[]            = "linear total_num_steps=8";
    static const char *const settings[] = {"optim=sgd lr=0.5", "schedule=linear total_num_steps=8",
                                           NULL};
    job j;
    start(&j, settings);
    add(&j, 0, "sgd lr=0.5", NULL);
    must(pen_commit(j.ctx));
    float expected = 1;
    for (int i = 0, applied = 0; i < 12; i++) {
        double factor;
        const bool skips = i % 3 == 1;
        must(pen_lr(line, applied, &factor));
        must(pen_step_begin(j.ctx, &j.step));
        assert_true(j.step.lr == 0.5 * factor);
        must(step(&j, skips ? NAN : 0.125f, 0));
        applied += !skips;
        assert_int_equal(j.step.applied, applied);
        if (!skips) expected -= (float)(0.5 * factor) * 0.125f;
        assert_true(j.param[0] == expected);
    }
    finish(&j);
}

static void test_groups_have_schedules_of_their_own(void **state)
{
    (void)state;
    static const char *const settings[] = {"schedule=constant lr=0.25", NULL};
    job j;
    start(&j, settings);
    add(&j, 0, "sgd lr=0.5", NULL); /* the setting's */
    add(&j, 1, "sgd lr=0.5",
        "LRRangeTest lr_range_test_min_lr=1e-2 " /* its own */
        "lr_range_test_step_size=1 lr_range_test_step_rate=1");
    must(pen_commit(j.ctx));
    for (int i = 0; i < 3; i++) {
        must(pen_step_begin(j.ctx, &j.step));
        assert_true(j.step.lr == 0.25); /* of the first group that has a tensor */
        j.step.lr_scale = 2;
        must(step(&j, 0.5f, 1));
    }
    assert_true(j.param[0] == 1 - 3 * 0.25f);
    assert_true(fabsf(j.param[1] - (1 - 2 * (0.01f + 0.02f + 0.03f))) < 1e-6f);
    finish(&j);
}

static void test_unknown_schedules_are_refused_where_they_are_given(void **state)
{
    (void)state;
    static const char *const settings[] = {"schedule=WarmupLr", NULL};
    pen_ctx *ctx                        = NULL;
    assert_int_equal(pen_init(settings, &ctx), PEN_BAD_SETTING);
    assert_non_null(strstr(pen_last_error(NULL), "schedule is 'WarmupLr'; choose one of constant"));
    job j;
    pen_params *p;
    start(&j, NULL);
    assert_int_equal(pen_params_new(j.ctx, &(pen_params_desc){.schedule = "OneCycle"}, &p),
                     PEN_BAD_SETTING);
    assert_non_null(strstr(pen_last_error(NULL), "OneCycle: missing cycle_min_lr"));
    finish(&j);
}

/* ---- updates --------------------------------------------------------------------------------- */
static void test_adamw_takes_the_golden_steps(void **state)
{
    (void)state;
    static const float grads[] = {0.1f, 0.2f, -0.3f};
    const double tolerance     = 2.5e-7; /* per step two roundings of a float32 near 1, each 6e-8 */
    double most                = 0;
    job j;
    start(&j, NULL);
    add(&j, 0, "adamw lr=1e-3 weight_decay=0.01", NULL);
    must(pen_commit(j.ctx));
    for (int i = 0; i < 3; i++) {
        must(pen_step_begin(j.ctx, &j.step));
        must(step(&j, grads[i], 0));
        most = fmax(most, fabs(j.param[0] - golden_adamw[i]));
    }
    print_message("largest difference: %.2g, %.0f %% of the tolerance\n", most,
                  most / tolerance * 100);
    assert_true(most <= tolerance);
    finish(&j);
}

static void test_clipping_over_tensors_leaves_the_golden_gradients(void **state)
{
    (void)state;
    static const char *const settings[] = {"precision=fp16", "loss_scale=1024", "clip=1", NULL};
    job j;
    start(&j, settings);
    add(&j, 0, "sgd lr=1", NULL);
    add(&j, 1, "sgd lr=1", NULL);
    must(pen_commit(j.ctx));
    must(pen_step_begin(j.ctx, &j.step));
    must(step(&j, 3, 4));
    assert_true(j.step.grad_norm == golden_clip[0]);
    assert_true(fabs(j.step.clip - 1 / 5.000001) < 1e-15);
    for (int i = 0; i < 2; i++)
        assert_true(fabs(1 - (double)j.param[i] - golden_clip[1 + i]) < 1e-7);
    finish(&j);
}

/* ---- what a program can query ---------------------------------------------------------------- */
static void test_info_reports_precision_and_batches(void **state)
{
    (void)state;
    static const char *const settings[] = {"precision=bf16", "train_batch=96", "micro_batch=8",
                                           NULL};
    job j;
    pen_info info;
    start(&j, settings);
    must(pen_info_get(j.ctx, &info));
    assert_string_equal(info.precision, "bf16");
    assert_int_equal(info.accum, 12);
    assert_int_equal(info.micro_batch, 8);
    assert_int_equal(info.global_batch, 96);
    finish(&j);
    start(&j, NULL);
    must(pen_info_get(j.ctx, &info));
    assert_string_equal(info.precision, "fp32");
    assert_int_equal(info.accum, 1);
    assert_int_equal(info.micro_batch, 0);
    assert_int_equal(info.global_batch, 0);
    finish(&j);
}

static void test_settings_that_contradict_each_other_are_refused(void **state)
{
    (void)state;
    static const char no_promise[] =
        "precision=fp16 needs a program that multiplies its loss by step.loss_scale: multiply it, "
        "and give pen_init() the setting applies_loss_scale=yes; or use precision=bf16";
    static const struct {
        const char *settings[5], *sentence;
    } rows[] = {
        {{"precision=fp16", NULL}, no_promise},
        {{"precision=fp16", "loss_scale=128", NULL}, no_promise},
        {{"precision=fp16", "applies_loss_scale=no", NULL}, no_promise},
        {{"loss_scale=64", NULL},
         "loss_scale=64 and precision=fp32 contradict each other: only fp16 needs a loss scale; "
         "omit it, or set precision=fp16"},
        {{"applies_loss_scale=yes", "precision=fp16", "loss_scale_min=32", "loss_scale_power=4",
          NULL},
         "loss_scale_min=32 is above the first loss scale, 2 to the power of "
         "loss_scale_power=4"},
        {{"applies_loss_scale=yes", "precision=fp16", "skip=no", NULL},
         "precision=fp16 and skip=no contradict each other: a dynamic loss scale overflows "
         "now and then; set loss_scale=1024, or skip=yes"},
        {{"applies_loss_scale=yes", "precision=fp16", "commit=eager", NULL},
         "group 'default' applies each gradient by itself, but precision=fp16 with a dynamic loss "
         "scale skips whole steps: set loss_scale=1024, or train the group with sync=bsp and "
         "commit=decide"},
        {{"train_batch=7", "accum=2", NULL},
         "train_batch=7 cannot be divided by accum=2 x 1 worker = 2: set train_batch=6 or 8"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        pen_ctx *ctx = NULL;
        pen_log_set(NULL, NULL, -1);
        assert_int_equal(pen_init(rows[i].settings, &ctx), PEN_BAD_SETTING);
        const char *said = pen_last_error(NULL);
        if (strcmp(said, rows[i].sentence) != 0) fail_msg("%s", said);
    }
}

/* A user could switch it on and hide that the program does not do it. */
static void test_only_the_program_can_declare_that_it_applies_the_loss_scale(void **state)
{
    (void)state;
    static const char *const settings[] = {"precision=fp16", NULL};
    pen_ctx *ctx                        = NULL;
    assert_int_equal(setenv("PENSTOCK_APPLIES_LOSS_SCALE", "yes", 1), 0);
    assert_int_equal(pen_init(settings, &ctx), PEN_BAD_SETTING);
    assert_int_equal(unsetenv("PENSTOCK_APPLIES_LOSS_SCALE"), 0);
    assert_non_null(strstr(pen_last_error(NULL), "unknown setting 'applies_loss_scale'"));
}

static void test_explicit_pushes_have_no_schedule(void **state)
{
    (void)state;
    static const char *const settings[] = {"sync=async", NULL};
    job j;
    start(&j, settings);
    add(&j, 0, "sgd lr=1", "linear total_num_steps=10");
    must(pen_commit(j.ctx));
    assert_int_equal(pen_push(j.ctx, j.tensor[0], PEN_ALL, NULL, NULL, NULL), PEN_UNSUPPORTED);
    assert_string_equal(pen_last_error(NULL),
                        "pen_push('w0'): the schedule 'linear total_num_steps=10' of its group "
                        "counts steps; use pen_ready() and pen_step_end()");
    must(pen_pull(j.ctx, j.tensor[0], PEN_ALL, NULL, NULL, NULL));
    finish(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_have_the_loss_scale_of_deepspeeds_trace),
        cmocka_unit_test(test_gradients_are_divided_by_the_scale_they_were_made_with),
        cmocka_unit_test(test_an_overflow_at_the_smallest_scale_names_tensor_and_rank),
        cmocka_unit_test(test_parameters_of_16_bits_add_up_updates_smaller_than_they_can_hold),
        cmocka_unit_test(test_rates_follow_applied_steps_and_not_skipped_ones),
        cmocka_unit_test(test_groups_have_schedules_of_their_own),
        cmocka_unit_test(test_unknown_schedules_are_refused_where_they_are_given),
        cmocka_unit_test(test_adamw_takes_the_golden_steps),
        cmocka_unit_test(test_clipping_over_tensors_leaves_the_golden_gradients),
        cmocka_unit_test(test_info_reports_precision_and_batches),
        cmocka_unit_test(test_settings_that_contradict_each_other_are_refused),
        cmocka_unit_test(test_only_the_program_can_declare_that_it_applies_the_loss_scale),
        cmocka_unit_test(test_explicit_pushes_have_no_schedule)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
