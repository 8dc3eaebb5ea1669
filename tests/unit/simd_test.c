/* simd_test.c - every level gives the bits of the scalar one, and the scalar one the correct bits. */
#include "common/compute/simd/simd.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { N_MAX = 100003, PAD = 64, SIZES = 12 };
static const size_t sizes[SIZES] = {0, 1, 7, 15, 16, 17, 255, 1025, 4095, 4096, 4097, N_MAX};
static const pen_dtype dtypes[]  = {PEN_F32, PEN_F16, PEN_BF16};

/* Room for N_MAX floats at any alignment. */
typedef struct {
    unsigned char bytes[(N_MAX + PAD) * sizeof(float)];
} array;
static array input[4], expected[4], actual[4];

/* ---- helpers --------------------------------------------------------------------------------- */

static uint64_t seed;

static uint32_t random_bits(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static float random_float(void)
{
    return ldexpf((float)(int32_t)random_bits(), -31 + (int)(random_bits() % 16) - 8);
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static size_t size_of(pen_dtype dtype)
{
    return dtype == PEN_F32 ? 4 : 2;
}

static const simd_level *scalar(void)
{
    int i = 0;
    while (simd_all[i + 1] != NULL) i++;
    return simd_all[i];
}

static void fill_floats(array *out, unsigned offset, size_t n, bool is_positive)
{
    for (size_t i = 0; i < n; i++) {
        const float x = is_positive ? fabsf(random_float()) : random_float();
        memcpy(out->bytes + offset + i * sizeof x, &x, sizeof x);
    }
}

/* Numbers of a dtype, finite ones only, by encoding floats with the scalar level. */
static void fill_numbers(array *out, unsigned offset, pen_dtype dtype, size_t n)
{
    static float values[N_MAX];
    for (size_t i = 0; i < n; i++) values[i] = random_float();
    scalar()->encode(out->bytes + offset, values, dtype, n);
}

static float *floats(array *a, unsigned offset)
{
    return (float *)(void *)(a->bytes + offset);
}

static void assert_same_bytes(const array *a, const array *b, const char *what, const char *level,
                              size_t n)
{
    if (memcmp(a, b, sizeof *a) == 0) return;
    size_t at = 0;
    while (a->bytes[at] == b->bytes[at]) at++;
    fail_msg("%s of %s differs from scalar at byte %zu, n = %zu", what, level, at, n);
}

/* Calls `test` for every level that this processor supports (also scalar), size and two alignments. */
typedef void visit(const simd_level *level, size_t n, unsigned offset);

static void for_all(visit *test)
{
    for (int i = 0; simd_all[i] != NULL; i++) {
        if (!simd_all[i]->usable()) continue;
        for (int s = 0; s < SIZES; s++) {
            test(simd_all[i], sizes[s], 0);
            test(simd_all[i], sizes[s], 3);
        }
    }
}

/* ---- levels ---------------------------------------------------------------------------------- */

static void test_simd_scalar_is_last_and_always_usable(void **state)
{
    (void)state;
    assert_string_equal(scalar()->name, "scalar");
    assert_true(scalar()->usable());
    for (int i = 0; simd_all[i] != NULL; i++)
        print_message("  %s: %s\n", simd_all[i]->name, simd_all[i]->usable() ? "tested" : "absent");
}

static void test_simd_choose_takes_each_usable_level_and_refuses_the_others(void **state)
{
    (void)state;
    pen_error why;
    for (int i = 0; simd_all[i] != NULL; i++) {
        const bool is_usable    = simd_all[i]->usable();
        const pen_status status = simd_choose(simd_all[i]->name, &why);
        assert_int_equal(status, is_usable ? PEN_OK : PEN_UNSUPPORTED);
        if (is_usable) assert_ptr_equal(simd(), simd_all[i]);
    }
    assert_int_equal(simd_choose("auto", &why), PEN_OK);
    assert_true(simd()->usable());
    for (int i = 0; simd_all[i] != simd(); i++) assert_false(simd_all[i]->usable());
}

static void test_simd_choose_refuses_an_unknown_word_and_keeps_the_level(void **state)
{
    (void)state;
    pen_error why;
    assert_int_equal(simd_choose("scalar", NULL), PEN_OK);
    assert_int_equal(simd_choose("sse9", &why), PEN_BAD_SETTING);
    assert_string_equal(why.text, "simd: 'sse9' is not auto, scalar, avx2 or avx512");
    assert_ptr_equal(simd(), scalar());
    assert_int_equal(simd_choose("auto", NULL), PEN_OK);
}

/* ---- conversions ----------------------------------------------------------------------------- */

static double half_value(uint16_t h)
{
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const double size =
        exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    return (h & 0x8000) != 0 ? -size : size;
}

/* The nearest number with `digits` binary digits, none worth less than 2^smallest, ties to even. */
static double rounded(double x, int digits, int smallest)
{
    int exponent;
    frexp(x, &exponent);
    const int unit = exponent - digits > smallest ? exponent - digits : smallest;
    return ldexp(nearbyint(ldexp(x, -unit)), unit);
}

static void test_simd_decodes_all_65536_halves(void **state)
{
    (void)state;
    static uint16_t in[65536];
    static float out[65536];
    for (int i = 0; i < 65536; i++) in[i] = (uint16_t)i;
    for (int level = 0; simd_all[level] != NULL; level++) {
        if (!simd_all[level]->usable()) continue;
        /* One at a time too: the path of the last few elements of an array. */
        for (size_t stride = 65536; stride > 0; stride = stride == 65536 ? 1 : 0) {
            for (size_t i = 0; i < 65536; i += stride)
                simd_all[level]->decode(out + i, in + i, PEN_F16, stride);
            for (uint32_t i = 0; i < 65536; i++) {
                const uint32_t sign = (i & 0x8000) << 16, fraction = i & 0x3ff;
                if ((i & 0x7c00) != 0x7c00)
                    assert_true(bits_of(out[i]) == bits_of((float)half_value((uint16_t)i)));
                else if (fraction == 0)
                    assert_true(bits_of(out[i]) == (sign | 0x7f800000));
                else
                    assert_true(bits_of(out[i]) == (sign | 0x7fc00000 | fraction << 13));
            }
        }
    }
}

static uint16_t encode_one(const simd_level *level, float x, pen_dtype dtype)
{
    uint16_t out;
    level->encode(&out, &x, dtype, 1);
    return out;
}

/* Around every half: itself, the midpoint to the next, and the floats on either side of each. */
static void test_simd_encodes_halves_to_the_nearest_with_ties_to_even(void **state)
{
    (void)state;
    for (uint16_t h = 0; h < 0x7c00; h++) {
        const float here     = (float)half_value(h);
        const float next     = h == 0x7bff ? 65536.0f : (float)half_value((uint16_t)(h + 1));
        const float middle   = (here + next) / 2;
        const float probes[] = {here,   nextafterf(here, 1e9f),   nextafterf(middle, 0),
                                middle, nextafterf(middle, 1e9f), nextafterf(next, 0)};
        for (size_t i = 0; i < sizeof probes / sizeof probes[0]; i++) {
            const double want = rounded(probes[i], 11, -24);
            for (int sign = 1; sign >= -1; sign -= 2) {
                const uint16_t got = encode_one(scalar(), (float)sign * probes[i], PEN_F16);
                if (want >= 65536.0)
                    assert_int_equal(got & 0x7fff, 0x7c00);
                else
                    assert_true(half_value(got) == sign * want);
                assert_int_equal(got >> 15, sign < 0);
            }
        }
    }
}

static void test_simd_encodes_bf16_to_the_nearest_with_ties_to_even(void **state)
{
    (void)state;
    for (uint32_t upper = 0; upper < 0x7f80; upper++) {
        static const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
        for (size_t i = 0; i < sizeof lower / sizeof lower[0]; i++) {
            const float x       = float_of(upper << 16 | lower[i]);
            const uint16_t got  = encode_one(scalar(), x, PEN_BF16);
            const double want   = rounded((double)x, 8, -133);
            const double result = (double)float_of((uint32_t)got << 16);
            if (want >= 0x1p128)
                assert_int_equal(got, 0x7f80);
            else
                assert_true(result == want);
            assert_int_equal(encode_one(scalar(), -x, PEN_BF16), got | 0x8000);
        }
    }
}

static void test_simd_conversions_keep_special_numbers(void **state)
{
    (void)state;
    static const struct {
        uint32_t in;
        uint16_t f16, bf16;
    } rows[] = {
        {0x00000000, 0x0000, 0x0000}, {0x80000000, 0x8000, 0x8000}, /* zeros */
        {0x3f800000, 0x3c00, 0x3f80}, {0xc77fe000, 0xfbff, 0xc780}, /* 1, -65504 */
        {0x7f800000, 0x7c00, 0x7f80}, {0xff800000, 0xfc00, 0xff80}, /* infinities */
        {0x7f7fffff, 0x7c00, 0x7f80},                               /* the largest float */
        {0x7fc00000, 0x7e00, 0x7fc0}, {0xffc00000, 0xfe00, 0xffc0}, /* quiet NaN */
        {0x7f800001, 0x7e00, 0x7fc0}, {0xff800001, 0xfe00, 0xffc0}, /* payload lost: still NaN */
        {0x7fffffff, 0x7fff, 0x7fff}, {0x7f812000, 0x7e09, 0x7fc1}, /* upper payload stays */
    };
    for (int level = 0; simd_all[level] != NULL; level++) {
        if (!simd_all[level]->usable()) continue;
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            float many[19];
            uint16_t f16[19], bf16[19];
            for (int j = 0; j < 19; j++) many[j] = float_of(rows[i].in);
            simd_all[level]->encode(f16, many, PEN_F16, 19);
            simd_all[level]->encode(bf16, many, PEN_BF16, 19);
            for (int j = 0; j < 19; j++) assert_int_equal(f16[j], rows[i].f16);
            for (int j = 0; j < 19; j++) assert_int_equal(bf16[j], rows[i].bf16);
        }
    }
}

static void test_simd_sixteen_bits_survive_a_round_trip(void **state)
{
    (void)state;
    static uint16_t in[65536], out[65536];
    static float middle[65536];
    for (int i = 0; i < 65536; i++) in[i] = (uint16_t)i;
    for (int level = 0; simd_all[level] != NULL; level++) {
        if (!simd_all[level]->usable()) continue;
        for (int d = 1; d < 3; d++) {
            simd_all[level]->decode(middle, in, dtypes[d], 65536);
            simd_all[level]->encode(out, middle, dtypes[d], 65536);
            const uint16_t infinity = dtypes[d] == PEN_F16 ? 0x7c00 : 0x7f80;
            const uint16_t quiet    = dtypes[d] == PEN_F16 ? 0x0200 : 0x0040;
            for (int i = 0; i < 65536; i++)
                assert_int_equal(out[i], (i & 0x7fff) > infinity ? i | quiet : i);
        }
    }
}

static void compare_conversions(const simd_level *level, size_t n, unsigned offset)
{
    for (size_t i = 0; i < n; i++) { /* any bits, NaN and subnormals among them */
        const uint32_t bits = random_bits();
        memcpy(input[0].bytes + offset + 4 * i, &bits, sizeof bits);
    }
    for (size_t d = 0; d < 3; d++) {
        scalar()->encode(expected[0].bytes + offset, floats(&input[0], offset), dtypes[d], n);
        level->encode(actual[0].bytes + offset, floats(&input[0], offset), dtypes[d], n);
        assert_same_bytes(&actual[0], &expected[0], "encode", level->name, n);
        scalar()->decode(floats(&expected[0], offset), input[0].bytes + offset, dtypes[d], n);
        level->decode(floats(&actual[0], offset), input[0].bytes + offset, dtypes[d], n);
        assert_same_bytes(&actual[0], &expected[0], "decode", level->name, n);
    }
}

static void test_simd_levels_convert_alike(void **state)
{
    (void)state;
    for_all(compare_conversions);
}

/* ---- fold, finite ---------------------------------------------------------------------------- */

static void test_simd_fold_is_multiply_then_add_rounded_twice(void **state)
{
    (void)state;
    float in[3] = {1.0f + 0x1p-12f, -3.0f, 0.1f}, base[3] = {-1.0f, 5.0f, 0.2f}, acc[3];
    for (int i = 0; simd_all[i] != NULL; i++) {
        if (!simd_all[i]->usable()) continue;
        assert_true(simd_all[i]->fold_set(acc, in, PEN_F32, in[0], 3));
        for (int j = 0; j < 3; j++) assert_true(acc[j] == in[0] * in[j]);
        assert_true(simd_all[i]->fold_add(acc, base, in, PEN_F32, in[0], 3));
        for (int j = 0; j < 3; j++) {
            const volatile float product = in[0] * in[j];
            assert_true(acc[j] == base[j] + product);
        }
    }
}

static void compare_folds(const simd_level *level, size_t n, unsigned offset)
{
    fill_floats(&input[1], offset, n, false);
    for (size_t d = 0; d < 3; d++) {
        const void *in = input[0].bytes + offset;
        float *want = floats(&expected[0], offset), *got = floats(&actual[0], offset);
        fill_numbers(&input[0], offset, dtypes[d], n);

        assert_true(scalar()->fold_set(want, in, dtypes[d], 0.3f, n));
        assert_true(level->fold_set(got, in, dtypes[d], 0.3f, n));
        assert_same_bytes(&actual[0], &expected[0], "fold_set", level->name, n);

        assert_true(scalar()->fold_add(want, want, in, dtypes[d], 1.7f, n));
        assert_true(level->fold_add(got, got, in, dtypes[d], 1.7f, n));
        assert_same_bytes(&actual[0], &expected[0], "fold_add in place", level->name, n);

        const float *base = floats(&input[1], offset);
        assert_true(scalar()->fold_add(want, base, in, dtypes[d], -0.6f, n));
        assert_true(level->fold_add(got, base, in, dtypes[d], -0.6f, n));
        assert_same_bytes(&actual[0], &expected[0], "fold_add", level->name, n);
    }
}

static void test_simd_levels_fold_alike(void **state)
{
    (void)state;
    for_all(compare_folds);
}

static void poison(array *a, unsigned offset, pen_dtype dtype, size_t index, float value)
{
    scalar()->encode(a->bytes + offset + index * size_of(dtype), &value, dtype, 1);
}

/* One bad element, at each end and in the middle, is detected by every function that checks. */
static void find_poison(const simd_level *level, size_t n, unsigned offset)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static double sums[N_MAX / SIMD_BLOCK + 1];
    if (n == 0) return;
    for (size_t d = 0; d < 3; d++)
        for (size_t i = 0; i < 3; i++) {
            const size_t at = i == 0 ? 0 : i == 1 ? n / 2 : n - 1;
            const void *in  = input[0].bytes + offset;
            fill_numbers(&input[0], offset, dtypes[d], n);
            assert_true(level->finite(in, dtypes[d], n));
            poison(&input[0], offset, dtypes[d], at, bad[i]);
            assert_false(level->finite(in, dtypes[d], n));
            assert_false(level->fold_set(floats(&actual[0], offset), in, dtypes[d], 1.0f, n));
            memset(&actual[1], 0, sizeof actual[1]);
            float *acc = floats(&actual[1], offset);
            assert_false(level->fold_add(acc, acc, in, dtypes[d], 1.0f, n));
            if (dtypes[d] == PEN_F32) assert_false(level->norm(in, n, sums));
        }
}

