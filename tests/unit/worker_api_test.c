/* worker_api_test.c - the public functions, by a program that is alone: steps, order, sentences,
 * nothing left behind. */
#include "common/compute/device/device.h"
#include "penstock.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SETTINGS(...)                                                                              \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static char log_text[4096];

static void catch_log(int level, const char *line, void *user)
{
    (void)level, (void)user;
    size_t at = strlen(log_text);
    snprintf(log_text + at, sizeof log_text - at, "%s\n", line);
}

static int set_up(void **state)
{
    (void)state;
    static const char *const cleared[] = {
        "RANK",         "WORLD_SIZE",           "MASTER_ADDR",      "MASTER_PORT",
        "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PENSTOCK_SERVERS", "PENSTOCK_MODE"};
    for (size_t i = 0; i < sizeof cleared / sizeof cleared[0]; i++) unsetenv(cleared[i]);
    log_text[0] = '\0';
    pen_log_set(catch_log, NULL, 2);
    return 0;
}

static void expect(pen_status got, pen_status want, const char *sentence)
{
    if (got != want) fprintf(stderr, "last error: %s\n", pen_last_error(NULL));
    assert_int_equal(got, want);
    assert_string_equal(pen_last_error(NULL), sentence);
}

static void ok(pen_status got)
{
    if (got != PEN_OK) fprintf(stderr, "last error: %s\n", pen_last_error(NULL));
    assert_int_equal(got, PEN_OK);
}

/* One tensor 'w' of n elements, committed. */
typedef struct {
    pen_ctx *ctx;
    pen_tensor *w;
    float *param, *grad;
} trained;

static trained train(const char *const *settings, int64_t n, uint32_t flags)
{
    trained t;
    ok(pen_init(settings, &t.ctx));
    t.param = pen_alloc(t.ctx, (size_t)n * sizeof(float), PEN_HOST);
    t.grad  = pen_alloc(t.ctx, (size_t)n * sizeof(float), PEN_HOST);
    ok(pen_register(
        t.ctx,
        &(pen_tensor_desc){
            .name = "w", .ndim = 1, .shape = {n}, .flags = flags, .param = t.param, .grad = t.grad},
        &t.w));
    ok(pen_commit(t.ctx));
    return t;
}

static void finish(trained *t)
{
    ok(pen_finalize(t->ctx));
    pen_free(t->param);
    pen_free(t->grad);
}

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
                                  "--nproc-per-node 2 ./unit_worker_api_test` starts two)\n");
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
    ok(pen_finalize(ctx));
}

