/* gpt2_model_test.c - the network of gpt2 against torch's numbers, against differences of the loss, and against itself. */
#include "golden_gpt2.h"
#include "network/kernels.h"
#include "network/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS_MAX = 64, ROWS = GOLDEN_BATCH * GOLDEN_LENGTH };

typedef struct {
    gpt2_config config;
    gpt2_options options;
    gpt2 *m;
    int tensors;
    size_t values, at[TENSORS_MAX + 1]; /* start of each tensor in the flat buffers */
    float *value, *grad;                /* float32, even if the model has 16 bits */
    uint16_t *value_16, *grad_16;
    int32_t tokens[ROWS], targets[ROWS];
} fixture;

static const gpt2_config golden_config = {.vocab        = GOLDEN_VOCAB,
                                          .vocab_padded = GOLDEN_PADDED,
                                          .block        = GOLDEN_BLOCK,
                                          .layers       = GOLDEN_LAYERS,
                                          .heads        = GOLDEN_HEADS,
                                          .channels     = GOLDEN_CHANNELS};

/* The formula of make_golden_gpt2.py. */
static float golden_value(int index, size_t i, bool of_norm)
{
    const uint32_t x = (uint32_t)((uint64_t)((uint64_t)index * 7919u + i + 1u) * 2654435761u);
    return (float)(x >> 20) / 4096.0f - 0.5f + (of_norm ? 1.0f : 0.0f);
}

static int32_t golden_token(int i)
{
    return (i * i * 5 + i * 3 + 2) % GOLDEN_VOCAB;
}

/* Rounding to bf16 by hand: values that fit are multiples of 2^-12 below 2, so the test does its
 * own rounding. */
static uint16_t half_of(gpt2_type type, float f)
{
    uint16_t h = 0;
    if (type == GPT2_BF16)
        gpt2_kernels_base.to_bf16(&h, &f, 1, 0);
    else
        gpt2_kernels_base.to_f16(&h, &f, 1, 0);
    return h;
}

static float wide_of(gpt2_type type, uint16_t h)
{
    float f = 0.0f;
    if (type == GPT2_BF16)
        gpt2_kernels_base.from_bf16(&f, &h, 1);
    else
        gpt2_kernels_base.from_f16(&f, &h, 1);
    return f;
}

static void fill_values(fixture *f)
{
    for (int t = 0; t < f->tensors; t++) {
        gpt2_tensor info;
        gpt2_tensor_get(&f->config, t, &info);
        const bool of_norm = strstr(info.name, "ln_") && strstr(info.name, "weight");
        f->at[t + 1]       = f->at[t] + gpt2_tensor_values(&info);
        for (size_t i = f->at[t]; i < f->at[t + 1]; i++)
            f->value[i] = golden_value(t, i - f->at[t], of_norm);
    }
    for (int i = 0; i < ROWS; i++) {
        f->tokens[i]  = golden_token(i);
        f->targets[i] = golden_token(i + 1);
    }
    f->targets[GOLDEN_LENGTH + 3] = -1;
}

static void place_all(fixture *f)
{
    const bool half = f->options.type != GPT2_F32;
    for (int t = 0; t < f->tensors; t++)
        if (half)
            gpt2_place(f->m, t, f->value_16 + f->at[t], f->grad_16 + f->at[t]);
        else
            gpt2_place(f->m, t, f->value + f->at[t], f->grad + f->at[t]);
}

static void open_fixture(fixture *f, gpt2_options options)
{
    const char *why;
    *f                = (fixture){.config = golden_config, .options = options};
    f->options.batch  = GOLDEN_BATCH;
    f->options.length = GOLDEN_LENGTH;
    f->tensors        = gpt2_tensors(&f->config);
    f->values         = gpt2_values(&f->config);
    f->value          = calloc(f->values, sizeof *f->value);
    f->grad           = calloc(f->values, sizeof *f->grad);
    f->value_16       = calloc(f->values, sizeof *f->value_16);
    f->grad_16        = calloc(f->values, sizeof *f->grad_16);
    f->m              = gpt2_new(&f->config, &f->options, &why);
    assert_true(f->value && f->grad && f->value_16 && f->grad_16 && f->m &&
                f->tensors <= TENSORS_MAX);
    fill_values(f);
    for (size_t i = 0; i < f->values; i++) f->value_16[i] = half_of(f->options.type, f->value[i]);
    place_all(f);
}

