/* param_memory_test.c - memory that the SDK holds: initial values equal for every range, gradients that are zero at
 * their first view, several names for one tensor; by a program that runs alone. */
#include "penstock.h"
#include "common/compute/init.h"
#include "common/system/segment.h"
#include "worker/context.h"
#include "worker/tensor/param_memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SETTINGS(...)                                                                              \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static int set_up(void **state)
{
    (void)state;
    static const char *const cleared[] = {
        "RANK",         "WORLD_SIZE",           "MASTER_ADDR",      "MASTER_PORT",
        "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PENSTOCK_SERVERS", "PENSTOCK_MODE"};
    for (size_t i = 0; i < sizeof cleared / sizeof cleared[0]; i++) unsetenv(cleared[i]);
    pen_log_set(NULL, NULL, 1);
    return 0;
}

static void ok(pen_status got)
{
    if (got != PEN_OK) fprintf(stderr, "last error: %s\n", pen_last_error(NULL));
    assert_int_equal(got, PEN_OK);
}

static pen_tensor *add(pen_ctx *ctx, pen_tensor_desc d, int64_t n)
{
    pen_tensor *t = NULL;
    d.ndim        = 1;
    d.shape[0]    = n;
    ok(pen_register(ctx, &d, &t));
    return t;
}

static double stat_of(pen_ctx *ctx, const char *name)
{
    double value = -1;
    ok(pen_stat(ctx, name, &value));
    return value;
}

