/* optim_test.c - the contract of every update rule in optim_all; no rule is named here. */
#include "common/compute/optim/optim.h"

#include "common/compute/simd/simd.h"
#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { N = 3 * SIMD_BLOCK + 77, STEPS = 4, BLOCKS = N / SIMD_BLOCK + 1 };

/* One tensor under one rule.  Slots beyond the rule's count are NULL: touching one is a crash. */
typedef struct {
    const optim_ops *ops;
    const optim_hyper *hyper;
    float param[N], slot[OPTIM_SLOTS_MAX][N];
    uint64_t steps;
} model;

static float start[N], grads[STEPS][N];
static const double rates[STEPS] = {0.5, 1.0, 1.0, 0.25}; /* times the rule's rate */

/* ---- helpers --------------------------------------------------------------------------------- */

static uint64_t seed = 1847;

static float random_float(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(seed >> 32) * 0x1p-31f;
}

static int fill(void **state)
{
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < N; i++) start[i] = random_float();
    for (int t = 0; t < STEPS; t++)
        for (int i = 0; i < N; i++) grads[t][i] = i % 100 == 0 ? 0.0f : random_float();
    return 0;
}

static optim_span span_of(model *m, size_t from, size_t n, const float *grad, double rate)
{
    optim_span span = {.param  = m->param + from,
                       .grad   = grad + from,
                       .n      = n,
                       .step   = m->steps,
                       .lr     = m->hyper->lr * rate,
                       .gscale = 0.7};
    for (int s = 0; s < m->ops->slot_count; s++) span.slot[s] = m->slot[s] + from;
    return span;
}

static void model_init(model *m, const optim_ops *ops, const optim_hyper *hyper)
{
    memset(m, 0, sizeof *m);
    m->ops   = ops;
    m->hyper = hyper;
    memcpy(m->param, start, sizeof start);
    const optim_span span = span_of(m, 0, N, start, 1);
    if (ops->slot_init != NULL) ops->slot_init(hyper, &span);
}

/* One step with the tensor split before the blocks whose bits are set. */
static void model_step_cut(model *m, const float *grad, double rate, unsigned cuts)
{
    optim_span spans[BLOCKS];
    double scratch[2 * BLOCKS];
    size_t n_spans = 0, from = 0;
    m->steps++;
    for (size_t block = 1; block <= BLOCKS; block++) {
        if (block < BLOCKS && (cuts >> block & 1) == 0) continue;
        const size_t to  = block < BLOCKS ? block * SIMD_BLOCK : N;
        spans[n_spans++] = span_of(m, from, to - from, grad, rate);
        from             = to;
    }
    optim_apply(m->ops, m->hyper, spans, n_spans, scratch);
}

static void model_step(model *m, const float *grad, double rate)
{
    model_step_cut(m, grad, rate, 0);
}

static void model_run(model *m, unsigned cuts)
{
    for (int t = 0; t < STEPS; t++) model_step_cut(m, grads[t], rates[t], cuts);
}

static void assert_same(const model *a, const model *b, const char *what)
{
    if (memcmp(a->param, b->param, sizeof a->param) != 0)
        fail_msg("%s: %s changes the parameters", a->ops->name, what);
    for (int s = 0; s < a->ops->slot_count; s++)
        if (memcmp(a->slot[s], b->slot[s], sizeof a->slot[s]) != 0)
            fail_msg("%s: %s changes slot %s", a->ops->name, what, a->ops->slot_names[s]);
}

static const config_row *row_of(const optim_ops *ops, const char *name)
{
    const config_row *row = ops->hyper_rows;
    while (row->name != NULL && strcmp(row->name, name) != 0) row++;
    return row->name != NULL ? row : NULL;
}

/* The rule with a minimum of settings, as a user gets it. */
static void hyper_default(const optim_ops *ops, optim_hyper *hyper)
{
    memset(hyper, 0, sizeof *hyper);
    config_defaults(ops->hyper_rows, hyper);
    if (isnan(hyper->lr)) hyper->lr = 0.1;
}