static void test_api_sixteen_bits_train_with_a_master_of_thirty_two(void **state)
{
    (void)state;
    pen_ctx *ctx;
    pen_step step;
    uint16_t one = 0x3f80; /* bf16 1.0: a step of 2^-9 is lost in it, 8 of them are not */
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
    pen_ready(ctx, NULL, PEN_ALL); /* and it can be mended */
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

/* ---- memory of the program ------------------------------------------------------------------- */
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

/* ---- sentences ------------------------------------------------------------------------------- */
static void test_api_settings_errors_are_sentences(void **state)
{
    (void)state;
    pen_ctx *ctx = NULL;
    expect(pen_init(SETTINGS("lease_s=3"), &ctx), PEN_BAD_SETTING,
           "unknown setting 'lease_s'; did you mean 'lease_ms'?");
    expect(pen_init(SETTINGS("servers=0", "mode=ps-bsp"), &ctx), PEN_BAD_SETTING,
           "mode=ps-bsp needs servers, and there are none: start the job with --servers 1, or use "
           "mode=allreduce");
    expect(pen_init(SETTINGS("commit=eager", "clip=0.1"), &ctx), PEN_BAD_SETTING,
           "commit=eager and clip=0.1 contradict each other: clipping needs all gradients before "
           "any update");
    expect(pen_init(SETTINGS("on_worker_loss=wait", "servers=0"), &ctx), PEN_UNSUPPORTED,
           "on_worker_loss=wait needs servers, which hold what the worker comes back to: start the "
           "job with --servers 1, or use continue");
    setenv("PENSTOCK_LEASE_S", "3", 1);
    expect(pen_init(NULL, &ctx), PEN_BAD_SETTING,
           "unknown setting 'lease_s'; did you mean 'lease_ms'?  (from PENSTOCK_LEASE_S)");
    unsetenv("PENSTOCK_LEASE_S");
    assert_null(ctx);
}

static void test_api_environment_beats_the_program(void **state)
{
    (void)state;
    setenv("PENSTOCK_STEPS", "3", 1);
    trained t = train(SETTINGS("optim=sgd lr=1", "steps=100"), 2, 0);
    unsetenv("PENSTOCK_STEPS");
    pen_step step;
    int steps = 0;
    while (pen_step_begin(t.ctx, &step) == PEN_OK) {
        pen_ready(t.ctx, t.w, PEN_ALL);
        ok(pen_step_end(t.ctx, &step));
        steps++;
    }
    assert_int_equal(steps, 3);
    finish(&t);
}

static void test_api_garbage_in_reserved_words_is_found(void **state)
{
    (void)state;
    trained t = train(SETTINGS("optim=sgd lr=1"), 2, 0);
    pen_ctx *other;
    pen_step step;
    pen_opts opts = {.reserved = {[5] = 1}};
    float a[2];
    expect(pen_barrier(pen_world(t.ctx), &opts, NULL), PEN_INVALID_ARGUMENT,
           "pen_opts has garbage in reserved[5]; initialise it with {0}");
    ok(pen_step_begin(t.ctx, &step));
    pen_ready(t.ctx, t.w, PEN_ALL);
    step.reserved[11] = 9;
    expect(pen_step_end(t.ctx, &step), PEN_INVALID_ARGUMENT,
           "pen_step has garbage in reserved[11]; initialise it with {0}");
    step.reserved[11] = 0;
    ok(pen_step_end(t.ctx, &step));
    finish(&t);
    ok(pen_init(NULL, &other));
    pen_tensor_desc d = {
        .name = "w", .ndim = 1, .shape = {2}, .param = a, .grad = a, .reserved = {[2] = 7}};
    expect(pen_register(other, &d, NULL), PEN_INVALID_ARGUMENT,
           "pen_tensor_desc has garbage in reserved[2]; initialise it with {0}");
    ok(pen_finalize(other));
}

static void test_api_explicit_verbs_point_at_the_step_where_it_is_decided(void **state)
{
    (void)state;
    for (int clip = 0; clip < 2; clip++) {
        pen_ctx *ctx;
        pen_tensor *w;
        float a[2] = {0};
        ok(pen_init(clip ? SETTINGS("optim=sgd lr=1", "clip=1") : SETTINGS("optim=sgd lr=1"),
                    &ctx));
        ok(pen_register(ctx,
                        &(pen_tensor_desc){
                            .name = "fc1.weight", .ndim = 1, .shape = {2}, .param = a, .grad = a},
                        &w));
        ok(pen_commit(ctx));
        expect(pen_push_pull(ctx, w, PEN_ALL, NULL, NULL, NULL, NULL), PEN_WRONG_STATE,
               clip ? "pen_push_pull('fc1.weight'): clipping needs all gradients before any "
                      "update; use pen_ready() and pen_step_end()"
                    : "pen_push_pull('fc1.weight'): commit=decide applies or skips whole steps; "
                      "use pen_ready() and pen_step_end(), or commit=eager");
        ok(pen_finalize(ctx));
    }
}

static void test_api_a_rule_without_a_rate_is_found_at_commit(void **state)
{
    (void)state;
    pen_ctx *ctx;
    float a[2] = {0};
    ok(pen_init(NULL, &ctx));
    ok(pen_register(ctx,
                    &(pen_tensor_desc){.name = "w", .ndim = 1, .shape = {2}, .param = a, .grad = a},
                    NULL));
    expect(pen_commit(ctx), PEN_BAD_SETTING, "sgd needs a rate: say optim=\"sgd lr=0.1\"");
    ok(pen_finalize(ctx));
}

static void test_api_what_comes_later_says_so(void **state)
{
    (void)state;
    pen_ctx *ctx;
    ok(pen_init(NULL, &ctx));
    pen_table *table;
    expect(pen_table_new(ctx, NULL, &table), PEN_UNSUPPORTED,
           "pen_table_new is not in this version: tables by key come later");
    assert_null(pen_view(ctx, NULL, 0, PEN_PARAM));
    char note[256], want[512];
    if (device_beside_host(note, sizeof note) ==
        NULL) { /* build, driver or device: it says which */
        assert_true(note[0] != '\0');
        snprintf(want, sizeof want, "pen_alloc: no CUDA device: %s", note);
        assert_null(pen_alloc(ctx, 8, PEN_CUDA));
        assert_string_equal(pen_last_error(NULL), want);
    }
    ok(pen_finalize(ctx));
}

/* ---- requests -------------------------------------------------------------------------------- */
static void test_api_explicit_verbs_end_as_requests(void **state)
{
    (void)state;
    trained t = train(SETTINGS("optim=sgd lr=1", "mode=ps-async"), 2, 0);
    pen_req reqs[3];
    pen_result result;
    size_t index;
    float copy[2] = {9, 9};
    t.grad[0]     = 1;
    ok(pen_push(t.ctx, t.w, PEN_ALL, NULL, NULL, &reqs[0]));
    ok(pen_push_pull(t.ctx, t.w, PEN_ALL, NULL, NULL, NULL, &reqs[1]));
    ok(pen_pull(t.ctx, t.w, PEN_ALL, copy, NULL, &reqs[2]));
    ok(pen_wait(&reqs[1], &result));
    assert_int_equal(result.version, 2);
    assert_null(reqs[1].ctx);
    ok(pen_wait(&reqs[1], NULL)); /* {0} is no request */
    ok(pen_wait_any(reqs, 3, -1, &index, &result));
    assert_int_equal(index, 0);
    ok(pen_wait_any(reqs, 3, 0, &index, &result));
    assert_int_equal(index, 2);
    assert_int_equal(pen_wait_any(reqs, 3, 0, &index, &result), PEN_END);
    assert_true(copy[0] == -2 && t.param[0] == -2);
    finish(&t);
}

static void test_api_a_request_is_waited_for_once(void **state)
{
    (void)state;
    pen_ctx *ctx;
    pen_req req, copy;
    ok(pen_init(NULL, &ctx));
    ok(pen_barrier(pen_world(ctx), NULL, &req));
    copy = req;
    ok(pen_wait(&req, NULL));
    expect(pen_wait(&copy, NULL), PEN_INVALID_ARGUMENT,
           "pen_wait: the request was already waited for");
    ok(pen_finalize(ctx));
}

typedef struct {
    pen_ctx *ctx;
    int calls;
    pen_status waiting, begun;
    char text[256];
} callback;

static void on_done(const pen_result *result, void *user)
{
    callback *c = user;
    assert_int_equal(result->status, PEN_OK);
    if (c->calls++ > 0) return;
    c->waiting = pen_barrier(pen_world(c->ctx), NULL, NULL);
    snprintf(c->text, sizeof c->text, "%s", pen_last_error(NULL));
    pen_req req;
    c->begun = pen_barrier(pen_world(c->ctx), &(pen_opts){.done = on_done, .user = c}, &req);
}

static void test_api_waiting_in_a_callback_is_refused_and_beginning_is_not(void **state)
{
    (void)state;
    callback c = {0};
    pen_req req;
    ok(pen_init(NULL, &c.ctx));
    ok(pen_barrier(pen_world(c.ctx), &(pen_opts){.done = on_done, .user = &c}, &req));
    assert_null(req.ctx);
    assert_int_equal(c.calls, 2);
    assert_int_equal(c.waiting, PEN_WRONG_STATE);
    assert_string_equal(c.text,
                        "pen_barrier: called from a callback, where waiting would wait for itself");
    assert_int_equal(c.begun, PEN_OK);
    ok(pen_finalize(c.ctx));
}

static void test_api_all_reduce_alone_gives_back_what_came_in(void **state)
{
    (void)state;
    pen_ctx *ctx;
    double in[3] = {1, 2, 3}, out[3] = {0};
    ok(pen_init(NULL, &ctx));
    assert_int_equal(pen_rank(pen_world(ctx)), 0);
    assert_int_equal(pen_size(pen_world(ctx)), 1);
    ok(pen_all_reduce(pen_world(ctx), in, out, 3, PEN_F64, PEN_SUM,
                      &(pen_opts){.flags = PEN_SCALED, .scale = 0.5}, NULL));
    assert_true(out[0] == 0.5 && out[2] == 1.5 && in[0] == 1);
    ok(pen_finalize(ctx));
}

/* ---- errors of this thread, forks, abort ----------------------------------------------------- */
static void *look(void *user)
{
    snprintf(user, 64, "%s", pen_last_error(NULL));
    return NULL;
}

static void test_api_last_error_belongs_to_its_thread(void **state)
{
    (void)state;
    pthread_t thread;
    char other[64] = "?";
    assert_int_equal(pen_info_get(NULL, NULL), PEN_INVALID_ARGUMENT);
    assert_int_equal(pthread_create(&thread, NULL, look, other), 0);
    pthread_join(thread, NULL);
    assert_string_equal(other, "");
    assert_string_equal(pen_last_error(NULL), "pen_info_get: ctx is NULL");
}

static void test_api_forked_child_owns_nothing(void **state)
{
    (void)state;
    trained t        = train(SETTINGS("optim=sgd lr=1"), 2, 0);
    pen_group *group = pen_world(t.ctx);
    pid_t pid        = fork();
    if (pid == 0) {
        pen_step step;
        int good = pen_step_begin(t.ctx, &step) == PEN_WRONG_STATE &&
                   pen_barrier(group, NULL, NULL) == PEN_WRONG_STATE &&
                   pen_finalize(t.ctx) == PEN_OK;
        _exit(good ? 0 : 1);
    }
    int code;
    waitpid(pid, &code, 0);
    assert_int_equal(code, 0);
    finish(&t);
}

static void test_api_abort_ends_the_loop(void **state)
{
    (void)state;
    trained t = train(SETTINGS("optim=sgd lr=1"), 2, 0);
    pen_step step;
    pen_abort(t.ctx, "the disk is on fire");
    expect(pen_step_begin(t.ctx, &step), PEN_ABORTED, "pen_abort: the disk is on fire");
    ok(pen_finalize(t.ctx));
    pen_free(t.param);
    pen_free(t.grad);
}

/* ---- nothing is left ------------------------------------------------------------------------- */
static int count(const char *folder)
{
    DIR *dir = opendir(folder);
    int n    = 0;
    while (readdir(dir) != NULL) n++;
    closedir(dir);
    return n;
}

static void test_api_finalize_leaves_no_thread_and_no_descriptor(void **state)
{
    (void)state;
    int fds = count("/proc/self/fd"), threads = count("/proc/self/task");
    for (int i = 0; i < 3; i++) {
        trained t = train(SETTINGS("optim=adamw lr=0.1"), 10000, 0);
        finish(&t);
    }
    assert_int_equal(count("/proc/self/fd"), fds);
    assert_int_equal(count("/proc/self/task"), threads);
    ok(pen_finalize(NULL));
}

/* A job whose scheduler cannot be reached: everything that was begun is taken back. */
static void test_api_init_that_fails_leaves_nothing(void **state)
{
    (void)state;
    pen_ctx *ctx                 = NULL;
    const char *const settings[] = {
        "rank=1",        "world_size=2",        "servers=1", "master_addr=127.0.0.1",
        "master_port=9", "init_timeout_ms=300", NULL};
    assert_int_equal(pen_init(settings, &ctx),
                     PEN_UNREACHABLE); /* also starts what the process keeps, as ZeroMQ's context */
    int fds = count("/proc/self/fd"), threads = count("/proc/self/task");
    expect(pen_init(settings, &ctx), PEN_UNREACHABLE,
           "nothing answers as a Penstock scheduler at 127.0.0.1:9 (connection refused: nothing "
           "listens there)");
    assert_null(ctx);
    assert_int_equal(count("/proc/self/fd"), fds);
    assert_int_equal(count("/proc/self/task"), threads);
}

static void test_api_memory_is_aligned_zeroed_and_outlives_its_context(void **state)
{
    (void)state;
    pen_ctx *ctx;
    ok(pen_init(NULL, &ctx));
    unsigned char *data = pen_alloc(ctx, 1000, PEN_HOST);
    assert_non_null(data);
    assert_int_equal((uintptr_t)data % 64, 0);
    for (int i = 0; i < 1000; i++) assert_int_equal(data[i], 0);
    ok(pen_finalize(ctx));
    data[999] = 1;
    pen_free(data);
    pen_free(NULL);
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
        cmocka_unit_test_setup(test_api_settings_errors_are_sentences, set_up),
        cmocka_unit_test_setup(test_api_environment_beats_the_program, set_up),
        cmocka_unit_test_setup(test_api_garbage_in_reserved_words_is_found, set_up),
        cmocka_unit_test_setup(test_api_explicit_verbs_point_at_the_step_where_it_is_decided,
                               set_up),
        cmocka_unit_test_setup(test_api_a_rule_without_a_rate_is_found_at_commit, set_up),
        cmocka_unit_test_setup(test_api_what_comes_later_says_so, set_up),
        cmocka_unit_test_setup(test_api_explicit_verbs_end_as_requests, set_up),
        cmocka_unit_test_setup(test_api_a_request_is_waited_for_once, set_up),
        cmocka_unit_test_setup(test_api_waiting_in_a_callback_is_refused_and_beginning_is_not,
                               set_up),
        cmocka_unit_test_setup(test_api_all_reduce_alone_gives_back_what_came_in, set_up),
        cmocka_unit_test_setup(test_api_last_error_belongs_to_its_thread, set_up),
        cmocka_unit_test_setup(test_api_forked_child_owns_nothing, set_up),
        cmocka_unit_test_setup(test_api_abort_ends_the_loop, set_up),
        cmocka_unit_test_setup(test_api_finalize_leaves_no_thread_and_no_descriptor, set_up),
        cmocka_unit_test_setup(test_api_init_that_fails_leaves_nothing, set_up),
        cmocka_unit_test_setup(test_api_memory_is_aligned_zeroed_and_outlives_its_context, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