/* ---- the generator --------------------------------------------------------------------------- */
static void test_init_philox_matches_the_test_vectors_of_random123(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4];
        uint64_t key;
        uint32_t out[4];
    } known[] = {/* philox4x32 10 of kat_vectors */
                 {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                 {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                  0xffffffffffffffff,
                  {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                 {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                  0x299f31d0a4093822,
                  {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t out[4];
        init_philox(known[i].key, known[i].counter, out);
        for (int w = 0; w < 4; w++) assert_int_equal(out[w], known[i].out[w]);
    }
}

static init_rule rule_of(const char *init)
{
    init_rule rule;
    pen_error why;
    assert_int_equal(init_parse(init, &rule, &why), PEN_OK);
    return rule;
}

static void test_init_any_range_alone_has_the_bits_of_the_whole(void **state)
{
    (void)state;
    enum { N = 4099 };
    static float whole[N], part[N];
    static const char *const rules[] = {"normal std=0.02", "uniform a=-1 b=3", "const v=0.25",
                                        "zero"};
    for (size_t r = 0; r < 4; r++) {
        const init_rule rule = rule_of(rules[r]);
        const uint64_t key   = init_key(42, "h.3.weight");
        init_values(&rule, key, 0, N, whole);
        for (uint64_t start = 0; start < 9; start++)
            for (size_t n = 0; n <= N - start; n += n < 9 ? 1 : 1000) {
                memset(part, 0xff, sizeof part);
                init_values(&rule, key, start, n, part);
                assert_memory_equal(part, whole + start, n * sizeof *part);
            }
    }
}

static void test_init_differs_by_seed_and_by_name(void **state)
{
    (void)state;
    const init_rule rule = rule_of("uniform a=0 b=1");
    float a[64], b[64], c[64];
    init_values(&rule, init_key(1, "w"), 0, 64, a);
    init_values(&rule, init_key(2, "w"), 0, 64, b);
    init_values(&rule, init_key(1, "v"), 0, 64, c);
    assert_memory_not_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
}

/* Against libm in double, on the same uniform numbers: no more error than rounding to float. */
static void test_init_normal_is_box_muller_to_one_rounding(void **state)
{
    (void)state;
    const init_rule rule = rule_of("normal mean=1 std=2");
    const uint64_t key   = init_key(7, "x");
    double most          = 0;
    for (uint64_t block = 0; block < 20000; block++) {
        const uint32_t counter[4] = {(uint32_t)block, 0, 0, 0};
        uint32_t w[4];
        float got[4];
        init_philox(key, counter, w);
        init_values(&rule, key, 4 * block, 4, got);
        for (int i = 0; i < 4; i++) {
            const double u = (w[i & ~1] + 1.0) / 4294967296.0, v = w[i | 1] / 4294967296.0;
            const double turn = 2 * acos(-1.0) * v, r = 2 * sqrt(-2 * log(u));
            const double want = 1 + r * (i % 2 == 0 ? cos(turn) : sin(turn));
            const double unit = ldexp(1, ilogb(fabs(want) + 1e-30) - 23); /* of the last place */
            const double d    = fabs(got[i] - want) / unit;
            if (d > most) most = d;
        }
    }
    printf("largest difference from libm: %.3f of 0.51 units of the last place of a float\n", most);
    assert_true(most <= 0.51);
}

static void test_init_moments_are_as_requested(void **state)
{
    (void)state;
    enum { N = 400000 };
    float *x             = malloc(N * sizeof *x);
    const init_rule rule = rule_of("normal mean=3 std=0.5");
    double sum = 0, squares = 0, fourth = 0;
    assert_non_null(x);
    init_values(&rule, init_key(0, "moments"), 0, N, x);
    for (int i = 0; i < N; i++) sum += x[i];
    const double mean = sum / N;
    for (int i = 0; i < N; i++) {
        const double d = x[i] - mean;
        squares += d * d;
        fourth += d * d * d * d;
    }
    const double deviation = sqrt(squares / N), kurtosis = fourth / N / (squares / N * squares / N);
    /* Five standard errors of each: 0.5/sqrt(N), 0.5/sqrt(2N), sqrt(24/N). */
    printf("mean %.5f of 3, deviation %.5f of 0.5, kurtosis %.4f of 3\n", mean, deviation,
           kurtosis);
    assert_true(fabs(mean - 3) < 5 * 0.5 / sqrt(N));
    assert_true(fabs(deviation - 0.5) < 5 * 0.5 / sqrt(2.0 * N));
    assert_true(fabs(kurtosis - 3) < 5 * sqrt(24.0 / N));
    free(x);
}

static void test_init_invalid_words_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *init, *part;
    } bad[] = {{"gauss std=1", "'gauss std=1' is none of"},
               {"normal sdt=1", "std"},
               {"normal std=-1", "std"},
               {"const v=abc", "abc"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        init_rule rule;
        pen_error why = {0};
        assert_int_equal(init_parse(bad[i].init, &rule, &why), PEN_BAD_SETTING);
        assert_non_null(strstr(why.text, bad[i].part));
    }
}

/* ---- values ---------------------------------------------------------------------------------- */
static void test_held_values_are_drawn_by_init_and_seed(void **state)
{
    (void)state;
    pen_ctx *ctx;
    ok(pen_init(SETTINGS("optim=sgd lr=1", "seed=9"), &ctx));
    static float own[100], want[100];
    pen_tensor *held = add(ctx, (pen_tensor_desc){.name = "w", .init = "normal std=0.5"}, 100);
    pen_tensor *mine =
        add(ctx, (pen_tensor_desc){.name = "v", .init = "const v=2", .param = own}, 100);
    pen_tensor *half =
        add(ctx, (pen_tensor_desc){.name = "b", .dtype = PEN_BF16, .init = "const v=1"}, 100);
    ok(pen_commit(ctx));
    const init_rule rule = rule_of("normal std=0.5");
    init_values(&rule, init_key(9, "w"), 0, 100, want);
    assert_memory_equal(pen_view(ctx, held, PEN_ALL, PEN_PARAM), want, sizeof want);
    assert_ptr_equal(pen_view(ctx, mine, PEN_ALL, PEN_PARAM), own);
    assert_true(own[0] == 2 && own[99] == 2);
    assert_int_equal(((const uint16_t *)pen_view(ctx, half, PEN_ALL, PEN_PARAM))[99], 0x3f80);
    assert_int_equal((int)stat_of(ctx, "mem.param.bytes"), 400 + 200);
    ok(pen_finalize(ctx));
}

static void test_held_values_without_init_are_those_written_before_commit(void **state)
{
    (void)state;
    pen_ctx *ctx;
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    pen_tensor *t = add(ctx, (pen_tensor_desc){.name = "w"}, 10);
    float *w      = pen_view(ctx, t, PEN_ALL, PEN_PARAM);
    assert_non_null(w);
    for (int i = 0; i < 10; i++) w[i] = (float)i;
    ok(pen_commit(ctx));
    w = pen_view(ctx, t, PEN_ALL, PEN_PARAM);
    for (int i = 0; i < 10; i++) assert_true(w[i] == (float)i);
    ok(pen_finalize(ctx));
}

static void test_held_invalid_init_is_refused_at_commit_with_the_tensor(void **state)
{
    (void)state;
    pen_ctx *ctx;
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    assert_int_equal(
        pen_register(ctx, &(pen_tensor_desc){.name = "w", .ndim = 1, .shape = {3}, .init = "ones"},
                     NULL),
        PEN_BAD_SETTING);
    assert_int_equal(pen_commit(ctx), PEN_BAD_SETTING);
    assert_string_equal(
        pen_last_error(NULL),
        "'w': init 'ones' is none of \"zero\", \"const v=\", \"normal mean= std=\", "
        "\"uniform a= b=\"");
    ok(pen_finalize(ctx));
}

/* ---- gradients ------------------------------------------------------------------------------- */
static void test_held_gradient_is_zero_at_its_first_view_in_a_step_only(void **state)
{
    (void)state;
    pen_ctx *ctx;
    pen_step step;
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    pen_tensor *t = add(ctx, (pen_tensor_desc){.name = "w", .init = "zero"}, 3);
    ok(pen_commit(ctx));
    for (int i = 0; i < 3; i++) {
        ok(pen_step_begin(ctx, &step));
        float *g = pen_view(ctx, t, PEN_ALL, PEN_GRAD);
        assert_true(g[0] == 0 && g[1] == 0 && g[2] == 0);
        g[1] = 2;
        assert_ptr_equal(pen_view(ctx, t, PEN_ALL, PEN_GRAD), g);
        assert_true(g[1] == 2);
        ok(pen_ready(ctx, t, PEN_ALL));
        assert_null(pen_view(ctx, t, PEN_ALL, PEN_GRAD));
        assert_string_equal(
            pen_last_error(NULL),
            "pen_view('w'): its gradient was sent by pen_ready() and is no longer here");
        ok(pen_step_end(ctx, &step));
        assert_true(step.grad_norm == 2);
    }
    const float *w = pen_view(ctx, t, PEN_ALL, PEN_PARAM);
    assert_true(w[0] == 0 && w[1] == -6 && w[2] == 0);
    assert_int_equal((int)stat_of(ctx, "mem.grad.peak.bytes") >= 12, 1);
    ok(pen_finalize(ctx));
}

static void test_held_gradient_is_zero_in_every_micro_batch_and_they_add_up(void **state)
{
    (void)state;
    pen_ctx *ctx;
    pen_step step;
    ok(pen_init(SETTINGS("optim=sgd lr=1", "accum=3"), &ctx));
    pen_tensor *t = add(ctx, (pen_tensor_desc){.name = "w", .init = "zero"}, 2);
    ok(pen_commit(ctx));
    ok(pen_step_begin(ctx, &step));
    for (int m = 0; m < 3; m++) {
        ok(pen_step_micro(ctx, m));
        float *g = pen_view(ctx, t, PEN_ALL, PEN_GRAD);
        assert_true(g[0] == 0 && g[1] == 0);
        g[0] = (float)(1 << m);
        ok(pen_ready(ctx, t, PEN_ALL));
    }
    ok(pen_step_end(ctx, &step));
    const float *w = pen_view(ctx, t, PEN_ALL, PEN_PARAM);
    assert_true(w[0] == -7 && w[1] == 0);
    ok(pen_finalize(ctx));
}

static void test_held_gradient_that_was_never_viewed_is_missing(void **state)
{
    (void)state;
    pen_ctx *ctx;
    pen_step step;
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    pen_tensor *t = add(ctx, (pen_tensor_desc){.name = "w", .init = "zero"}, 2);
    ok(pen_commit(ctx));
    ok(pen_step_begin(ctx, &step));
    assert_int_equal(pen_ready(ctx, t, PEN_ALL), PEN_WRONG_STATE);
    assert_string_equal(pen_last_error(NULL),
                        "pen_ready('w'): missing gradient buffer; pass one to pen_register or "
                        "pen_bind, or write to pen_view(PEN_GRAD)");
    ok(pen_finalize(ctx));
}

static void test_held_memory_of_a_frozen_tensor_has_values_and_no_gradient(void **state)
{
    (void)state;
    pen_ctx *ctx;
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    pen_tensor *t =
        add(ctx, (pen_tensor_desc){.name = "mask", .init = "const v=1", .flags = PEN_FROZEN}, 4);
    ok(pen_commit(ctx));
    assert_non_null(pen_view(ctx, t, PEN_ALL, PEN_PARAM));
    assert_null(pen_view(ctx, t, PEN_ALL, PEN_GRAD));
    assert_string_equal(pen_last_error(NULL), "pen_view('mask'): a frozen tensor has no gradient");
    ok(pen_finalize(ctx));
}

static void test_held_values_cannot_be_bound_after_commit(void **state)
{
    (void)state;
    pen_ctx *ctx;
    static float mine[2] = {5, 6};
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    pen_tensor *early = add(ctx, (pen_tensor_desc){.name = "a"}, 2);
    pen_tensor *late  = add(ctx, (pen_tensor_desc){.name = "b"}, 2);
    assert_non_null(pen_view(ctx, early, PEN_ALL, PEN_PARAM));
    ok(pen_bind(ctx, early, mine, NULL)); /* before commit: program memory from then on */
    ok(pen_commit(ctx));
    assert_ptr_equal(pen_view(ctx, early, PEN_ALL, PEN_PARAM), mine);
    assert_true(mine[0] == 5);
    assert_int_equal(pen_bind(ctx, late, mine, NULL), PEN_WRONG_STATE);
    ok(pen_finalize(ctx));
}

/* ---- several names --------------------------------------------------------------------------- */
/* One step with gradients a and b of two names; returns the tensor's result. */
static float step_of_tied(pen_dtype dtype, int is_own, float a, float b, int uses_both)
{
    pen_ctx *ctx;
    pen_step step;
    static float own[3][4];
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    pen_tensor_desc wte  = {.name = "wte", .dtype = PEN_F32, .grad_dtype = dtype, .init = "zero"};
    pen_tensor_desc head = {
        .name = "head", .dtype = PEN_F32, .grad_dtype = dtype, .flags = PEN_ZERO_IF_UNUSED};
    if (is_own) wte.param = own[0], wte.grad = own[1], head.grad = own[2];
    pen_tensor *base = add(ctx, wte, 4);
    head.tied_to     = base;
    pen_tensor *name = add(ctx, head, 4);
    ok(pen_commit(ctx));
    assert_ptr_equal(pen_view(ctx, name, PEN_ALL, PEN_PARAM),
                     pen_view(ctx, base, PEN_ALL, PEN_PARAM));
    ok(pen_step_begin(ctx, &step));
    void *ga = pen_view(ctx, base, PEN_ALL, PEN_GRAD), *gb = pen_view(ctx, name, PEN_ALL, PEN_GRAD);
    assert_ptr_not_equal(ga, gb);
    const uint16_t bits[] = {0x3f80, 0x3b80}; /* bf16: 1 and 1/256 */
    for (int i = 0; i < 4; i++) {
        if (dtype == PEN_BF16) ((uint16_t *)ga)[i] = bits[0], ((uint16_t *)gb)[i] = bits[1];
        if (dtype == PEN_F32) ((float *)ga)[i] = a, ((float *)gb)[i] = b;
    }
    if (uses_both) ok(pen_ready(ctx, name, PEN_ALL)); /* the order of the calls does not matter */
    ok(pen_ready(ctx, base, PEN_ALL));
    ok(pen_step_end(ctx, &step));
    if (is_own && dtype == PEN_F32) assert_true(own[1][0] == a && own[2][0] == b); /* inputs stay */
    const float got = ((const float *)pen_view(ctx, base, PEN_ALL, PEN_PARAM))[3];
    ok(pen_finalize(ctx));
    return got;
}

static void test_held_gradients_of_two_names_are_summed(void **state)
{
    (void)state;
    for (int is_own = 0; is_own < 2; is_own++) {
        assert_true(step_of_tied(PEN_F32, is_own, 1, 2, 1) == -3);
        assert_true(step_of_tied(PEN_F32, is_own, 1, 2, 0) ==
                    -1); /* the second name was not used */
    }
    /* In float32, rounded once: 1 + 1/256 is a tie in bf16 and goes to the even 1. */
    assert_true(step_of_tied(PEN_BF16, 0, 0, 0, 1) == -1);
}

static void test_held_second_name_must_fit_and_has_no_values_of_its_own(void **state)
{
    (void)state;
    pen_ctx *ctx;
    static float own[4];
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    pen_tensor *base            = add(ctx, (pen_tensor_desc){.name = "wte"}, 4);
    const pen_tensor_desc other = {.name = "head", .ndim = 1, .shape = {5}, .tied_to = base};
    assert_int_equal(pen_register(ctx, &other, NULL), PEN_INVALID_ARGUMENT);
    assert_string_equal(pen_last_error(NULL),
                        "'head' is tied to 'wte', but has another type or number of elements");
    const pen_tensor_desc mine = {
        .name = "head", .ndim = 1, .shape = {4}, .tied_to = base, .param = own};
    assert_int_equal(pen_register(ctx, &mine, NULL), PEN_INVALID_ARGUMENT);
    const pen_tensor_desc twice = {.name = "wte", .ndim = 1, .shape = {4}, .tied_to = base};
    assert_int_equal(pen_register(ctx, &twice, NULL), PEN_INVALID_ARGUMENT);
    assert_string_equal(pen_last_error(NULL), "'wte' is registered twice");
    ok(pen_finalize(ctx));
}

/* ---- spare blocks ---------------------------------------------------------------------------- */
enum { MANY = 50000 };

static bool is_allocated(const void *data)
{
    segment_ref ref;
    return segment_find(data, 1, &ref);
}

static void test_held_block_serves_the_next_values_or_gradient_of_its_size(void **state)
{
    (void)state;
    pen_ctx *ctx;
    pen_error why;
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    pen_tensor *a = add(ctx, (pen_tensor_desc){.name = "a", .init = "zero"}, MANY);
    pen_tensor *b = add(ctx, (pen_tensor_desc){.name = "b", .init = "zero"}, MANY);
    ok(pen_commit(ctx));
    float *first = a->param, *second = b->param;
    for (int i = 0; i < MANY; i++) first[i] = 1;
    param_memory_drop(a);
    param_memory_drop(b);
    ok(param_memory(a, &why));
    assert_ptr_equal(a->param, second); /* the newest */
    const float *gradient = param_grad(b, &why);
    assert_ptr_equal(gradient, first);
    for (int i = 0; i < MANY; i++) assert_true(gradient[i] == 0);
    param_grad_step_end(b, false);
    param_memory_drop_spare(ctx);
    assert_false(is_allocated(first));
    ok(param_memory(b, &why));
    ok(pen_finalize(ctx));
}

static void test_held_values_dropped_before_commit_are_the_first_of_no_other_tensor(void **state)
{
    (void)state;
    pen_ctx *ctx;
    static float own[MANY];
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    pen_tensor *a = add(ctx, (pen_tensor_desc){.name = "a"}, MANY);
    pen_tensor *b = add(ctx, (pen_tensor_desc){.name = "b"}, MANY);
    float *dirty  = pen_view(ctx, a, PEN_ALL, PEN_PARAM);
    assert_non_null(dirty);
    for (int i = 0; i < MANY; i++) dirty[i] = 5;
    ok(pen_bind(ctx, a, own, NULL));
    ok(pen_commit(ctx));
    const float *values = pen_view(ctx, b, PEN_ALL, PEN_PARAM);
    for (int i = 0; i < MANY; i++) assert_true(values[i] == 0);
    ok(pen_finalize(ctx));
}

static void test_held_block_that_a_view_keeps_serves_nobody_else(void **state)
{
    (void)state;
    pen_ctx *ctx;
    pen_error why;
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    pen_tensor *a = add(ctx, (pen_tensor_desc){.name = "a", .init = "zero"}, MANY);
    ok(pen_commit(ctx));
    float *kept = a->param;
    kept[1]     = 7;
    ok(pen_keep(kept));
    param_memory_drop(a);
    ok(param_memory(a, &why));
    assert_ptr_not_equal(a->param, kept);
    assert_true(kept[1] == 7 && ((float *)a->param)[1] == 0);
    ok(pen_finalize(ctx));
    pen_free(kept);
    assert_false(is_allocated(kept));
}

static void test_held_spare_blocks_never_raise_the_most_that_was_in_use(void **state)
{
    (void)state;
    pen_ctx *ctx;
    pen_error why;
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    pen_tensor *a = add(ctx, (pen_tensor_desc){.name = "a", .init = "zero"}, MANY);
    pen_tensor *b = add(ctx, (pen_tensor_desc){.name = "b", .init = "zero"}, MANY / 2);
    ok(pen_commit(ctx));
    param_memory_drop(a);
    assert_true(ctx->memory.spare.bytes == MANY * sizeof(float));
    assert_non_null(param_grad(b, &why));
    assert_true(ctx->memory.spare.bytes == 0);
    assert_true(ctx->memory.spare.most == 3 * MANY / 2 * sizeof(float));
    ok(param_memory(a, &why));
    ok(pen_finalize(ctx));
}

/* ---- units, alone ---------------------------------------------------------------------------- */
static void test_held_release_after_backward_makes_a_unit_ready(void **state)
{
    (void)state;
    pen_ctx *ctx;
    pen_step step;
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    pen_tensor *out = add(ctx, (pen_tensor_desc){.name = "out", .init = "zero"}, 2);
    pen_tensor *w   = add(ctx, (pen_tensor_desc){.name = "w", .init = "zero", .unit = "h.0"}, 2);
    assert_null(pen_unit_get(ctx, "h", 0));
    ok(pen_commit(ctx));
    ok(pen_step_begin(ctx, &step));
    pen_unit *h = pen_unit_get(ctx, "h", 0);
    ok(pen_use(ctx, h, PEN_BACKWARD, NULL));
    ((float *)pen_view(ctx, w, PEN_ALL, PEN_GRAD))[0] = 1;
    ok(pen_release(ctx, h, PEN_BACKWARD, NULL));
    ((float *)pen_view(ctx, out, PEN_ALL, PEN_GRAD))[0] = 1;
    ok(pen_release(ctx, NULL, PEN_BACKWARD, NULL)); /* the outermost: everything else */
    ok(pen_step_end(ctx, &step));
    assert_true(((const float *)pen_view(ctx, w, PEN_ALL, PEN_PARAM))[0] == -1);
    assert_null(pen_unit_get(ctx, "h", 1));
    assert_string_equal(pen_last_error(NULL), "no unit is named 'h.1'; the nearest name is 'h.0'");
    ok(pen_finalize(ctx));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init_philox_matches_the_test_vectors_of_random123),
        cmocka_unit_test(test_init_any_range_alone_has_the_bits_of_the_whole),
        cmocka_unit_test(test_init_differs_by_seed_and_by_name),
        cmocka_unit_test(test_init_normal_is_box_muller_to_one_rounding),
        cmocka_unit_test(test_init_moments_are_as_requested),
        cmocka_unit_test(test_init_invalid_words_are_named),
        cmocka_unit_test(test_held_values_are_drawn_by_init_and_seed),
        cmocka_unit_test(test_held_values_without_init_are_those_written_before_commit),
        cmocka_unit_test(test_held_invalid_init_is_refused_at_commit_with_the_tensor),
        cmocka_unit_test(test_held_gradient_is_zero_at_its_first_view_in_a_step_only),
        cmocka_unit_test(test_held_gradient_is_zero_in_every_micro_batch_and_they_add_up),
        cmocka_unit_test(test_held_gradient_that_was_never_viewed_is_missing),
        cmocka_unit_test(test_held_memory_of_a_frozen_tensor_has_values_and_no_gradient),
        cmocka_unit_test(test_held_values_cannot_be_bound_after_commit),
        cmocka_unit_test(test_held_gradients_of_two_names_are_summed),
        cmocka_unit_test(test_held_second_name_must_fit_and_has_no_values_of_its_own),
        cmocka_unit_test(test_held_block_serves_the_next_values_or_gradient_of_its_size),
        cmocka_unit_test(test_held_values_dropped_before_commit_are_the_first_of_no_other_tensor),
        cmocka_unit_test(test_held_block_that_a_view_keeps_serves_nobody_else),
        cmocka_unit_test(test_held_spare_blocks_never_raise_the_most_that_was_in_use),
        cmocka_unit_test(test_held_release_after_backward_makes_a_unit_ready),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
