/* optim_test.c - update rules against published numbers; how a rule is named. */
#include "common/compute/optim/optim.h"
#include "common/compute/simd/simd.h"
#include "tests/support/golden_optim.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* One small tensor under one rule. */
typedef struct {
    const optim_ops *ops;
    optim_hyper hyper;
    float param[GOLDEN_ELEMENTS], slot[OPTIM_SLOTS_MAX][GOLDEN_ELEMENTS];
    double scratch[2];
    uint64_t steps;
} model;

static optim_span span_of(model *m, const float *grad, size_t n, double factor)
{
    return (optim_span){.param  = m->param,
                        .grad   = grad,
                        .slot   = {m->slot[0], m->slot[1], m->slot[2]},
                        .n      = n,
                        .step   = m->steps,
                        .lr     = m->hyper.lr * factor,
                        .gscale = 1};
}

static void model_init(model *m, const char *words, const float *start, size_t n)
{
    pen_error why;
    memset(m, 0, sizeof *m);
    if (optim_parse(words, &m->ops, &m->hyper, &why) != PEN_OK) fail_msg("%s", why.text);
    memcpy(m->param, start, n * sizeof *start);
    const optim_span span = span_of(m, NULL, n, 1);
    if (m->ops->slot_init != NULL) m->ops->slot_init(&m->hyper, &span);
}

static void model_step(model *m, const float *grad, size_t n, double factor)
{
    m->steps++;
    optim_span span = span_of(m, grad, n, factor);
    optim_apply(m->ops, &m->hyper, &span, 1, m->scratch);
}

/* ---- golden ---------------------------------------------------------------------------------- */

/* Float32 against float64 over 20 steps: about one rounding (6e-8 of the parameter) per step. */
static const double tolerance_abs = 1e-6, tolerance_rel = 1e-6;

typedef struct {
    double abs, rel, used; /* largest difference; largest share of the tolerance */
} difference;

static void compare(difference *d, float got, double want)
{
    const double off = fabs((double)got - want);
    const double use = off / (tolerance_abs + tolerance_rel * fabs(want));
    if (off > d->abs) d->abs = off;
    if (want != 0 && off / fabs(want) > d->rel) d->rel = off / fabs(want);
    if (!(use <= d->used)) d->used = use;
}

static difference run_case(size_t index)
{
    difference d = {0, 0, 0};
    model m;
    model_init(&m, golden_cases[index].words, golden_start, GOLDEN_ELEMENTS);
    for (int t = 0, shown = 0; t < GOLDEN_STEPS; t++) {
        model_step(&m, golden_grads[t], GOLDEN_ELEMENTS, golden_factors[t]);
        if (t + 1 != golden_shown[shown]) continue;
        for (int i = 0; i < GOLDEN_ELEMENTS; i++)
            compare(&d, m.param[i], golden_cases[index].param[shown][i]);
        shown++;
    }
    return d;
}

static void test_optim_rules_agree_with_torch_and_with_the_papers(void **state)
{
    (void)state;
    int failed = 0;
    for (size_t i = 0; i < sizeof golden_cases / sizeof golden_cases[0]; i++) {
        const difference d = run_case(i);
        print_message("  %-20s abs %.2e  rel %.2e  %3.0f%% of the tolerance\n",
                      golden_cases[i].name, d.abs, d.rel, d.used * 100);
        failed += !(d.used <= 1);
    }
    assert_int_equal(failed, 0);
}

static void test_optim_golden_vectors_name_every_rule(void **state)
{
    (void)state;
    for (int r = 0; optim_all[r] != NULL; r++) {
        const size_t length = strlen(optim_all[r]->name);
        bool is_named       = false;
        for (size_t i = 0; i < sizeof golden_cases / sizeof golden_cases[0]; i++)
            is_named |= strcspn(golden_cases[i].words, " ") == length &&
                        strncmp(golden_cases[i].words, optim_all[r]->name, length) == 0;
        if (!is_named) fail_msg("%s has no golden vector", optim_all[r]->name);
    }
}