static void close_fixture(fixture *f)
{
    gpt2_free(f->m);
    free(f->value);
    free(f->grad);
    free(f->value_16);
    free(f->grad_16);
}

static double forward(fixture *f)
{
    gpt2_embed(f->m, f->tokens, GOLDEN_BATCH, GOLDEN_LENGTH, 0);
    for (int l = 0; l < f->config.layers; l++) gpt2_block(f->m, l);
    return gpt2_head_loss(f->m, f->targets);
}

static double train(fixture *f, float scale)
{
    gpt2_embed(f->m, f->tokens, GOLDEN_BATCH, GOLDEN_LENGTH, 0);
    for (int l = 0; l < f->config.layers; l++) gpt2_block(f->m, l);
    const double loss = gpt2_head(f->m, f->targets, scale);
    for (int l = f->config.layers - 1; l >= 0; l--) gpt2_block_backward(f->m, l);
    gpt2_embed_backward(f->m);
    for (size_t i = 0; i < f->values && f->options.type != GPT2_F32; i++)
        f->grad[i] = wide_of(f->options.type, f->grad_16[i]);
    return loss;
}

/* ||ours / scale - torch's|| / ||torch's|| of one tensor. */
static double distance(const fixture *f, int t, double scale)
{
    double apart = 0.0, square = 0.0;
    for (size_t i = f->at[t]; i < f->at[t + 1]; i++) {
        const double want = golden_grads[i], got = f->grad[i] / scale;
        apart += (got - want) * (got - want);
        square += want * want;
    }
    return sqrt(apart / square);
}

static void check_distances(const fixture *f, double scale, const double *allowed, double factor)
{
    double most       = 0.0;
    const char *where = "";
    static gpt2_tensor info;
    for (int t = 0; t < f->tensors; t++) {
        const double used = distance(f, t, scale) / (factor * (allowed ? allowed[t] : 1.0));
        if (!(used > most)) {
            assert_false(isnan(used));
            continue;
        }
        most = used;
        gpt2_tensor_get(&f->config, t, &info);
        where = info.name;
    }
    print_message("gradients: %.1f %% of the tolerance, most at %s\n", most * 100, where);
    assert_true(most < 1.0);
}

static void test_gpt2_loss_and_all_gradients_are_those_of_torch(void **state)
{
    (void)state;
    assert_int_equal(sizeof golden_grads / sizeof *golden_grads, gpt2_values(&golden_config));
    for (int recompute = 0; recompute < 2; recompute++)
        for (int threads = 1; threads <= 3; threads += 2) {
            fixture f;
            open_fixture(&f, (gpt2_options){.threads = threads, .recompute = recompute});
            const double loss = train(&f, 1.0f);
            print_message("loss: %.1f %% of the tolerance\n",
                          fabs(loss - golden_loss) / 2e-6 * 100);
            assert_true(fabs(loss - golden_loss) < 2e-6);
            check_distances(&f, 1.0, NULL, 1e-5);
            close_fixture(&f);
        }
}

/* Values and gradients are rounded to 16 bits, sums are not; torch rounds everything. */
static void test_gpt2_in_16_bits_is_nearer_to_the_truth_than_torch_in_bfloat16(void **state)
{
    (void)state;
    const double allowed = fabs(golden_bf16_loss - golden_loss);
    for (gpt2_type type = GPT2_BF16; type <= GPT2_F16; type++) {
        fixture f;
        open_fixture(&f, (gpt2_options){.type = type});
        const double loss = train(&f, 8.0f);
        print_message("loss: %.1f %% of the tolerance\n", fabs(loss - golden_loss) / allowed * 100);
        assert_true(fabs(loss - golden_loss) < allowed);
        check_distances(&f, 8.0, golden_bf16_error, 1.0);
        close_fixture(&f);
    }
}

