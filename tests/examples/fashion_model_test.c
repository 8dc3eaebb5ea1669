/* fashion_model_test.c - the gradients of fashion_mnist's models against differences of the loss. */
#include "model.h"
#include "rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5 };

typedef struct {
    model m;
    float *param, *grad;
    int ready[MODEL_TENSORS_MAX]; /* how often each tensor was called ready */
} fixture;

static void note_ready(void *user, int tensor)
{
    fixture *f = user;
    f->ready[tensor]++;
}

static void fill_batch(model *m, rng *r)
{
    for (int i = 0; i < ROWS * DATA_PIXELS; i++) m->images[i] = rng_uniform(r);
    for (int i = 0; i < ROWS; i++) m->labels[i] = (uint8_t)(i * 3 % DATA_CLASSES);
}

static void open_fixture(fixture *f, const char *name)
{
    const model_ops *ops = model_find(name);
    rng r                = rng_seeded(11, 0);
    assert_non_null(ops);
    *f      = (fixture){.param = calloc(model_values(ops), sizeof(float))};
    f->grad = calloc(model_values(ops), sizeof(float));
    assert_true(f->param && f->grad && model_init(&f->m, ops, ROWS, f->param, f->grad));
    model_start(&f->m, 5);
    fill_batch(&f->m, &r);
}

static void close_fixture(fixture *f)
{
    model_fini(&f->m);
    free(f->param);
    free(f->grad);
}

static double mean_loss(fixture *f)
{
    return model_train(&f->m, ROWS, 1.0, note_ready, f) / ROWS;
}

/* Goal: backward() is the derivative of forward(). Method: take a short step along the gradient of
 * one tensor at a time; the loss must change by the step's length times the gradient's norm. */
static void check_tensor(fixture *f, int t)
{
    const size_t n = model_tensor_values(&f->m.ops->tensors[t]);
    float *start = malloc(n * sizeof *start), *way = malloc(n * sizeof *way);
    assert_true(start && way);
    mean_loss(f);
    memcpy(start, f->m.param[t], n * sizeof *start);
    memcpy(way, f->m.grad[t], n * sizeof *way);
    double square = 0.0, loss[2];
    for (size_t i = 0; i < n; i++) square += (double)way[i] * way[i];
    const double norm = sqrt(square), length = 2e-3;
    assert_true(norm > 0.0);
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < n; i++)
            f->m.param[t][i] = start[i] + (float)((side ? length : -length) * way[i] / norm);
        loss[side] = mean_loss(f);
    }
    memcpy(f->m.param[t], start, n * sizeof *start);
    const double slope = (loss[1] - loss[0]) / (2 * length), error = fabs(slope - norm) / norm;
    print_message("%s: slope %.6f, gradient %.6f, %.0f %% of the tolerance\n",
                  f->m.ops->tensors[t].name, slope, norm, error / 0.02 * 100);
    assert_true(error < 0.02);
    free(start);
    free(way);
}

static void check_model(const char *name)
{
    fixture f;
    open_fixture(&f, name);
    for (int t = 0; t < f.m.ops->tensor_count; t++) check_tensor(&f, t);
    close_fixture(&f);
}

static void test_mlp_gradient_is_the_slope_of_the_loss(void **state)
{
    (void)state;
    check_model("mlp");
}

static void test_cnn_gradient_is_the_slope_of_the_loss(void **state)
{
    (void)state;
    check_model("cnn");
}

static void test_model_calls_every_gradient_ready_once(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int n = 0; n <= ROWS; n += ROWS) {
            fixture f;
            open_fixture(&f, i ? "cnn" : "mlp");
            model_train(&f.m, n, 1.0, note_ready, &f);
            for (int t = 0; t < f.m.ops->tensor_count; t++) assert_int_equal(f.ready[t], 1);
            close_fixture(&f);
        }
}

static void test_model_without_samples_has_zero_gradient_and_loss(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, "mlp");
    mean_loss(&f);
    assert_true(model_train(&f.m, 0, 1.0, note_ready, &f) == 0.0);
    for (size_t i = 0; i < model_values(f.m.ops); i++) assert_true(f.grad[i] == 0.0f);
    close_fixture(&f);
}

static void test_model_has_the_stated_number_of_parameters(void **state)
{
    (void)state;
    assert_int_equal(model_values(&model_mlp), 235146);
    assert_int_equal(model_values(&model_cnn), 12810);
    assert_null(model_find("resnet"));
}

static void test_model_repeats_its_bits(void **state)
{
    (void)state;
    fixture a, b;
    open_fixture(&a, "cnn");
    open_fixture(&b, "cnn");
    assert_true(mean_loss(&a) == mean_loss(&b));
    assert_memory_equal(a.grad, b.grad, model_values(a.m.ops) * sizeof(float));
    close_fixture(&a);
    close_fixture(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlp_gradient_is_the_slope_of_the_loss),
        cmocka_unit_test(test_cnn_gradient_is_the_slope_of_the_loss),
        cmocka_unit_test(test_model_calls_every_gradient_ready_once),
        cmocka_unit_test(test_model_without_samples_has_zero_gradient_and_loss),
        cmocka_unit_test(test_model_has_the_stated_number_of_parameters),
        cmocka_unit_test(test_model_repeats_its_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