static void test_simd_one_number_that_is_not_finite_is_always_seen(void **state)
{
    (void)state;
    for_all(find_poison);
}

static void test_simd_fold_sees_a_sum_that_overflows(void **state)
{
    (void)state;
    const float large = 3e38f;
    for (int i = 0; simd_all[i] != NULL; i++) {
        if (!simd_all[i]->usable()) continue;
        float acc = large;
        assert_false(simd_all[i]->fold_add(&acc, &acc, &large, PEN_F32, 1.0f, 1));
        assert_false(simd_all[i]->fold_set(&acc, &large, PEN_F32, 2.0f, 1));
    }
}

/* ---- norm ------------------------------------------------------------------------------------ */

/* The rule of simd.h, written as plainly as possible. */
static double plain_block_sum(const unsigned char *bytes, size_t n)
{
    double l[16] = {0};
    for (size_t j = 0; j < n; j++) {
        float x;
        memcpy(&x, bytes + j * sizeof x, sizeof x);
        l[j % 16] += (double)x * (double)x;
    }
    return (((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]))) +
           (((l[8] + l[9]) + (l[10] + l[11])) + ((l[12] + l[13]) + (l[14] + l[15])));
}

static void compare_norm(const simd_level *level, size_t n, unsigned offset)
{
    enum { BLOCKS = N_MAX / SIMD_BLOCK + 1 };
    double sums[BLOCKS + 1];
    for (int i = 0; i <= BLOCKS; i++) sums[i] = -1;
    fill_floats(&input[0], offset, n, false);
    assert_true(level->norm(floats(&input[0], offset), n, sums));

    size_t block = 0;
    for (size_t i = 0; i < n; i += SIMD_BLOCK, block++) {
        const size_t count = n - i < SIMD_BLOCK ? n - i : SIMD_BLOCK;
        const double want  = plain_block_sum(input[0].bytes + offset + i * sizeof(float), count);
        assert_memory_equal(&sums[block], &want, sizeof want);
    }
    assert_true(sums[block] == -1); /* no sum beyond the last block */
}