static void set_another_value(const config_row *row, optim_hyper *hyper)
{
    char *field = (char *)hyper + row->offset;
    if (row->type == CONFIG_BOOL) *(bool *)field = true;
    if (row->type == CONFIG_F64) *(double *)field = fmin(fmax(0.3, row->min), row->max - 0.3);
}

/* Calls `test` for every rule, with its defaults and with every pair of settings changed. */
typedef void visit(const optim_ops *ops, const optim_hyper *hyper);

static void for_every_pair(const optim_ops *ops, visit *test)
{
    optim_hyper hyper;
    hyper_default(ops, &hyper);
    test(ops, &hyper);
    for (const config_row *a = ops->hyper_rows; a->name != NULL; a++)
        for (const config_row *b = a; b->name != NULL; b++) {
            hyper_default(ops, &hyper);
            set_another_value(a, &hyper);
            set_another_value(b, &hyper);
            if (ops->check == NULL || ops->check(&hyper, NULL) == PEN_OK) test(ops, &hyper);
        }
}

static void for_every_rule(visit *test)
{
    for (int r = 0; optim_all[r] != NULL; r++) for_every_pair(optim_all[r], test);
}

/* ---- the table ------------------------------------------------------------------------------- */

static bool is_sentence(const char *text)
{
    return isupper((unsigned char)text[0]) && text[strlen(text) - 1] == '.';
}

static void check_scalars(const optim_ops *ops)
{
    optim_hyper hyper;
    hyper_default(ops, &hyper);
    const simd_update u = optim_scalars(ops, &hyper, hyper.lr, 1, false);
    assert_in_range(u.formula, 0, SIMD_FORMULAS - 1);
    assert_int_equal(simd_slots(&u) >> ops->slot_count, 0);
    assert_int_equal(ops->whole_tensor, u.formula == SIMD_LAMB);
    assert_true(u.param == NULL && u.grad == NULL && u.n == 0 && u.gscale == 0);
}

static void test_optim_every_rule_is_whole_and_documented(void **state)
{
    (void)state;
    for (int r = 0; optim_all[r] != NULL; r++) {
        const optim_ops *ops = optim_all[r];
        print_message("  %s\n", ops->name);
        assert_ptr_equal(optim_find(ops->name), ops);
        assert_true(is_sentence(ops->doc));
        assert_true(strlen(ops->source) > 10);
        assert_non_null(ops->hyper_rows);
        assert_non_null(ops->scalars);
        check_scalars(ops);
    }
    assert_null(optim_find("no such rule"));
}

static void test_optim_every_slot_has_a_name_of_its_own(void **state)
{
    (void)state;
    for (int r = 0; optim_all[r] != NULL; r++) {
        const optim_ops *ops = optim_all[r];
        assert_in_range(ops->slot_count, 0, OPTIM_SLOTS_MAX);
        for (int s = 0; s < OPTIM_SLOTS_MAX; s++) {
            assert_int_equal(ops->slot_names[s] != NULL, s < ops->slot_count);
            for (int other = 0; other < s && s < ops->slot_count; other++)
                assert_string_not_equal(ops->slot_names[s], ops->slot_names[other]);
        }
    }
}

static void check_limits(const config_row *row, optim_hyper *hyper)
{
    char text[40];
    double *field = (double *)(void *)((char *)hyper + row->offset);
    for (int i = 0; i < 2; i++) {
        const double limit = i == 0 ? row->min : row->max, beyond = i == 0 ? -1e-3 : 1e-3;
        snprintf(text, sizeof text, "%.17g", limit);
        assert_int_equal(config_set(row, hyper, row->name, text, NULL), PEN_OK);
        assert_true(*field == limit);
        snprintf(text, sizeof text, "%.17g", limit + beyond * fmax(1, fabs(limit)));
        assert_int_equal(config_set(row, hyper, row->name, text, NULL), PEN_BAD_SETTING);
        assert_true(*field == limit);
    }
}