/* Goal: backward is the derivative of forward. Method: take a short step along the gradient of
 * one tensor at a time; the loss must change by the step's length times the gradient's norm. */
static double slope_error(fixture *f, int t)
{
    const size_t begin = f->at[t], n = f->at[t + 1] - begin;
    float *start = malloc(n * sizeof *start), *way = malloc(n * sizeof *way);
    double square = 0.0, loss[2];
    assert_true(start && way);
    memcpy(start, f->value + begin, n * sizeof *start);
    memcpy(way, f->grad + begin, n * sizeof *way);
    for (size_t i = 0; i < n; i++) square += (double)way[i] * way[i];
    const double norm = sqrt(square), length = 4e-3;
    assert_true(norm > 0.0);
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < n; i++)
            f->value[begin + i] = start[i] + (float)((side ? length : -length) * way[i] / norm);
        loss[side] = forward(f);
    }
    memcpy(f->value + begin, start, n * sizeof *start);
    free(start);
    free(way);
    return fabs((loss[1] - loss[0]) / (2 * length) - norm) / norm;
}

static void test_gpt2_gradient_is_the_slope_of_the_loss(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, (gpt2_options){0});
    train(&f, 1.0f);
    for (int t = 0; t < f.tensors; t++) {
        gpt2_tensor info;
        gpt2_tensor_get(&f.config, t, &info);
        const double error = slope_error(&f, t);
        print_message("%s: %.0f %% of the tolerance\n", info.name, error / 0.01 * 100);
        assert_true(error < 0.01);
    }
    close_fixture(&f);
}

static void test_gpt2_repeats_its_bits(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        fixture a, b;
        open_fixture(&a, (gpt2_options){.threads = threads});
        open_fixture(&b, (gpt2_options){.threads = threads, .recompute = true});
        assert_true(train(&a, 1.0f) == train(&b, 1.0f));
        assert_memory_equal(a.grad, b.grad, a.values * sizeof *a.grad);
        close_fixture(&a);
        close_fixture(&b);
    }
}

static void test_gpt2_adds_gradients_when_told_to_and_overwrites_else(void **state)
{
    (void)state;
    for (gpt2_type type = GPT2_F32; type <= GPT2_BF16; type++) {
        fixture f;
        open_fixture(&f, (gpt2_options){.type = type});
        for (size_t i = 0; i < f.values; i++) f.grad_16[i] = 0x4321, f.grad[i] = 7.0f;
        train(&f, 1.0f);
        float *once = malloc(f.values * sizeof *once);
        assert_non_null(once);
        memcpy(once, f.grad, f.values * sizeof *once);
        gpt2_add_gradients(f.m, true);
        train(&f, 1.0f);
        double most = 0.0;
        for (size_t i = 0; i < f.values; i++)
            most = fmax(most, fabs(f.grad[i] - 2.0 * once[i]) / (fabs(once[i]) + 1e-2));
        print_message("twice: %.1f %% of the tolerance\n", most / (type ? 2e-2 : 1e-4) * 100);
        assert_true(most < (type ? 2e-2 : 1e-4));
        free(once);
        close_fixture(&f);
    }
}

static void test_gpt2_leaves_a_frozen_gradient_alone_and_the_others_equal(void **state)
{
    (void)state;
    fixture all, some;
    open_fixture(&all, (gpt2_options){0});
    open_fixture(&some, (gpt2_options){0});
    train(&all, 1.0f);
    for (int t = 0; t < some.tensors; t += 2) gpt2_place(some.m, t, some.value + some.at[t], NULL);
    train(&some, 1.0f);
    for (int t = 0; t < some.tensors; t++)
        for (size_t i = some.at[t]; i < some.at[t + 1]; i++)
            assert_true(some.grad[i] == (t % 2 ? all.grad[i] : 0.0f));
    close_fixture(&all);
    close_fixture(&some);
}