static void test_simd_norm_adds_sixteen_lanes_in_the_stated_order(void **state)
{
    (void)state;
    for_all(compare_norm);
}

static void test_simd_norm_does_not_overflow(void **state)
{
    (void)state;
    static float x[SIMD_BLOCK];
    for (int i = 0; i < SIMD_BLOCK; i++) x[i] = 3e38f;
    double sum;
    assert_true(simd()->norm(x, SIMD_BLOCK, &sum));
    assert_true(isfinite(sum));
}

/* ---- update rules ---------------------------------------------------------------------------- */

static const char *const formulas[SIMD_FORMULAS] = {
    [SIMD_SUM] = "sum",           [SIMD_SGD] = "sgd",         [SIMD_SGD_MOMENTUM] = "sgd_momentum",
    [SIMD_ADAM] = "adam",         [SIMD_ADAGRAD] = "adagrad", [SIMD_RMSPROP] = "rmsprop",
    [SIMD_ADADELTA] = "adadelta", [SIMD_ADAMAX] = "adamax",   [SIMD_FTRL] = "ftrl",
    [SIMD_LION] = "lion",         [SIMD_LAMB] = "lamb"};

/* The 8 variants cover every combination of the kernels' branches. */
static simd_update variant(unsigned number)
{
    return (simd_update){
        .gscale     = 0.37f,
        .rate       = 0.013f,
        .l2         = (number & 1) != 0 ? 0.01f : 0.0f,
        .decay      = (number & 1) != 0 ? 0.0f : 1e-4f,
        .keep       = {0.9f, 0.99f},
        .take       = {0.1f, 0.01f},
        .debias     = 3.1f,
        .root_scale = 1.9f,
        .eps        = 1e-6f,
        .momentum   = (number & 2) != 0 ? 0.8f : 0.0f,
        .nesterov   = (number & 4) != 0,
        .centered   = (number & 4) != 0,
        .l1         = 0.2f,
        .quadratic  = 0.1f,
        .power      = (number & 4) != 0 ? 0.5f : 0.3f,
    };
}