/* Calculated by hand, slots included. */
static void test_optim_adamw_gives_the_published_three_steps(void **state)
{
    (void)state;
    static const float grads[3] = {0.1f, 0.2f, -0.3f}, start = 1.0f;
    static const double want[3][3] = {{0.998990000, 0.01, 1e-5},
                                      {0.998014828, 0.029, 4.999e-5},
                                      {0.998071447, -0.0039, 1.3994001e-4}};
    model m;
    model_init(&m, "adamw lr=1e-3 weight_decay=0.01", &start, 1);
    for (int t = 0; t < 3; t++) {
        model_step(&m, &grads[t], 1, 1);
        const float got[3] = {m.param[0], m.slot[0][0], m.slot[1][0]};
        for (int i = 0; i < 3; i++) {
            const double off     = fabs((double)got[i] - want[t][i]);
            const double allowed = 5e-7 * fabs(want[t][i]);
            print_message("  step %d: %.9g, off by %.1e, %3.0f%% of the tolerance\n", t + 1,
                          (double)got[i], off, off / allowed * 100);
            assert_true(off <= allowed);
        }
    }
}

/* ---- promises of single rules ---------------------------------------------------------------- */

static void test_optim_no_decay_drops_weight_decay(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"sgd lr=0.1", "sgd lr=0.1 weight_decay=0.5"},
        {"sgd lr=0.1 momentum=0.9", "sgd lr=0.1 momentum=0.9 weight_decay=0.5"},
        {"adam", "adam weight_decay=0.5"},
        {"adamw weight_decay=0", "adamw weight_decay=0.5"},
        {"adagrad", "adagrad weight_decay=0.5"},
        {"rmsprop", "rmsprop weight_decay=0.5"},
        {"adadelta", "adadelta weight_decay=0.5"},
        {"adamax", "adamax weight_decay=0.5"},
        {"ftrl", "ftrl l1=0.5 l2=0.5"},
        {"lion", "lion weight_decay=0.5"},
        {"lamb weight_decay=0", "lamb weight_decay=0.5"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        model m[3]; /* without decay; with; with, but not for this tensor */
        for (int j = 0; j < 3; j++) {
            model_init(&m[j], pairs[i][j > 0], golden_start, GOLDEN_ELEMENTS);
            m[j].steps      = 1;
            optim_span span = span_of(&m[j], golden_grads[0], GOLDEN_ELEMENTS, 1);
            span.no_decay   = j == 2;
            optim_apply(m[j].ops, &m[j].hyper, &span, 1, m[j].scratch);
        }
        assert_memory_equal(m[2].param, m[0].param, sizeof m[0].param);
        assert_memory_not_equal(m[1].param, m[0].param, sizeof m[0].param);
    }
}

static void test_optim_gscale_multiplies_the_gradient(void **state)
{
    (void)state;
    for (int r = 0; optim_all[r] != NULL; r++) {
        char words[64];
        snprintf(words, sizeof words, "%s%s", optim_all[r]->name,
                 strcmp(optim_all[r]->name, "sgd") == 0 ? " lr=0.1" : "");
        model plain, scaled;
        float half[GOLDEN_ELEMENTS];
        model_init(&plain, words, golden_start, GOLDEN_ELEMENTS);
        model_init(&scaled, words, golden_start, GOLDEN_ELEMENTS);
        for (int i = 0; i < GOLDEN_ELEMENTS; i++) half[i] = golden_grads[0][i] * 0.5f;
        model_step(&plain, half, GOLDEN_ELEMENTS, 1);
        scaled.steps    = 1;
        optim_span span = span_of(&scaled, golden_grads[0], GOLDEN_ELEMENTS, 1);
        span.gscale     = 0.5;
        optim_apply(scaled.ops, &scaled.hyper, &span, 1, scaled.scratch);
        assert_memory_equal(plain.param, scaled.param, sizeof plain.param);
        assert_memory_equal(plain.slot, scaled.slot, sizeof plain.slot);
    }
}