static void test_gpt2_sampling_position_by_position_gives_the_logits_of_the_whole(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, (gpt2_options){.forward_only = true});
    float whole[GOLDEN_LENGTH][GOLDEN_VOCAB], step[GOLDEN_VOCAB];
    gpt2_embed(f.m, f.tokens, 1, GOLDEN_LENGTH, 0);
    for (int l = 0; l < f.config.layers; l++) gpt2_block(f.m, l);
    for (int t = 0; t < GOLDEN_LENGTH; t++) gpt2_logits(f.m, 0, t, whole[t]);
    double most = 0.0;
    for (int t = 0; t < GOLDEN_LENGTH; t++) {
        gpt2_embed(f.m, f.tokens, 1, t + 1, t);
        for (int l = 0; l < f.config.layers; l++) gpt2_block(f.m, l);
        gpt2_logits(f.m, 0, t, step);
        for (int v = 0; v < GOLDEN_VOCAB; v++) most = fmax(most, fabs(step[v] - whole[t][v]));
    }
    print_message("logits: %.1f %% of the tolerance\n", most / 1e-5 * 100);
    assert_true(most < 1e-5);
    close_fixture(&f);
}

static void test_gpt2_validation_loss_is_the_training_loss(void **state)
{
    (void)state;
    fixture a, b;
    open_fixture(&a, (gpt2_options){0});
    open_fixture(&b, (gpt2_options){.forward_only = true});
    assert_true(fabs(train(&a, 1.0f) - forward(&b)) < 1e-6);
    close_fixture(&a);
    close_fixture(&b);
}

static void test_gpt2_holds_less_when_it_keeps_less(void **state)
{
    (void)state;
    const gpt2_options options[] = {{.batch = 4, .length = 64},
                                    {.batch = 4, .length = 64, .recompute = true},
                                    {.batch = 4, .length = 64, .forward_only = true}};
    const char *why;
    size_t bytes[3];
    gpt2_config c;
    assert_true(gpt2_preset("10m", &c));
    for (int i = 0; i < 3; i++) {
        gpt2 *m = gpt2_new(&c, &options[i], &why);
        assert_non_null(m);
        bytes[i] = gpt2_bytes(m);
        gpt2_free(m);
    }
    const size_t kept = (size_t)4 * 64 * 384 * sizeof(float); /* one number per row and channel */
    assert_in_range(bytes[0] - bytes[1], 9 * 5 * kept, 9 * 5 * kept + 5 * kept);
    assert_true(bytes[2] < bytes[1]);
}

static void test_gpt2_does_not_hide_a_nan(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, (gpt2_options){0});
    f.value[f.at[2 + GPT2_FC_W] + 5] = NAN;
    assert_true(isnan(train(&f, 1.0f)));
    assert_true(isnan(f.grad[0]));
    close_fixture(&f);
}

/* Hugging Face's count of GPT-2's parameters: 124,439,808 and so on. */
static void test_gpt2_has_the_published_numbers_of_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t values;
    } all[] = {{"124m", 124439808},
               {"gpt2", 124439808},
               {"350m", 354823168},
               {"774m", 774030080},
               {"1558m", 1557611200}};
    gpt2_config config;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_true(gpt2_preset(all[i].name, &config));
        assert_int_equal(gpt2_values(&config), all[i].values);
    }
    assert_false(gpt2_preset("huge", &config));
    assert_true(gpt2_preset("10m", &config));
    assert_in_range(gpt2_values(&config), 10000000, 11500000);
}

