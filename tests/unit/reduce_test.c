/* reduce_test.c - folds in rank order: every legal pair of operation and type, on every level, against one element at a
 * time in plain C. */
#include "common/compute/simd/reduce.h"
#include "common/compute/simd/simd.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { N_MAX = 5000, RANKS_MAX = 9, OUTS_MAX = 3, PAD = 64, OPS = PEN_BXOR + 1 };

typedef struct {
    unsigned char bytes[(N_MAX + PAD) * 8];
} array;
static array input[RANKS_MAX], output[OUTS_MAX], expected;

static const pen_dtype dtypes[] = {PEN_F32, PEN_F16, PEN_BF16, PEN_F64, PEN_I8,
                                   PEN_U8,  PEN_I32, PEN_U32,  PEN_I64, PEN_U64};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

/* ---- numbers --------------------------------------------------------------------------------- */

static uint64_t seed;

static uint64_t random_bits(void)
{
    seed       = seed * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = seed ^ seed >> 33;
    return x * 0xff51afd7ed558ccdu ^ x >> 29;
}

static double random_real(void)
{
    return ldexp((double)(int64_t)random_bits(), -63 + (int)(random_bits() % 6) - 2);
}

static size_t size_of(pen_dtype t)
{
    switch (t) {
    case PEN_I8:
    case PEN_U8: return 1;
    case PEN_F16:
    case PEN_BF16: return 2;
    case PEN_F32:
    case PEN_I32:
    case PEN_U32: return 4;
    default: return 8;
    }
}

static bool is_real(pen_dtype t)
{
    return t == PEN_F32 || t == PEN_F16 || t == PEN_BF16 || t == PEN_F64;
}

static bool is_signed(pen_dtype t)
{
    return t == PEN_I8 || t == PEN_I32 || t == PEN_I64;
}