static void test_optim_sgd_without_momentum_leaves_its_slot_alone(void **state)
{
    (void)state;
    model m;
    model_init(&m, "sgd lr=0.1", golden_start, GOLDEN_ELEMENTS);
    m.slot[0][0] = 42;
    model_step(&m, golden_grads[0], GOLDEN_ELEMENTS, 1);
    assert_true(m.slot[0][0] == 42);
}

static void test_optim_rmsprop_centered_survives_a_constant_gradient(void **state)
{
    (void)state;
    const float start = 1.0f, grad = 0.1f;
    model m;
    model_init(&m, "rmsprop centered=yes alpha=0.5 lr=1e-9", &start, 1);
    for (int t = 0; t < 2000; t++) model_step(&m, &grad, 1, 1);
    assert_true(isfinite(m.param[0]));
}

static void test_optim_lamb_ratio_is_one_when_a_norm_is_zero(void **state)
{
    (void)state;
    static const float zeros[2] = {0, 0}, grads[2] = {0.5f, -0.5f}, ones[2] = {1, 1};
    model m;
    model_init(&m, "lamb lr=0.1 eps=0", zeros, 2);
    model_step(&m, grads, 2, 1); /* params are all 0: the raw update of size 1, times the rate */
    assert_float_equal(m.param[0], -0.1f, 1e-6f);
    assert_float_equal(m.param[1], 0.1f, 1e-6f);
    model_init(&m, "lamb lr=0.1 weight_decay=0", ones, 2);
    model_step(&m, zeros, 2, 1); /* the update is all 0 */
    assert_true(m.param[0] == 1.0f && m.param[1] == 1.0f);
}

/* If all elements are equal, a step is the rate times the parameter, for any number of them. */
static void test_optim_lamb_measures_every_block_of_every_span(void **state)
{
    (void)state;
    enum { HALF = 2 * SIMD_BLOCK, N = 2 * HALF + 100, BLOCKS = N / SIMD_BLOCK + 1 };
    static float param[N], grad[N], slot[2][N];
    const optim_ops *ops;
    optim_hyper hyper;
    double scratch[2 * BLOCKS];
    for (int i = 0; i < N; i++) {
        param[i] = 2.0f;
        grad[i]  = 0.5f;
    }
    assert_int_equal(optim_parse("lamb lr=0.25", &ops, &hyper, NULL), PEN_OK);
    optim_span spans[2] = {{.param  = param,
                            .grad   = grad,
                            .slot   = {slot[0], slot[1]},
                            .n      = HALF,
                            .step   = 1,
                            .lr     = hyper.lr,
                            .gscale = 1}};
    spans[1]            = spans[0];
    spans[1].param += HALF;
    spans[1].grad += HALF;
    spans[1].slot[0] += HALF;
    spans[1].slot[1] += HALF;
    spans[1].n = N - HALF;
    optim_apply(ops, &hyper, spans, 2, scratch);
    assert_float_equal(spans[0].param_norm, 2.0 * sqrt(N), 1e-9);
    for (int i = 0; i < N; i++) assert_float_equal(param[i], 1.5f, 1e-6f);
}

static void test_optim_ftrl_holds_weak_weights_at_exactly_zero(void **state)
{
    (void)state;
    static const float start[2] = {0, 0}, grads[2] = {0.1f, 2.0f};
    model m;
    model_init(&m, "ftrl lr=0.1 l1=1", start, 2);
    model_step(&m, grads, 2, 1);
    assert_true(m.param[0] == 0.0f);
    assert_true(m.param[1] < 0.0f);
}

/* Few steps, but bias correction at step one million must be finite and near 1. */
static void test_optim_bias_correction_at_a_late_step(void **state)
{
    (void)state;
    const float start = 1.0f, grad = 1.0f;
    model m;
    model_init(&m, "adamw lr=0.5 weight_decay=0", &start, 1);
    m.slot[0][0] = m.slot[1][0] = 1.0f; /* moments of a constant gradient of 1 */
    m.steps                     = 999999;
    model_step(&m, &grad, 1, 1);
    assert_float_equal(m.param[0], 0.5f, 1e-6f);
}