static void test_optim_every_setting_has_a_range_a_default_and_a_sentence(void **state)
{
    (void)state;
    for (int r = 0; optim_all[r] != NULL; r++)
        for (const config_row *row = optim_all[r]->hyper_rows; row->name != NULL; row++) {
            optim_hyper hyper;
            config_defaults(optim_all[r]->hyper_rows, &hyper);
            assert_true(is_sentence(row->doc));
            assert_true(row->type == CONFIG_F64 || row->type == CONFIG_BOOL);
            if (row->type == CONFIG_F64) check_limits(row, &hyper);
        }
}

/* ---- numbers --------------------------------------------------------------------------------- */

static void compare_levels(const optim_ops *ops, const optim_hyper *hyper)
{
    static model want, got;
    assert_int_equal(simd_choose("scalar", NULL), PEN_OK);
    model_init(&want, ops, hyper);
    model_run(&want, 0);
    for (int i = 0; simd_all[i] != NULL; i++) {
        if (!simd_all[i]->usable()) continue;
        assert_int_equal(simd_choose(simd_all[i]->name, NULL), PEN_OK);
        model_init(&got, ops, hyper);
        model_run(&got, 0);
        assert_same(&got, &want, simd_all[i]->name);
    }
    assert_int_equal(simd_choose("auto", NULL), PEN_OK);
}

static void test_optim_every_simd_level_gives_the_same_bits(void **state)
{
    (void)state;
    for_every_rule(compare_levels);
}

static void compare_cuts(const optim_ops *ops, const optim_hyper *hyper)
{
    static model want, got;
    model_init(&want, ops, hyper);
    model_run(&want, 0);
    for (unsigned cuts = 2; cuts < 1u << BLOCKS; cuts += 2) {
        model_init(&got, ops, hyper);
        model_run(&got, cuts);
        assert_same(&got, &want, "a cut");
    }
}

static void test_optim_every_split_on_block_borders_gives_the_same_bits(void **state)
{
    (void)state;
    for_every_rule(compare_cuts);
}

static void resume(const optim_ops *ops, const optim_hyper *hyper)
{
    static model want, before, after;
    model_init(&want, ops, hyper);
    model_run(&want, 0);

    model_init(&before, ops, hyper);
    for (int t = 0; t < STEPS / 2; t++) model_step(&before, grads[t], rates[t]);
    /* The contents of a snapshot: parameters, as many slots as the rule has, and the step. */
    memset(&after, 0, sizeof after);
    after.ops   = ops;
    after.hyper = hyper;
    after.steps = before.steps;
    memcpy(after.param, before.param, sizeof after.param);
    for (int s = 0; s < ops->slot_count; s++)
        memcpy(after.slot[s], before.slot[s], sizeof after.slot[s]);
    memset(&before, 0xee, sizeof before);
    for (int t = STEPS / 2; t < STEPS; t++) model_step(&after, grads[t], rates[t]);
    assert_same(&after, &want, "a restart");
}

static void test_optim_steps_after_a_restore_equal_steps_without_one(void **state)
{
    (void)state;
    for_every_rule(resume);
}

static void step_with_bad_gradient(const optim_ops *ops, const optim_hyper *hyper, float bad)
{
    static model m;
    static float poisoned[N];
    static const size_t at[] = {0, 5, SIMD_BLOCK, N - 1};
    memcpy(poisoned, grads[1], sizeof poisoned);
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) poisoned[at[i]] = bad;
    model_init(&m, ops, hyper);
    model_step(&m, grads[0], 1);
    model_step(&m, poisoned, 1);
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++)
        if (!isnan(m.param[at[i]])) fail_msg("%s hides a NaN at %zu", ops->name, at[i]);
    if (!ops->whole_tensor && !isfinite(m.param[1])) fail_msg("%s spreads a NaN", ops->name);
    assert_false(simd()->finite(m.param, PEN_F32, N));
}