static void point(simd_update *u, array *arrays, unsigned offset, size_t n)
{
    u->grad  = floats(&input[0], offset);
    u->n     = n;
    u->param = floats(&arrays[0], offset);
    for (int i = 0; i < 3; i++) u->slot[i] = floats(&arrays[i + 1], offset);
}

static void fill_update(size_t n, unsigned offset)
{
    fill_floats(&input[0], offset, n, false);
    fill_floats(&expected[0], offset, n, false);
    for (int i = 1; i < 4; i++) fill_floats(&expected[i], offset, n, true);
    memcpy(actual, expected, sizeof actual);
}

static void compare_updates(const simd_level *level, size_t n, unsigned offset)
{
    for (int f = 0; f < SIMD_FORMULAS; f++)
        for (unsigned number = 0; number < (n == N_MAX ? 1 : 8); number++) {
            simd_update u = variant(number);
            fill_update(n, offset);
            point(&u, expected, offset, n);
            scalar()->update[f](&u);
            point(&u, actual, offset, n);
            level->update[f](&u);
            for (int i = 0; i < 4; i++)
                assert_same_bytes(&actual[i], &expected[i], formulas[f], level->name, n);
        }
}

/* A kernel may not touch the others: their pointers may be NULL. */
static void test_simd_slots_are_those_that_a_formula_changes(void **state)
{
    (void)state;
    for (int f = 0; f < SIMD_FORMULAS; f++)
        for (unsigned number = 0; number < 8; number++) {
            simd_update u     = variant(number);
            u.formula         = (simd_formula)f;
            unsigned changed  = 0;
            double sums[2][1] = {{0}};
            fill_update(16, 0);
            point(&u, actual, 0, 16);
            if (f == SIMD_LAMB) scalar()->lamb_norms(&u, sums[0], sums[1]);
            scalar()->update[f](&u);
            for (unsigned s = 0; s < 3; s++)
                changed |= (unsigned)(memcmp(&actual[s + 1], &expected[s + 1], sizeof *actual) != 0)
                           << s;
            if (changed != simd_slots(&u)) fail_msg("%s changes slots %#x", formulas[f], changed);
        }
}