static void test_gpt2_tensors_have_the_names_of_hugging_face(void **state)
{
    (void)state;
    gpt2_tensor t;
    gpt2_tensor_get(&golden_config, 2 + GPT2_PER_LAYER + GPT2_ATTN_W, &t);
    assert_string_equal(t.name, "h.1.attn.c_attn.weight");
    assert_string_equal(t.init, "normal std=0.0199999996");
    assert_int_equal(t.shape[0], GOLDEN_CHANNELS);
    assert_int_equal(t.shape[1], 3 * GOLDEN_CHANNELS);
    assert_true(t.layer == 1 && t.decay);
    gpt2_tensor_get(&golden_config, gpt2_tensors(&golden_config) - 2, &t);
    assert_string_equal(t.name, "ln_f.weight");
    assert_string_equal(t.init, "const v=1");
    assert_true(t.layer == -1 && !t.decay && t.ndim == 1);
}

static void test_gpt2_refuses_what_cannot_be(void **state)
{
    (void)state;
    const char *why;
    gpt2_config c = golden_config;
    c.heads       = 5;
    assert_null(gpt2_new(&c, &(gpt2_options){.batch = 1, .length = 4}, &why));
    assert_string_equal(why, "channels must be a multiple of heads");
    assert_null(gpt2_new(&golden_config, &(gpt2_options){.batch = 1, .length = 9}, &why));
    assert_string_equal(why, "the length of a sequence must be 1 to the positions of the model");
}

static void test_gpt2_first_values_are_a_function_of_the_seed_with_the_stated_spread(void **state)
{
    (void)state;
    gpt2_config c;
    assert_true(gpt2_preset("tiny", &c));
    const size_t n = (size_t)c.vocab * (size_t)c.channels;
    float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);
    assert_true(a && b);
    gpt2_start(&c, 0, 3, a);
    gpt2_start(&c, 0, 3, b);
    assert_memory_equal(a, b, n * sizeof *a);
    gpt2_start(&c, 0, 4, b);
    assert_memory_not_equal(a, b, n * sizeof *a);
    double sum = 0.0, square = 0.0;
    for (size_t i = 0; i < n; i++) sum += a[i], square += (double)a[i] * a[i];
    assert_true(fabs(sum / (double)n) < 4 * 0.02 / sqrt((double)n));
    assert_true(fabs(sqrt(square / (double)n) / 0.02 - 1.0) < 4 / sqrt(2.0 * (double)n));
    free(a);
    free(b);
}

/* ---- kernels: every set of this processor, against the C library in double ----- */
static void check_gelu(const gpt2_kernels *k)
{
    enum { N = 4001 };
    static float x[N], y[N], again[N], d[N], bias[N];
    double most = 0.0;
    for (int i = 0; i < N; i++) x[i] = (float)(i - N / 2) / 200.0f, d[i] = 1.0f, bias[i] = 0.0f;
    k->gelu(y, x, N);
    k->gelu_back(d, again, bias, x, 1, N);
    for (int i = 0; i < N; i++) {
        const double v = x[i], u = sqrt(2 / 3.14159265358979323846) * (v + 0.044715 * v * v * v);
        const double t     = tanh(u),
                     du    = sqrt(2 / 3.14159265358979323846) * (1 + 3 * 0.044715 * v * v);
        const double slope = 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * du;
        most               = fmax(most, fabs(y[i] - 0.5 * v * (1 + t)));
        most               = fmax(most, fabs(again[i] - y[i]));
        most               = fmax(most, fabs(d[i] - slope) / 2);
        assert_true(bias[i] == d[i]);
    }
    print_message("%s gelu: %.0f %% of the tolerance\n", k->name, most / 1.5e-6 * 100);
    assert_true(most < 1.5e-6);
}

static void check_cross_entropy(const gpt2_kernels *k)
{
    enum { N = 1003 };
    float z[N], first[N];
    double sum = 0.0, all = 0.0;
    for (int i = 0; i < N; i++) first[i] = z[i] = sinf((float)i) * 9.0f;
    for (int i = 0; i < N; i++) sum += exp(first[i]);
    const double want = log(sum) - first[77];
    assert_true(fabs(k->cross_entropy_only(z, N, 77) - want) < 2e-6);
    assert_true(fabs(k->cross_entropy(z, N, 77, 2.0f) - want) < 2e-6);
    for (int i = 0; i < N; i++) {
        const double p = 2.0 * (exp(first[i]) / sum - (i == 77));
        assert_true(fabs(z[i] - p) < 2e-6 * fabs(p) + 1e-7);
        all += z[i];
    }
    assert_true(fabs(all) < 1e-5);
}