/* A 16-bit float of `digits` significant bits and a smallest exponent, from its parts. */
static double real_of_half(uint16_t h, int fraction_bits, int bias)
{
    const int fraction = h & ((1 << fraction_bits) - 1);
    const int top = (1 << (15 - fraction_bits)) - 1, exponent = h >> fraction_bits & top;
    const double sign = h >> 15 ? -1 : 1;
    if (exponent == top) return fraction != 0 ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

/* To nearest even: in units of the last place, which nearbyint() rounds to. */
static uint16_t half_of_real(double x, int fraction_bits, int bias)
{
    const int top       = (1 << (15 - fraction_bits)) - 1;
    const uint16_t sign = signbit(x) ? 0x8000 : 0, infinity = (uint16_t)(top << fraction_bits);
    if (isnan(x)) return (uint16_t)(sign | infinity | 1 << (fraction_bits - 1));
    if (isinf(x)) return (uint16_t)(sign | infinity);
    if (x == 0) return sign;
    int exponent;
    frexp(x, &exponent);
    exponent          = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    const double unit = ldexp(1, exponent - fraction_bits);
    const double ulps = nearbyint(fabs(x) / unit);
    /* As an integer the encoding counts units: a carry into the exponent is correct. */
    const uint32_t code = (uint32_t)((exponent + bias - 1) << fraction_bits) + (uint32_t)ulps;
    return (uint16_t)(sign | (code >= infinity ? infinity : code));
}

typedef struct {
    double real; /* exact for all real types */
    uint64_t bits;
} number;

static number load(const unsigned char *at, pen_dtype t)
{
    number x = {0};
    float f;
    uint16_t h;
    memcpy(&x.bits, at, size_of(t));
    memcpy(&f, &x.bits, sizeof f);
    memcpy(&h, &x.bits, sizeof h);
    if (t == PEN_F32) x.real = (double)f;
    if (t == PEN_F64) memcpy(&x.real, &x.bits, sizeof x.real);
    if (t == PEN_F16) x.real = real_of_half(h, 10, 15);
    if (t == PEN_BF16) x.real = real_of_half(h, 7, 127);
    if (is_signed(t)) { /* sign-extended */
        const unsigned shift = 64 - 8 * (unsigned)size_of(t);
        x.bits               = (uint64_t)((int64_t)(x.bits << shift) >> shift);
    }
    return x;
}

static void store(unsigned char *at, number x, pen_dtype t)
{
    const float f      = (float)x.real;
    const uint16_t f16 = half_of_real(x.real, 10, 15), bf16 = half_of_real(x.real, 7, 127);
    if (t == PEN_F32)
        memcpy(at, &f, sizeof f);
    else if (t == PEN_F64)
        memcpy(at, &x.real, sizeof x.real);
    else if (t == PEN_F16)
        memcpy(at, &f16, sizeof f16);
    else if (t == PEN_BF16)
        memcpy(at, &bf16, sizeof bf16);
    else
        memcpy(at, &x.bits, size_of(t));
}

static number narrow(number x, pen_dtype t)
{
    unsigned char bytes[8];
    store(bytes, x, t);
    return load(bytes, t);
}

/* ---- the reference: one element -------------------------------------------------------------- */

/* In the type that the fold uses: float32 for 16-bit floats. */
static double rounded(double x, pen_dtype t)
{
    return t == PEN_F64 ? x : (double)(float)x;
}

static double fold_real(double a, double b, pen_op op, pen_dtype t)
{
    if (op == PEN_MIN || op == PEN_MAX) {
        if (isnan(a) || isnan(b)) return NAN;
        return (op == PEN_MIN) == (a < b) && a != b ? a : b;
    }
    return rounded(op == PEN_PROD ? a * b : a + b, t);
}

static bool is_less(uint64_t a, uint64_t b, pen_dtype t)
{
    return is_signed(t) ? (int64_t)a < (int64_t)b : a < b;
}

static uint64_t fold_bits(uint64_t a, uint64_t b, pen_op op, pen_dtype t)
{
    switch (op) {
    case PEN_SUM:
    case PEN_AVG: return a + b;
    case PEN_PROD: return a * b;
    case PEN_MIN: return is_less(a, b, t) ? a : b;
    case PEN_MAX: return is_less(b, a, t) ? a : b;
    case PEN_LAND: return a && b;
    case PEN_LOR: return a || b;
    case PEN_LXOR: return !a != !b;
    case PEN_BAND: return a & b;
    case PEN_BOR: return a | b;
    default: return a ^ b;
    }
}

static uint64_t scaled_bits(uint64_t bits, double by, pen_dtype t)
{
    if (by == 1) return bits;
    const unsigned width = 8 * (unsigned)size_of(t);
    const double y       = trunc(by * (is_signed(t) ? (double)(int64_t)bits : (double)bits));
    const double high = ldexp(1, (int)width - is_signed(t)), low = is_signed(t) ? -high : 0;
    if (isnan(y)) return 0;
    if (y >= high)
        return is_signed(t) ? ((uint64_t)1 << (width - 1)) - 1 : UINT64_MAX >> (64 - width);
    if (y < low) return is_signed(t) ? (uint64_t)1 << (width - 1) : 0;
    return y < 0 ? (uint64_t)(int64_t)y : (uint64_t)y;
}

static number scaled(number x, double by, pen_dtype t)
{
    if (is_real(t))
        x.real = t == PEN_F64 ? by * x.real : rounded((double)(float)by * x.real, t);
    else
        x.bits = scaled_bits(x.bits, by, t);
    return is_real(t) ? x : narrow(x, t);
}

static number divided(number x, int by, pen_dtype t)
{
    if (is_real(t))
        x.real = rounded(x.real / by, t);
    else if (is_signed(t))
        x.bits = (uint64_t)((int64_t)x.bits / by);
    else
        x.bits /= (uint64_t)by;
    return x;
}

static number fold_two(const reduce_args *a, number x, number y)
{
    if (is_real(a->dtype)) return (number){.real = fold_real(x.real, y.real, a->op, a->dtype)};
    return narrow((number){.bits = fold_bits(x.bits, y.bits, a->op, a->dtype)}, a->dtype);
}

static number operand_of(const reduce_args *a, int turn, size_t i)
{
    const int r = a->order != NULL ? a->order->turn[turn] : turn;
    number x    = load((const unsigned char *)a->in[r] + i * size_of(a->dtype), a->dtype);
    if (a->scale != NULL) x = scaled(x, a->scale[r], a->dtype);
    if (a->op >= PEN_LAND && a->op <= PEN_LXOR) x.bits = x.bits != 0;
    return is_real(a->dtype) ? x : narrow(x, a->dtype);
}

static number fold_one(const reduce_args *a, size_t i)
{
    const int parts = a->order != NULL ? a->order->n_parts : 1;
    number acc      = {0};
    for (int p = 0, turn = 0; p < parts; p++) {
        const int end = a->order != NULL ? a->order->end[p] : a->n_in;
        number part   = operand_of(a, turn++, i);
        for (; turn < end; turn++) part = fold_two(a, part, operand_of(a, turn, i));
        acc = p == 0 ? part : fold_two(a, acc, part);
    }
    if (a->op == PEN_AVG) acc = divided(acc, a->divide_by > 0 ? a->divide_by : a->n_in, a->dtype);
    return acc;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* All bits of integers; reals mostly small, so that sums and products stay finite. */
static void fill(int ranks, pen_dtype t, unsigned offset)
{
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < N_MAX; i++) {
            number x = {.real = random_real(), .bits = random_bits() >> random_bits() % 64};
            if (random_bits() % 16 == 0) x = (number){0};
            store(input[r].bytes + offset + i * size_of(t), x, t);
        }
}

static bool is_same(const unsigned char *a, const unsigned char *b, pen_dtype t)
{
    if (memcmp(a, b, size_of(t)) == 0) return true;
    return is_real(t) && isnan(load(a, t).real) && isnan(load(b, t).real);
}

static void assert_element(const reduce_args *a, int o, size_t i)
{
    const size_t at           = i * size_of(a->dtype);
    const unsigned char *want = expected.bytes + at, *got = (unsigned char *)a->out[o] + at;
    if (is_same(want, got, a->dtype)) return;
    const number w = load(want, a->dtype), g = load(got, a->dtype);
    fail_msg("%s: op %d dtype %d inputs %d: out[%d][%zu] is %.17g (%llx), expected %.17g (%llx)",
             simd()->name, (int)a->op, (int)a->dtype, a->n_in, o, i, g.real,
             (unsigned long long)g.bits, w.real, (unsigned long long)w.bits);
}

/* Elements [begin, begin + n) against the reference; the bytes beside them are unchanged. */
static void check(reduce_args *a, size_t begin, size_t n)
{
    const size_t size = size_of(a->dtype);
    for (size_t i = begin; i < begin + n; i++)
        store(expected.bytes + i * size, fold_one(a, i), a->dtype);
    unsigned char edge[2] = {0x5a, 0xa5};
    for (int o = 0; o < a->n_out; o++) {
        unsigned char *out = a->out[o];
        if (a->out[o] == a->in[0]) continue;
        out[(begin + n) * size] = edge[0];
        if (begin > 0) out[begin * size - 1] = edge[1];
    }
    reduce(a, begin, n);
    for (int o = 0; o < a->n_out; o++) {
        const unsigned char *out = a->out[o];
        for (size_t i = begin; i < begin + n; i++) assert_element(a, o, i);
        if (a->out[o] == a->in[0]) continue;
        assert_int_equal(out[(begin + n) * size], edge[0]);
        if (begin > 0) assert_int_equal(out[begin * size - 1], edge[1]);
    }
}

typedef void pair_test(pen_op op, pen_dtype dtype);

static void for_every_legal_pair_on_every_level(pair_test *test)
{
    pen_error why;
    for (int l = 0; simd_all[l] != NULL; l++) {
        if (simd_choose(simd_all[l]->name, &why) != PEN_OK) continue;
        for (int op = 0; op < OPS; op++)
            for (int t = 0; t < DTYPES; t++)
                if (reduce_is_legal((pen_op)op, dtypes[t])) test((pen_op)op, dtypes[t]);
    }
    assert_int_equal(simd_choose("auto", &why), PEN_OK);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void arithmetic_is_for_all_types_and_logic_for_integers(void **state)
{
    (void)state;
    for (int t = 0; t < DTYPES; t++)
        for (int op = 0; op < OPS; op++)
            assert_int_equal(reduce_is_legal((pen_op)op, dtypes[t]),
                             op <= PEN_MAX || !is_real(dtypes[t]));
    assert_false(reduce_is_legal(PEN_SUM, PEN_DTYPE_DEFAULT));
    assert_false(reduce_is_legal(PEN_SUM, PEN_F8E4M3));
    assert_false(reduce_is_legal((pen_op)OPS, PEN_I32));
    assert_false(reduce_is_legal((pen_op)-1, PEN_I32));
}

static void fold_many(pen_op op, pen_dtype dtype)
{
    static const int ranks[]    = {1, 2, 3, 9};
    static const size_t sizes[] = {0, 1, 17, 513, 1024, 2049, N_MAX - 3};
    for (size_t k = 0; k < sizeof ranks / sizeof ranks[0]; k++) {
        const unsigned offset = (unsigned)random_bits() % PAD;
        fill(ranks[k], dtype, offset);
        const void *in[RANKS_MAX];
        void *out[OUTS_MAX];
        for (int r = 0; r < ranks[k]; r++) in[r] = input[r].bytes + offset;
        for (int o = 0; o < OUTS_MAX; o++) out[o] = output[o].bytes + random_bits() % PAD;
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            reduce_args a = {.op     = op,
                             .dtype  = dtype,
                             .n_in   = ranks[k],
                             .in     = in,
                             .out    = out,
                             .n_out  = 1 + (int)(s % OUTS_MAX),
                             .stream = s % 2 == k % 2};
            check(&a, s % 3, sizes[s]);
        }
    }
}

/* Parts of one and of several inputs, first and last; an output that is the last input of all. */
static void fold_in_parts(pen_op op, pen_dtype dtype)
{
    static const int turn[]    = {2, 0, 4, 1, 5, 3};
    static const int ends[][6] = {{6}, {1, 6}, {5, 6}, {2, 3, 6}, {3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}};
    static const double scale[] = {1, 0.5, 1, 2, 0.25, 1};
    const void *in[RANKS_MAX];
    void *out[OUTS_MAX];
    for (int k = 0; k < 6; k++) {
        const reduce_order order = {
            .n_parts = (int[]){1, 2, 2, 3, 4, 6}[k], .turn = turn, .end = ends[k]};
        fill(6, dtype, 0);
        for (int r = 0; r < 6; r++) in[r] = input[r].bytes;
        for (int o = 0; o < OUTS_MAX; o++) out[o] = output[o].bytes + o;
        reduce_args a = {.op    = op,
                         .dtype = dtype,
                         .n_in  = 6,
                         .in    = in,
                         .out   = out,
                         .n_out = 1 + k % OUTS_MAX,
                         .scale = k % 2 ? scale : NULL,
                         .order = &order};
        check(&a, k % 3, 1500);
    }
}

static void folds_in_parts_are_folds_of_folds(void **state)
{
    (void)state;
    seed = 9;
    for_every_legal_pair_on_every_level(fold_in_parts);
}

static void folds_equal_those_of_one_element_at_a_time(void **state)
{
    (void)state;
    seed = 1;
    for_every_legal_pair_on_every_level(fold_many);
}

/* Sums and means of a few float32 arrays have loops of their own if their outputs begin at the same place of a line. */
static void fold_few(pen_op op, pen_dtype dtype)
{
    static const double ones[RANKS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    if (dtype != PEN_F32 || (op != PEN_SUM && op != PEN_AVG)) return;
    for (int turn = 0; turn < 48; turn++) {
        const unsigned offset = (unsigned)random_bits() % PAD;
        const unsigned place =
            turn % 4 == 3 ? (unsigned)random_bits() % PAD : (unsigned)turn * 4 % PAD;
        const void *in[RANKS_MAX];
        void *out[OUTS_MAX];
        fill(5, dtype, offset);
        for (int r = 0; r < 5; r++) in[r] = input[r].bytes + offset;
        for (int o = 0; o < OUTS_MAX; o++) out[o] = output[o].bytes + place;
        reduce_args a = {.op        = op,
                         .dtype     = dtype,
                         .n_in      = 2 + turn % 4,
                         .in        = in,
                         .scale     = turn % 5 == 0 ? ones : NULL,
                         .out       = out,
                         .n_out     = 1 + turn % OUTS_MAX,
                         .divide_by = turn % 7,
                         .stream    = turn / 2 % 2 == 1};
        check(&a, random_bits() % 40, random_bits() % (N_MAX - 40));
    }
}

static void sums_of_few_float32_arrays_equal_those_of_one_element_at_a_time(void **state)
{
    (void)state;
    seed = 8;
    for_every_legal_pair_on_every_level(fold_few);
}

static void fold_scaled(pen_op op, pen_dtype dtype)
{
    static const double scale[] = {1, -0.75, 3.5e3, 1.0 / 3, 0};
    const void *in[5];
    void *out[] = {output[0].bytes + 3};
    fill(5, dtype, 1);
    for (int r = 0; r < 5; r++) in[r] = input[r].bytes + 1;
    reduce_args a = {.op = op, .dtype = dtype, .in = in, .n_out = 1, .out = out, .scale = scale};
    for (a.n_in = 1; a.n_in <= 5; a.n_in++) check(&a, 0, 1500);
    a.n_in  = 1;
    a.scale = scale + 2;
    check(&a, 0, 700);
}

static void scales_are_applied_to_each_input_first(void **state)
{
    (void)state;
    seed = 2;
    for_every_legal_pair_on_every_level(fold_scaled);
}

static void fold_in_place(pen_op op, pen_dtype dtype)
{
    for (int mine = 0; mine < 3; mine++) {
        const void *in[3];
        void *out[2] = {input[mine].bytes + 5, output[1].bytes};
        fill(3, dtype, 5);
        for (int r = 0; r < 3; r++) in[r] = input[r].bytes + 5;
        reduce_args a = {.op = op, .dtype = dtype, .n_in = 3, .in = in, .n_out = 2, .out = out};
        a.stream      = mine == 1;
        for (size_t i = 0; i < 2000; i++)
            store(expected.bytes + i * size_of(dtype), fold_one(&a, i), dtype);
        reduce(&a, 0, 2000);
        for (size_t i = 0; i < 2000; i++) {
            assert_element(&a, 0, i);
            assert_element(&a, 1, i);
        }
    }
}

static void an_output_may_be_any_of_the_inputs(void **state)
{
    (void)state;
    seed = 3;
    for_every_legal_pair_on_every_level(fold_in_place);
}

static void fold_one_input_onto_itself(pen_op op, pen_dtype dtype)
{
    const void *in[] = {input[0].bytes};
    void *out[]      = {input[0].bytes, output[0].bytes};
    fill(1, dtype, 0);
    reduce_args a = {.op = op, .dtype = dtype, .n_in = 1, .in = in, .n_out = 2, .out = out};
    for (size_t i = 0; i < 1100; i++)
        store(expected.bytes + i * size_of(dtype), fold_one(&a, i), dtype);
    reduce(&a, 0, 1100);
    for (size_t i = 0; i < 1100; i++) {
        assert_element(&a, 0, i);
        assert_element(&a, 1, i);
    }
}

static void one_input_is_its_own_fold(void **state)
{
    (void)state;
    seed = 4;
    for_every_legal_pair_on_every_level(fold_one_input_onto_itself);
}

static void fold_average(pen_op op, pen_dtype dtype)
{
    if (op != PEN_AVG) return;
    const void *in[4];
    void *out[] = {output[0].bytes};
    fill(4, dtype, 0);
    for (int r = 0; r < 4; r++) in[r] = input[r].bytes;
    reduce_args a = {.op = op, .dtype = dtype, .n_in = 4, .in = in, .n_out = 1, .out = out};
    for (a.divide_by = 1; a.divide_by <= 300; a.divide_by += 23) check(&a, 0, 1200);
}

static void an_average_divides_by_the_given_number(void **state)
{
    (void)state;
    seed = 5;
    for_every_legal_pair_on_every_level(fold_average);
}

static void fold_special(pen_op op, pen_dtype dtype)
{
    if (!is_real(dtype)) return;
    static const double values[] = {0.0,      -0.0,      1.0,  -1.0,  NAN,
                                    INFINITY, -INFINITY, 6e-8, 65504, 3e38};
    enum { N = sizeof values / sizeof values[0] };
    const void *in[] = {input[0].bytes, input[1].bytes};
    void *out[]      = {output[0].bytes};
    for (size_t i = 0; i < N * N; i++) {
        store(input[0].bytes + i * size_of(dtype), (number){.real = values[i / N]}, dtype);
        store(input[1].bytes + i * size_of(dtype), (number){.real = values[i % N]}, dtype);
    }
    reduce_args a = {.op = op, .dtype = dtype, .n_in = 2, .in = in, .n_out = 1, .out = out};
    check(&a, 0, N * N);
}

static void nan_and_infinity_are_passed_on(void **state)
{
    (void)state;
    for_every_legal_pair_on_every_level(fold_special);
}

/* 1 + 2^-9 is not a bf16: adding 64 of them one by one in bf16 would lose all of the small part. */
static void sixteen_bit_sums_are_rounded_once(void **state)
{
    (void)state;
    const uint16_t one = half_of_real(1.0, 7, 127), small = half_of_real(0x1p-9, 7, 127);
    const void *in[RANKS_MAX] = {&one};
    uint16_t sum              = 0;
    void *out[]               = {&sum};
    for (int r = 1; r < RANKS_MAX; r++) in[r] = &small;
    reduce_args a = {
        .op = PEN_SUM, .dtype = PEN_BF16, .n_in = RANKS_MAX, .in = in, .n_out = 1, .out = out};
    reduce(&a, 0, 1);
    assert_int_equal(sum, half_of_real(1 + 8 * 0x1p-9, 7, 127));
    assert_int_not_equal(sum, one);
}

static void copies_are_copies_of_any_size_and_alignment(void **state)
{
    (void)state;
    const size_t most   = (8 << 20) + 200;
    unsigned char *from = malloc(most), *to = malloc(most);
    assert_true(from != NULL && to != NULL);
    for (size_t i = 0; i < most; i++) from[i] = (unsigned char)(i * 7 + (i >> 9));
    static const size_t sizes[] = {0, 1, 63, 64, 1024, 4096, 3 << 20, 8 << 20};
    static void (*const copies[])(void *out, const void *in, size_t bytes) = {copy_stream,
                                                                              copy_near, copy_past};
    for (size_t c = 0; c < sizeof copies / sizeof copies[0]; c++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (size_t shift = 0; shift < 3; shift++) {
                const size_t n = sizes[s], at = shift * 37 + 1; /* 1, 37, 73 bytes further */
                memset(to, 0xee, most);
                copies[c](to + at, from + shift, n);
                assert_memory_equal(to + at, from + shift, n);
                assert_int_equal(to[at - 1], 0xee);
                assert_int_equal(to[at + n], 0xee);
            }
    copy_stream(NULL, NULL, 0);
    copy_near(NULL, NULL, 0);
    free(from);
    free(to);
}

int main(void)
{
    alarm(400);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arithmetic_is_for_all_types_and_logic_for_integers),
        cmocka_unit_test(folds_equal_those_of_one_element_at_a_time),
        cmocka_unit_test(folds_in_parts_are_folds_of_folds),
        cmocka_unit_test(sums_of_few_float32_arrays_equal_those_of_one_element_at_a_time),
        cmocka_unit_test(scales_are_applied_to_each_input_first),
        cmocka_unit_test(an_output_may_be_any_of_the_inputs),
        cmocka_unit_test(one_input_is_its_own_fold),
        cmocka_unit_test(an_average_divides_by_the_given_number),
        cmocka_unit_test(nan_and_infinity_are_passed_on),
        cmocka_unit_test(sixteen_bit_sums_are_rounded_once),
        cmocka_unit_test(copies_are_copies_of_any_size_and_alignment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
