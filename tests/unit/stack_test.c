/* stack_test.c - PEN_STACKED: layers in one tensor train as if each had been registered; by a program that runs alone. */
#include "tests/unit/worker_api_rig.h"

#include <stdbool.h>

enum { LAYERS = 3, W = 12, B = 4, EMBED = 8, STEPS = 4 };

static pen_ctx *open_alone(void)
{
    pen_ctx *ctx;
    ok(pen_init(SETTINGS("optim=adamw lr=0.1", "clip=0.5"), &ctx));
    return ctx;
}

static pen_tensor *add(pen_ctx *ctx, pen_tensor_desc d)
{
    pen_tensor *t = NULL;
    ok(pen_register(ctx, &d, &t));
    return t;
}

static void refused(pen_ctx *ctx, pen_tensor_desc d, const char *sentence)
{
    assert_int_equal(pen_register(ctx, &d, NULL), PEN_INVALID_ARGUMENT);
    assert_string_equal(pen_last_error(NULL), sentence);
}

/* ---- a model of an embedding and three layers, in three forms --------------------------------- */
typedef enum { BY_LAYER, STACKED, STACKED_IN_SDK } form;

typedef struct {
    pen_ctx *ctx;
    form form;
    pen_tensor *embed, *w[LAYERS], *b[LAYERS]; /* of a stack: all the same */
    float w_values[LAYERS * W], w_grads[LAYERS * W], b_values[LAYERS * B], b_grads[LAYERS * B];
    float embed_values[EMBED], embed_grads[EMBED];
} network;

static void open_network(network *n, form as)
{
    const bool is_own = as != STACKED_IN_SDK;
    *n                = (network){.ctx = open_alone(), .form = as};
    n->embed          = add(n->ctx, (pen_tensor_desc){.name  = "embed",
                                                      .ndim  = 1,
                                                      .shape = {EMBED},
                                                      .param = n->embed_values,
                                                      .grad  = n->embed_grads,
                                                      .init  = "normal std=1"});
    for (int i = 0; i < LAYERS && as == BY_LAYER; i++) {
        char w[16], b[16], unit[16];
        snprintf(w, sizeof w, "h.%d.w", i);
        snprintf(b, sizeof b, "h.%d.b", i);
        snprintf(unit, sizeof unit, "h.%d", i);
        n->w[i] = add(n->ctx, (pen_tensor_desc){.name  = w,
                                                .ndim  = 2,
                                                .shape = {3, 4},
                                                .param = n->w_values + i * W,
                                                .grad  = n->w_grads + i * W,
                                                .unit  = unit,
                                                .init  = "normal std=1"});
        n->b[i] = add(n->ctx, (pen_tensor_desc){.name  = b,
                                                .ndim  = 1,
                                                .shape = {B},
                                                .flags = PEN_NO_DECAY,
                                                .param = n->b_values + i * B,
                                                .grad  = n->b_grads + i * B,
                                                .unit  = unit,
                                                .init  = "uniform a=-1 b=1"});
    }
    if (as == BY_LAYER) return;
    n->w[0] = add(n->ctx, (pen_tensor_desc){.name  = "h.{}.w",
                                            .ndim  = 3,
                                            .shape = {LAYERS, 3, 4},
                                            .flags = PEN_STACKED,
                                            .param = is_own ? n->w_values : NULL,
                                            .grad  = is_own ? n->w_grads : NULL,
                                            .unit  = "h.{}",
                                            .init  = "normal std=1"});
    n->b[0] = add(n->ctx, (pen_tensor_desc){.name  = "h.{}.b",
                                            .ndim  = 2,
                                            .shape = {LAYERS, B},
                                            .flags = PEN_STACKED | PEN_NO_DECAY,
                                            .param = is_own ? n->b_values : NULL,
                                            .grad  = is_own ? n->b_grads : NULL,
                                            .unit  = "h.{}",
                                            .init  = "uniform a=-1 b=1"});
    for (int i = 1; i < LAYERS; i++) n->w[i] = n->w[0], n->b[i] = n->b[0];
}