/* ---- parse ----------------------------------------------------------------------------------- */

static void test_optim_parse_reads_rule_and_settings(void **state)
{
    (void)state;
    const optim_ops *ops;
    optim_hyper hyper;
    assert_int_equal(optim_parse("  adamw lr=3e-4\tbeta2=0.95 ", &ops, &hyper, NULL), PEN_OK);
    assert_string_equal(ops->name, "adamw");
    assert_true(hyper.lr == 3e-4 && hyper.beta2 == 0.95);
    assert_true(hyper.beta1 == 0.9 && hyper.eps == 1e-8 && hyper.weight_decay == 0.01);
    assert_true(hyper.momentum == 0);
}

static void test_optim_parse_takes_a_rate_of_zero_as_given(void **state)
{
    (void)state;
    const optim_ops *ops;
    optim_hyper hyper;
    assert_int_equal(optim_parse("sgd lr=0", &ops, &hyper, NULL), PEN_OK);
    assert_true(hyper.lr == 0);
}

static void test_optim_parse_needs_no_rate_for_sum(void **state)
{
    (void)state;
    const optim_ops *ops;
    optim_hyper hyper;
    assert_int_equal(optim_parse("sum", &ops, &hyper, NULL), PEN_OK);
    assert_false(isnan(hyper.lr));
}

static void test_optim_parse_refuses_with_a_sentence_and_leaves_outputs(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"sgd", "sgd needs a rate: say optim=\"sgd lr=0.1\""},
        {"sgd momentum=0.9", "sgd needs a rate: say optim=\"sgd lr=0.1\""},
        {"adamw bta2=0.9", "adamw: unknown setting 'bta2'; did you mean 'beta2'?"},
        {"sgd lr=0.1 nesterov=yes", "sgd: nesterov=yes needs momentum above 0 and dampening=0; say "
                                    "for instance momentum=0.9"},
        {"adamv",
         "optim is 'adamv'; choose one of sum, sgd, adam, adamw, adagrad, rmsprop, adadelta, "
         "adamax, ftrl, lion, lamb"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const optim_ops *ops = NULL;
        optim_hyper hyper    = {.lr = 7};
        pen_error why;
        assert_int_equal(optim_parse(rows[i][0], &ops, &hyper, &why), PEN_BAD_SETTING);
        assert_string_equal(why.text, rows[i][1]);
        assert_int_equal(why.status, PEN_BAD_SETTING);
        assert_null(ops);
        assert_true(hyper.lr == 7);
        assert_int_equal(optim_parse(rows[i][0], &ops, &hyper, NULL), PEN_BAD_SETTING);
    }
}

static void test_optim_parse_names_the_rule_in_every_refusal(void **state)
{
    (void)state;
    static const char *const rows[] = {"adam beta1=1",  "adam beta1=x",     "adam lr=-1",
                                       "adam lr",       "adam lr=1 lr=2",   "adam lr=nan",
                                       "adam eps=1e99", "adam nesterov=yes"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const optim_ops *ops;
        optim_hyper hyper;
        pen_error why;
        assert_int_equal(optim_parse(rows[i], &ops, &hyper, &why), PEN_BAD_SETTING);
        if (strncmp(why.text, "adam: ", 6) != 0) fail_msg("'%s': %s", rows[i], why.text);
    }
}