static void poison(const optim_ops *ops, const optim_hyper *hyper)
{
    for (int i = 0; simd_all[i] != NULL; i++) {
        if (!simd_all[i]->usable()) continue;
        assert_int_equal(simd_choose(simd_all[i]->name, NULL), PEN_OK);
        step_with_bad_gradient(ops, hyper, NAN);
    }
    assert_int_equal(simd_choose("auto", NULL), PEN_OK);
}

static void test_optim_a_nan_gradient_results_in_a_nan_parameter(void **state)
{
    (void)state;
    for_every_rule(poison);
}

static void step_without_rate(const optim_ops *ops, const optim_hyper *hyper)
{
    static model m;
    if (row_of(ops, "lr") == NULL) return;
    model_init(&m, ops, hyper);
    for (int t = 0; t < STEPS; t++) model_step(&m, grads[t], 0);
    assert_memory_equal(m.param, start, sizeof start);
}

static void test_optim_a_rate_of_zero_moves_nothing(void **state)
{
    (void)state;
    for_every_rule(step_without_rate);
}

static void step_unaligned(const optim_ops *ops, const optim_hyper *hyper)
{
    static model want, got;
    static unsigned char bytes[sizeof grads[0] + 8];
    model_init(&want, ops, hyper);
    model_init(&got, ops, hyper);
    memcpy(bytes + 3, grads[0], sizeof grads[0]);
    model_step(&want, grads[0], 1);
    model_step(&got, (const float *)(const void *)(bytes + 3), 1);
    assert_same(&got, &want, "an unaligned gradient");
}

static void test_optim_a_gradient_may_start_at_any_byte(void **state)
{
    (void)state;
    for_every_rule(step_unaligned);
}

static void step_nothing(const optim_ops *ops, const optim_hyper *hyper)
{
    double scratch[2] = {-1, -1};
    optim_span span   = {.step = 1, .lr = 0.1, .gscale = 1};
    if (ops->slot_init != NULL) ops->slot_init(hyper, &span);
    optim_apply(ops, hyper, &span, 1, scratch);
    optim_apply(ops, hyper, NULL, 0, scratch);
    assert_true(scratch[0] == -1 && scratch[1] == -1);
}

static void test_optim_accepts_zero_elements(void **state)
{
    (void)state;
    for_every_rule(step_nothing);
}

/* Half of x^2: the gradient is x itself. */
static void descend(const optim_ops *ops, const optim_hyper *hyper)
{
    static model m;
    double before = 0, after = 0;
    if (row_of(ops, "lr") == NULL) return;
    model_init(&m, ops, hyper);
    for (int t = 0; t < 100; t++) {
        float slope[N];
        memcpy(slope, m.param, sizeof slope);
        model_step(&m, slope, fmin(1, 0.1 / hyper->lr));
    }
    for (int i = 0; i < N; i++) {
        before += fabs((double)start[i]);
        after += fabs((double)m.param[i]);
    }
    if (!(after < before)) fail_msg("%s climbs: %g to %g", ops->name, before, after);
}

static void test_optim_every_rule_with_a_rate_descends(void **state)
{
    (void)state;
    for_every_rule(descend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_every_rule_is_whole_and_documented),
        cmocka_unit_test(test_optim_every_slot_has_a_name_of_its_own),
        cmocka_unit_test(test_optim_every_setting_has_a_range_a_default_and_a_sentence),
        cmocka_unit_test(test_optim_every_simd_level_gives_the_same_bits),
        cmocka_unit_test(test_optim_every_split_on_block_borders_gives_the_same_bits),
        cmocka_unit_test(test_optim_steps_after_a_restore_equal_steps_without_one),
        cmocka_unit_test(test_optim_a_nan_gradient_results_in_a_nan_parameter),
        cmocka_unit_test(test_optim_a_rate_of_zero_moves_nothing),
        cmocka_unit_test(test_optim_a_gradient_may_start_at_any_byte),
        cmocka_unit_test(test_optim_accepts_zero_elements),
        cmocka_unit_test(test_optim_every_rule_with_a_rate_descends),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