/* A gradient that depends on the values, so that a wrong value changes all that follows. */
static void draw(const float *value, float *grad, size_t count, int64_t step, int seed)
{
    assert_non_null(value);
    assert_non_null(grad);
    for (size_t i = 0; i < count; i++)
        grad[i] =
            value[i] * 0.3f + (float)((i * 7 + (size_t)step * 5 + (size_t)seed) % 11) / 7 - 0.6f;
}

static void train_layer(network *n, int i, int64_t step)
{
    const int64_t slice = n->form == BY_LAYER ? PEN_ALL : i;
    pen_unit *unit      = pen_unit_get(n->ctx, "h", i);
    assert_non_null(unit);
    ok(pen_use(n->ctx, unit, PEN_BACKWARD, NULL));
    draw(pen_view(n->ctx, n->w[i], slice, PEN_PARAM), pen_view(n->ctx, n->w[i], slice, PEN_GRAD), W,
         step, i);
    draw(pen_view(n->ctx, n->b[i], slice, PEN_PARAM), pen_view(n->ctx, n->b[i], slice, PEN_GRAD), B,
         step, 9 + i);
    ok(pen_ready(n->ctx, n->b[i], slice));
    ok(pen_ready(n->ctx, n->w[i], slice));
    ok(pen_release(n->ctx, unit, PEN_BACKWARD, NULL));
}

static uint32_t train_network(network *n)
{
    uint32_t digest;
    pen_step step;
    ok(pen_commit(n->ctx));
    for (int s = 0; s < STEPS; s++) {
        ok(pen_step_begin(n->ctx, &step));
        for (int i = LAYERS; i-- > 0;) train_layer(n, i, step.index);
        draw(n->embed_values, n->embed_grads, EMBED, step.index, 77);
        ok(pen_ready(n->ctx, n->embed, PEN_ALL));
        ok(pen_step_end(n->ctx, &step));
        assert_true(step.clip < 1);
    }
    ok(pen_digest(n->ctx, &digest));
    ok(pen_finalize(n->ctx));
    return digest;
}

/* ---- tests ------------------------------------------------------------------------------------ */
static void stacked_layers_train_with_the_bits_of_layers_registered_one_by_one(void **state)
{
    (void)state;
    static network by_layer, stacked, in_sdk;
    open_network(&by_layer, BY_LAYER);
    open_network(&stacked, STACKED);
    open_network(&in_sdk, STACKED_IN_SDK);
    const uint32_t digest = train_network(&by_layer);
    assert_int_equal(train_network(&stacked), digest);
    assert_int_equal(train_network(&in_sdk), digest);
    assert_memory_equal(stacked.w_values, by_layer.w_values, sizeof by_layer.w_values);
    assert_memory_equal(stacked.b_values, by_layer.b_values, sizeof by_layer.b_values);
}