static void test_simd_levels_update_alike(void **state)
{
    (void)state;
    for_all(compare_updates);
}

static void compare_lamb_norms(const simd_level *level, size_t n, unsigned offset)
{
    enum { BLOCKS = N_MAX / SIMD_BLOCK + 1 };
    double want[2][BLOCKS] = {{0}}, got[2][BLOCKS] = {{0}}, norm[BLOCKS] = {0};
    simd_update u = variant(0);
    fill_update(n, offset);
    point(&u, expected, offset, n);
    scalar()->norm(u.param, n, norm);
    scalar()->lamb_norms(&u, want[0], want[1]);
    point(&u, actual, offset, n);
    level->lamb_norms(&u, got[0], got[1]);
    for (int i = 0; i < 4; i++)
        assert_same_bytes(&actual[i], &expected[i], "lamb_norms", level->name, n);
    assert_memory_equal(got, want, sizeof got);
    assert_memory_equal(got[0], norm, sizeof norm);
}

static void test_simd_levels_measure_lamb_alike(void **state)
{
    (void)state;
    for_all(compare_lamb_norms);
}

/* ftrl has its own power function; libm's, in double, is the reference. */
static void test_simd_ftrl_power_is_right_to_the_last_bits_of_a_float(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 20000; i++) {
        const float n =
            ldexpf(1.0f + (float)(random_bits() >> 8) * 0x1p-24f, (int)(random_bits() % 200) - 120);
        const float power = (float)(random_bits() >> 8) * 0x1p-24f;
        float param = -1.0f, sum = n, linear = 0;
        const float grad = 0.0f;
        /* With g = 0 and p = -1 nothing changes; then p = -linear / h: linear = 1 gives 1 / h. */
        linear = 1.0f;
        scalar()->update[SIMD_FTRL](&(simd_update){.param  = &param,
                                                   .grad   = &grad,
                                                   .slot   = {&sum, &linear},
                                                   .n      = 1,
                                                   .gscale = 1,
                                                   .rate   = 1,
                                                   .power  = power});
        const double want = -1.0 / pow((double)n, (double)power);
        const double off  = fabs((double)param - want) / fabs(want);
        if (off > worst) worst = off;
    }
    print_message("  power: off by %.3g of the value, %.0f%% of the tolerance\n", worst,
                  worst / 2.4e-7 * 100);
    assert_true(worst < 2.4e-7); /* two roundings to float */
}