static void test_optim_override_changes_what_it_names_and_keeps_the_rest(void **state)
{
    (void)state;
    static const struct {
        const char *usual, *given, *want;
    } rows[] = {
        {"adamw lr=1e-3 weight_decay=0.1", "adamw lr=0.1", "adamw weight_decay=0.1 lr=0.1"},
        {"adamw lr=1e-3 weight_decay=0.1", "adamw weight_decay=0", "adamw lr=1e-3 weight_decay=0"},
        {"adamw lr=1e-3 weight_decay=0.1", " adamw ", "adamw lr=1e-3 weight_decay=0.1"},
        {"adamw lr=1e-3 weight_decay=0.1", "sgd lr=0.1", "sgd lr=0.1"},
        {"adam lr=1e-3", "adamw lr=0.1", "adamw lr=0.1"},
        {"adamw beta1=0.9", "adamw beta=1", "adamw beta1=0.9 beta=1"},
        {"adamw lr=1", "", "adamw lr=1"},
        {"", "adamw lr=1", "adamw lr=1"},
        {"", "", ""}};
    char text[64];
    pen_error why;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(optim_override(rows[i].usual, rows[i].given, text, sizeof text, &why),
                         PEN_OK);
        assert_string_equal(text, rows[i].want);
    }
    assert_int_equal(optim_override(rows[0].usual, rows[0].given, text, 29, &why), PEN_BAD_SETTING);
    assert_int_equal(optim_override(rows[0].usual, rows[0].given, text, 30, &why), PEN_OK);
}

static void test_optim_parse_refuses_text_that_is_not_a_rule(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "",           "  ",
        "lr=0.1",     "ADAM",
        "sgd,lr=0.1", "adamwadamwadamwadamwadamwadamwadamwadamwadamwadamwadamwadamwadamw lr=1"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const optim_ops *ops;
        optim_hyper hyper;
        pen_error why;
        assert_int_equal(optim_parse(rows[i], &ops, &hyper, &why), PEN_BAD_SETTING);
        assert_non_null(strstr(why.text, "choose one of sum, sgd, "));
    }
}

/* ---- docs ------------------------------------------------------------------------------------ */

static void test_optim_markdown_names_every_rule_slot_and_setting(void **state)
{
    (void)state;
    char *text  = NULL;
    size_t size = 0;
    FILE *out   = open_memstream(&text, &size);
    assert_non_null(out);
    optim_write_markdown(out);
    fclose(out);
    for (int r = 0; optim_all[r] != NULL; r++) {
        char want[64];
        snprintf(want, sizeof want, "\n| `%s` | ", optim_all[r]->name);
        assert_non_null(strstr(text, want));
        for (int s = 0; s < optim_all[r]->slot_count; s++)
            assert_non_null(strstr(text, optim_all[r]->slot_names[s]));
        for (const config_row *row = optim_all[r]->hyper_rows; row->name != NULL; row++)
            assert_non_null(strstr(text, row->doc));
    }
    assert_null(strstr(text, "nan"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_rules_agree_with_torch_and_with_the_papers),
        cmocka_unit_test(test_optim_golden_vectors_name_every_rule),
        cmocka_unit_test(test_optim_adamw_gives_the_published_three_steps),
        cmocka_unit_test(test_optim_no_decay_drops_weight_decay),
        cmocka_unit_test(test_optim_gscale_multiplies_the_gradient),
        cmocka_unit_test(test_optim_sgd_without_momentum_leaves_its_slot_alone),
        cmocka_unit_test(test_optim_rmsprop_centered_survives_a_constant_gradient),
        cmocka_unit_test(test_optim_lamb_ratio_is_one_when_a_norm_is_zero),
        cmocka_unit_test(test_optim_lamb_measures_every_block_of_every_span),
        cmocka_unit_test(test_optim_ftrl_holds_weak_weights_at_exactly_zero),
        cmocka_unit_test(test_optim_bias_correction_at_a_late_step),
        cmocka_unit_test(test_optim_parse_reads_rule_and_settings),
        cmocka_unit_test(test_optim_parse_takes_a_rate_of_zero_as_given),
        cmocka_unit_test(test_optim_parse_needs_no_rate_for_sum),
        cmocka_unit_test(test_optim_parse_refuses_with_a_sentence_and_leaves_outputs),
        cmocka_unit_test(test_optim_parse_names_the_rule_in_every_refusal),
        cmocka_unit_test(test_optim_parse_refuses_text_that_is_not_a_rule),
        cmocka_unit_test(test_optim_override_changes_what_it_names_and_keeps_the_rest),
        cmocka_unit_test(test_optim_markdown_names_every_rule_slot_and_setting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