static void all_slices_are_ready_at_once_or_one_by_one_but_never_twice(void **state)
{
    (void)state;
    static network n;
    pen_step step;
    open_network(&n, STACKED);
    ok(pen_commit(n.ctx));
    ok(pen_step_begin(n.ctx, &step));
    assert_ptr_equal(pen_view(n.ctx, n.w[0], PEN_ALL, PEN_PARAM), n.w_values);
    assert_ptr_equal(pen_view(n.ctx, n.w[0], 2, PEN_GRAD), n.w_grads + 2 * W);
    ok(pen_ready(n.ctx, n.w[0], PEN_ALL));
    ok(pen_ready(n.ctx, n.b[0], 1));
    ok(pen_ready(n.ctx, NULL, PEN_ALL)); /* the others */
    ok(pen_step_end(n.ctx, &step));
    ok(pen_step_begin(n.ctx, &step));
    ok(pen_ready(n.ctx, n.w[0], 1));
    assert_int_equal(pen_ready(n.ctx, n.w[0], PEN_ALL), PEN_WRONG_STATE);
    assert_non_null(strstr(pen_last_error(NULL), "'h.1.w'"));
    assert_int_equal(pen_ready(n.ctx, n.w[0], 3), PEN_INVALID_ARGUMENT);
    assert_string_equal(pen_last_error(NULL),
                        "pen_ready('h.{}.w'): invalid slice 3; expected 0 to 2, or PEN_ALL");
    assert_int_equal(pen_ready(n.ctx, n.w[0], -2), PEN_INVALID_ARGUMENT);
    assert_int_equal(pen_ready(n.ctx, n.embed, 1), PEN_INVALID_ARGUMENT);
    assert_string_equal(
        pen_last_error(NULL),
        "pen_ready('embed'): invalid slice 1; use PEN_ALL, because it is not stacked");
    assert_int_not_equal(pen_step_end(n.ctx, &step), PEN_OK);
    ok(pen_finalize(n.ctx));
}

static void a_stack_in_memory_of_the_sdk_is_viewed_slice_by_slice(void **state)
{
    (void)state;
    static network n;
    open_network(&n, STACKED_IN_SDK);
    ok(pen_commit(n.ctx));
    assert_null(pen_view(n.ctx, n.w[0], PEN_ALL, PEN_PARAM));
    assert_string_equal(
        pen_last_error(NULL),
        "pen_view('h.{}.w'): it is stacked, in memory of the SDK; name one of its 3 slices");
    assert_ptr_not_equal(pen_view(n.ctx, n.w[0], 0, PEN_PARAM),
                         pen_view(n.ctx, n.w[0], 1, PEN_PARAM));
    ok(pen_finalize(n.ctx));
}

static void a_stack_is_bound_whole_and_flat_buffers_are_in_the_order_of_registration(void **state)
{
    (void)state;
    static network n;
    static float flat[EMBED + LAYERS * (W + B)], other[LAYERS * W];
    open_network(&n, STACKED);
    ok(pen_commit(n.ctx));
    ok(pen_bind(n.ctx, NULL, flat, NULL));
    assert_ptr_equal(pen_view(n.ctx, n.w[0], 1, PEN_PARAM), flat + EMBED + W);
    assert_ptr_equal(pen_view(n.ctx, n.b[0], 2, PEN_PARAM), flat + EMBED + LAYERS * W + 2 * B);
    ok(pen_bind(n.ctx, n.w[0], other, NULL));
    assert_ptr_equal(pen_view(n.ctx, n.w[0], PEN_ALL, PEN_PARAM), other);
    assert_ptr_equal(pen_view(n.ctx, n.w[0], 2, PEN_PARAM), other + 2 * W);
    ok(pen_finalize(n.ctx));
}

static void verbs_take_one_slice(void **state)
{
    (void)state;
    pen_ctx *ctx;
    float values[2][B] = {{0}}, grads[2][B] = {{1, 1, 1, 1}, {2, 2, 2, 2}};
    ok(pen_init(SETTINGS("optim=sgd lr=1", "commit=eager"), &ctx));
    pen_tensor *t = add(ctx, (pen_tensor_desc){.name  = "w",
                                               .ndim  = 2,
                                               .shape = {2, B},
                                               .flags = PEN_STACKED,
                                               .param = values,
                                               .grad  = grads});
    ok(pen_commit(ctx));
    ok(pen_push_pull(ctx, t, 1, NULL, NULL, NULL, NULL));
    assert_true(values[0][0] == 0 && values[1][0] == -2);
    assert_int_equal(pen_push(ctx, t, PEN_ALL, NULL, NULL, NULL), PEN_INVALID_ARGUMENT);
    assert_string_equal(pen_last_error(NULL),
                        "pen_push('w'): it is stacked; name one of its 2 slices");
    ok(pen_finalize(ctx));
}