/* Every 16-bit number is converted to float32 and back; halves are compared with the compiler's. */
static void check_halves(const gpt2_kernels *k)
{
    enum { N = 65536 };
    static uint16_t in[N], out[N];
    static float wide[N];
    for (int i = 0; i < N; i++) in[i] = (uint16_t)i;
    for (int type = 0; type < 2; type++) {
        (type ? k->from_f16 : k->from_bf16)(wide, in, N);
        (type ? k->to_f16 : k->to_bf16)(out, wide, N, 0);
        for (int i = 0; i < N; i++)
            assert_true(isnan(wide[i]) ? (out[i] & 0x7fff) > (type ? 0x7c00 : 0x7f80)
                                       : out[i] == in[i]);
        for (int i = 1; i + 1 < (type ? 0x7c00 : 0x7f80); i++) { /* halfway rounds to even */
            wide[i] = wide_of(type ? GPT2_F16 : GPT2_BF16, (uint16_t)i);
            wide[i] += (wide_of(type ? GPT2_F16 : GPT2_BF16, (uint16_t)(i + 1)) - wide[i]) / 2;
        }
        (type ? k->to_f16 : k->to_bf16)(out, wide, 0x7c00, 0);
        for (int i = 1; i + 1 < 0x7c00; i++) assert_int_equal(out[i], (i + 1) / 2 * 2);
    }
    assert_true(wide_of(GPT2_F16, 1) == 5.9604644775390625e-8f);
    assert_int_equal(half_of(GPT2_F16, 65520.0f), 0x7c00);
    assert_int_equal(half_of(GPT2_F16, 65519.0f), 0x7bff);
}

static void test_gpt2_kernels_of_every_instruction_set_keep_their_promises(void **state)
{
    (void)state;
    static const char *const names[] = {"base", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) {
        const gpt2_kernels *k = gpt2_kernels_find(names[i]);
        if (!k) continue;
        check_gelu(k);
        check_cross_entropy(k);
        check_halves(k);
    }
    assert_non_null(gpt2_kernels_find(gpt2_kernels_best()->name));
    assert_null(gpt2_kernels_find("abacus"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_loss_and_all_gradients_are_those_of_torch),
        cmocka_unit_test(test_gpt2_in_16_bits_is_nearer_to_the_truth_than_torch_in_bfloat16),
        cmocka_unit_test(test_gpt2_gradient_is_the_slope_of_the_loss),
        cmocka_unit_test(test_gpt2_repeats_its_bits),
        cmocka_unit_test(test_gpt2_adds_gradients_when_told_to_and_overwrites_else),
        cmocka_unit_test(test_gpt2_leaves_a_frozen_gradient_alone_and_the_others_equal),
        cmocka_unit_test(test_gpt2_sampling_position_by_position_gives_the_logits_of_the_whole),
        cmocka_unit_test(test_gpt2_validation_loss_is_the_training_loss),
        cmocka_unit_test(test_gpt2_holds_less_when_it_keeps_less),
        cmocka_unit_test(test_gpt2_does_not_hide_a_nan),
        cmocka_unit_test(test_gpt2_has_the_published_numbers_of_parameters),
        cmocka_unit_test(test_gpt2_tensors_have_the_names_of_hugging_face),
        cmocka_unit_test(test_gpt2_refuses_what_cannot_be),
        cmocka_unit_test(test_gpt2_first_values_are_a_function_of_the_seed_with_the_stated_spread),
        cmocka_unit_test(test_gpt2_kernels_of_every_instruction_set_keep_their_promises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