static void test_simd_ftrl_power_of_zero_and_of_nan(void **state)
{
    (void)state;
    for (int i = 0; simd_all[i] != NULL; i++) {
        if (!simd_all[i]->usable()) continue;
        const float grad[2] = {0.0f, NAN};
        float param[2] = {1, 1}, sum[2] = {0, 0}, linear[2] = {0, 0};
        simd_all[i]->update[SIMD_FTRL](&(simd_update){.param  = param,
                                                      .grad   = grad,
                                                      .slot   = {sum, linear},
                                                      .n      = 2,
                                                      .gscale = 1,
                                                      .rate   = 1,
                                                      .power  = 0.01f});
        assert_true(param[0] == 0.0f);
        assert_true(isnan(param[1]) && isnan(sum[1]) && isnan(linear[1]));
    }
}

int main(void)
{
    seed = 20240229;
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simd_scalar_is_last_and_always_usable),
        cmocka_unit_test(test_simd_choose_takes_each_usable_level_and_refuses_the_others),
        cmocka_unit_test(test_simd_choose_refuses_an_unknown_word_and_keeps_the_level),
        cmocka_unit_test(test_simd_decodes_all_65536_halves),
        cmocka_unit_test(test_simd_encodes_halves_to_the_nearest_with_ties_to_even),
        cmocka_unit_test(test_simd_encodes_bf16_to_the_nearest_with_ties_to_even),
        cmocka_unit_test(test_simd_conversions_keep_special_numbers),
        cmocka_unit_test(test_simd_sixteen_bits_survive_a_round_trip),
        cmocka_unit_test(test_simd_levels_convert_alike),
        cmocka_unit_test(test_simd_fold_is_multiply_then_add_rounded_twice),
        cmocka_unit_test(test_simd_levels_fold_alike),
        cmocka_unit_test(test_simd_one_number_that_is_not_finite_is_always_seen),
        cmocka_unit_test(test_simd_fold_sees_a_sum_that_overflows),
        cmocka_unit_test(test_simd_norm_adds_sixteen_lanes_in_the_stated_order),
        cmocka_unit_test(test_simd_norm_does_not_overflow),
        cmocka_unit_test(test_simd_slots_are_those_that_a_formula_changes),
        cmocka_unit_test(test_simd_levels_update_alike),
        cmocka_unit_test(test_simd_levels_measure_lamb_alike),
        cmocka_unit_test(test_simd_ftrl_power_is_right_to_the_last_bits_of_a_float),
        cmocka_unit_test(test_simd_ftrl_power_of_zero_and_of_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