static void stacks_are_tied_slice_by_slice(void **state)
{
    (void)state;
    pen_ctx *ctx;
    pen_step step;
    float values[2][B] = {{0}}, a[2][B] = {{1}, {2}}, b[2][B] = {{10}, {20}};
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    pen_tensor_desc one = {
        .name = "a", .ndim = 2, .shape = {2, B}, .flags = PEN_STACKED, .param = values, .grad = a};
    pen_tensor *first   = add(ctx, one);
    pen_tensor_desc two = {
        .name = "b", .ndim = 2, .shape = {2, B}, .flags = PEN_STACKED, .grad = b, .tied_to = first};
    pen_tensor *second = add(ctx, two);
    ok(pen_commit(ctx));
    assert_ptr_equal(pen_view(ctx, second, 1, PEN_PARAM), values[1]);
    ok(pen_step_begin(ctx, &step));
    ok(pen_ready(ctx, NULL, PEN_ALL));
    ok(pen_step_end(ctx, &step));
    assert_true(values[0][0] == -11 && values[1][0] == -22);
    ok(pen_finalize(ctx));
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    two.tied_to  = add(ctx, one);
    two.shape[0] = 3;
    refused(ctx, two, "'b' is tied to 'a', which is no stack of 3 slices");
    two.flags = 0;
    refused(ctx, two, "'b' is tied to 'a', which is a stack; register it as one, too");
    ok(pen_finalize(ctx));
}

static void a_stack_without_slices_or_with_too_many_is_refused(void **state)
{
    (void)state;
    pen_ctx *ctx        = open_alone();
    pen_tensor_desc bad = {.name = "w", .ndim = 1, .flags = PEN_STACKED};
    refused(ctx, bad, "'w': invalid number of slices 0; a model has 1 to 65536 tensors");
    bad.shape[0] = INT64_MIN;
    assert_int_equal(pen_register(ctx, &bad, NULL), PEN_INVALID_ARGUMENT);
    bad.shape[0] = INT64_MAX;
    assert_int_equal(pen_register(ctx, &bad, NULL), PEN_INVALID_ARGUMENT);
    bad.ndim = 0;
    refused(ctx, bad, "'w': invalid ndim 0; a stack has 1 to 8, of which the first counts slices");
    bad.ndim = 9;
    assert_int_equal(pen_register(ctx, &bad, NULL), PEN_INVALID_ARGUMENT);
    bad = (pen_tensor_desc){.ndim = 1, .shape = {2}, .flags = PEN_STACKED};
    refused(ctx, bad, "a tensor needs a name");
    add(ctx, (pen_tensor_desc){.name = "x.1", .ndim = 1, .shape = {2}});
    bad.name = "x";
    refused(ctx, bad, "'x.1' is registered twice");
    char name[300];
    memset(name, 'n', sizeof name);
    name[299] = '\0';
    bad.name  = name;
    assert_int_equal(pen_register(ctx, &bad, NULL), PEN_INVALID_ARGUMENT);
    bad =
        (pen_tensor_desc){.name = "y", .unit = name, .ndim = 1, .shape = {2}, .flags = PEN_STACKED};
    assert_int_equal(pen_register(ctx, &bad, NULL), PEN_INVALID_ARGUMENT);
    ok(pen_finalize(ctx));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stacked_layers_train_with_the_bits_of_layers_registered_one_by_one),
        cmocka_unit_test(all_slices_are_ready_at_once_or_one_by_one_but_never_twice),
        cmocka_unit_test(a_stack_in_memory_of_the_sdk_is_viewed_slice_by_slice),
        cmocka_unit_test(a_stack_is_bound_whole_and_flat_buffers_are_in_the_order_of_registration),
        cmocka_unit_test(verbs_take_one_slice),
        cmocka_unit_test(stacks_are_tied_slice_by_slice),
        cmocka_unit_test(a_stack_without_slices_or_with_too_many_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
