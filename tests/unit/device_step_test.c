/* device_step_test.c - the arithmetic of a step on the host's device; tests/gpu/kernels.c runs the same suite on CUDA's. */
#include "tests/support/step_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

extern const device_ops device_cpu;

static bool copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return true;
}

static const step_device host = {&device_cpu, copy};

static void gradients_are_weighed_as_the_host_does(void **state)
{
    (void)state;
    assert_true(step_suite_weigh(&host));
}

static void sums_of_squares_have_the_fixed_tree(void **state)
{
    (void)state;
    assert_true(step_suite_norm(&host));
}

static void a_decision_has_the_formulas_of_the_protocol(void **state)
{
    (void)state;
    assert_true(step_suite_decide(&host));
}

static void every_rule_updates_by_the_devices_own_count(void **state)
{
    (void)state;
    assert_true(step_suite_update(&host));
}

static void every_rule_reaches_its_golden_vectors(void **state)
{
    (void)state;
    assert_true(step_suite_golden(&host));
}

/* What a kernel could not report. */
static void an_update_that_does_not_exist_is_refused(void **state)
{
    const device_verdict applied = {.outcome = PEN_APPLIED, .applied = 5};
    const simd_update row        = {.formula = SIMD_ADAM};
    const device_update good     = {
            .formula = SIMD_ADAM, .row = &row, .n_rows = 1, .base = 4, .verdict = &applied};
    device_update u[5];
    pen_error why = {0};
    (void)state;
    assert_int_equal(device_cpu.update(&good, NULL, &why), PEN_OK);
    for (int i = 0; i < 5; i++) u[i] = good;
    u[0].formula = SIMD_FORMULAS;
    u[1].pass    = DEVICE_UPDATE_NORMS;
    u[2].n_rows  = DEVICE_ROWS_MAX + 1;
    u[3].n_rows  = 0;
    u[4].base    = 5; /* its first row is update 6 */
    for (int i = 0; i < 5; i++) {
        assert_int_equal(device_cpu.update(&u[i], NULL, &why), PEN_INVALID_ARGUMENT);
        assert_true(strlen(why.text) > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_weighed_as_the_host_does),
        cmocka_unit_test(sums_of_squares_have_the_fixed_tree),
        cmocka_unit_test(a_decision_has_the_formulas_of_the_protocol),
        cmocka_unit_test(every_rule_updates_by_the_devices_own_count),
        cmocka_unit_test(every_rule_reaches_its_golden_vectors),
        cmocka_unit_test(an_update_that_does_not_exist_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
