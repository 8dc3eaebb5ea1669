/* coll_reference.c - the inputs of collective calls, and their results. */
#include "tests/support/coll_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const call_kind_names[KINDS] = {"broadcast",      "reduce",     "all_reduce",
                                            "gather",         "all_gather", "scatter",
                                            "reduce_scatter", "all_to_all"};
const char *const call_op_names[OPS]     = {"SUM", "AVG",  "PROD", "MIN", "MAX", "LAND",
                                            "LOR", "LXOR", "BAND", "BOR", "BXOR"};
const call_type call_types[TYPES]        = {
           {PEN_F32, "f32", 4, true, true},   {PEN_F16, "f16", 2, true, true},
           {PEN_BF16, "bf16", 2, true, true}, {PEN_F64, "f64", 8, true, true},
           {PEN_I8, "i8", 1, false, true},    {PEN_U8, "u8", 1, false, false},
           {PEN_I32, "i32", 4, false, true},  {PEN_U32, "u32", 4, false, false},
           {PEN_I64, "i64", 8, false, true},  {PEN_U64, "u64", 8, false, false},
};

static uint64_t seed;

uint64_t call_mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu + b;
    x ^= x >> 32;
    x *= 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 29);
}

/* ---- numbers --------------------------------------------------------------------------------- */
typedef union {
    float f; /* f32, f16, bf16 */
    double d;
    int64_t i;
    uint64_t u;
} number;

float call_f16_value(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    float sign = h >> 15 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexpf((float)fraction, -24);
    return sign * ldexpf((float)(1024 + fraction), exponent - 25);
}

/* To nearest, ties to even: multiples of the quantum of halves of this size. */
uint16_t call_f16_bits(float f)
{
    uint16_t sign = signbit(f) ? 0x8000 : 0;
    double x      = fabs((double)f);
    int exponent  = 0;
    if (isnan(f)) return 0x7e00;
    if (isinf(f)) return sign | 0x7c00;
    (void)frexp(x, &exponent); /* x is below 2 to the exponent */
    exponent      = exponent - 1 > -14 ? exponent - 1 : -14;
    double quanta = nearbyint(ldexp(x, 10 - exponent));
    uint32_t bits = x < ldexp(1, -14) ? (uint32_t)quanta
                                      : (uint32_t)((exponent + 15) << 10) + (uint32_t)quanta - 1024;
    return sign | (uint16_t)(bits > 0x7c00 || exponent > 15 ? 0x7c00 : bits);
}

static float halves[0x10000]; /* call_f16_value() of each: a table is faster */

void call_reference_start(uint64_t seed_of_job)
{
    seed = seed_of_job;
    for (uint32_t h = 0; h < 0x10000; h++) halves[h] = call_f16_value((uint16_t)h);
}

/* call_f16_bits(), which remembers what it has rounded. */
static uint16_t f16_bits_again(float f)
{
    static struct {
        uint32_t of;
        uint16_t bits;
        bool is_known;
    } rounded[1 << 14];
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const size_t at = (bits * 0x9e3779b1u) >> 18;
    if (!rounded[at].is_known || rounded[at].of != bits) {
        rounded[at].of       = bits;
        rounded[at].bits     = call_f16_bits(f);
        rounded[at].is_known = true;
    }
    return rounded[at].bits;
}

float call_bf16_value(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

uint16_t call_bf16_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (isnan(f)) return 0x7fc0;
    uint32_t lower = bits & 0xffff, upper = bits >> 16;
    if (lower > 0x8000 || (lower == 0x8000 && (upper & 1))) upper++;
    return (uint16_t)upper;
}

/* memcpy() with a size that the compiler knows. */
static void copy_element(void *to, const void *from, size_t bytes)
{
    switch (bytes) {
    case 1: memcpy(to, from, 1); return;
    case 2: memcpy(to, from, 2); return;
    case 4: memcpy(to, from, 4); return;
    default: memcpy(to, from, 8);
    }
}

static number load(int type, const unsigned char *at)
{
    number x = {.u = 0};
    uint16_t h;
    switch (call_types[type].type) {
    case PEN_F16: memcpy(&h, at, 2); return (number){.f = halves[h]};
    case PEN_BF16: memcpy(&h, at, 2); return (number){.f = call_bf16_value(h)};
    default: break;
    }
    copy_element(&x, at, call_types[type].bytes); /* little-endian */
    int spare = 64 - 8 * (int)call_types[type].bytes;
    if (!call_types[type].is_float && call_types[type].is_signed)
        x.i = (int64_t)(x.u << spare) >> spare;
    return x;
}

static void store(int type, number x, unsigned char *at)
{
    uint16_t h;
    switch (call_types[type].type) {
    case PEN_F16:
        h = f16_bits_again(x.f);
        memcpy(at, &h, 2);
        return;
    case PEN_BF16:
        h = call_bf16_bits(x.f);
        memcpy(at, &h, 2);
        return;
    default: copy_element(at, &x, call_types[type].bytes);
    }
}

/* The reference works in blocks: what depends on type and operation only is then decided once for many elements. */
enum { BLOCK = 64, VALUES = 4096 };

static void store_block(int type, const number *x, size_t n, unsigned char *at)
{
    switch (call_types[type].bytes) {
    case 8: memcpy(at, x, 8 * n); return;
    case 4:
        for (size_t i = 0; i < n; i++) memcpy(at + 4 * i, &x[i], 4);
        return;
    default:
        for (size_t i = 0; i < n; i++) store(type, x[i], at + i * call_types[type].bytes);
    }
}

/* ---- the reference fold ---------------------------------------------------------------------- */
#define FOLD_FLOAT(a, b)                                                                           \
    (op == PEN_SUM || op == PEN_AVG ? (a) + (b)                                                    \
     : op == PEN_PROD               ? (a) * (b)                                                    \
     : isnan(a) || isnan(b)         ? NAN                                                          \
     : op == PEN_MIN                ? ((b) < (a) ? (b) : (a))                                      \
                                    : ((b) > (a) ? (b) : (a)))

static uint64_t fold_bits(pen_op op, uint64_t a, uint64_t b)
{
    switch (op) {
    case PEN_PROD: return a * b;
    case PEN_LAND: return a && b;
    case PEN_LOR: return a || b;
    case PEN_LXOR: return !a != !b;
    case PEN_BAND: return a & b;
    case PEN_BOR: return a | b;
    case PEN_BXOR: return a ^ b;
    default: return a + b;
    }
}

static number wrap(int type, number x)
{
    unsigned char bytes[8];
    memcpy(bytes, &x, sizeof bytes);
    return load(type, bytes);
}

static number fold(int type, pen_op op, number a, number b)
{
    if (call_types[type].type == PEN_F64) return (number){.d = FOLD_FLOAT(a.d, b.d)};
    if (call_types[type].is_float) return (number){.f = (float)FOLD_FLOAT(a.f, b.f)};
    bool less = call_types[type].is_signed ? b.i < a.i : b.u < a.u;
    if (op == PEN_MIN) return less ? b : a;
    if (op == PEN_MAX) return less ? a : b;
    return wrap(type, (number){.u = fold_bits(op, a.u, b.u)});
}

static void fold_block(int type, pen_op op, number *acc, const number *x, size_t n)
{
    if (call_types[type].type == PEN_F32 && (op == PEN_SUM || op == PEN_AVG))
        for (size_t i = 0; i < n; i++) acc[i].f = acc[i].f + x[i].f;
    else
        for (size_t i = 0; i < n; i++) acc[i] = fold(type, op, acc[i], x[i]);
}

/* The mean; and a single value becomes true or false, too. */
static number finish(int type, pen_op op, number x, int n)
{
    bool logical = op == PEN_LAND || op == PEN_LOR || op == PEN_LXOR;
    if (logical) return (number){.u = x.u != 0};
    if (op != PEN_AVG) return x;
    if (call_types[type].type == PEN_F64) return (number){.d = x.d / n};
    if (call_types[type].is_float) return (number){.f = x.f / (float)n};
    if (call_types[type].is_signed) return (number){.i = x.i / n};
    return (number){.u = x.u / (uint64_t)n};
}

static number scaled(int type, double scale, number x)
{
    if (call_types[type].type == PEN_F64) return (number){.d = scale * x.d};
    if (call_types[type].is_float) return (number){.f = (float)scale * x.f};
    double product = trunc(scale * (call_types[type].is_signed ? (double)x.i : (double)x.u));
    int bits       = 8 * (int)call_types[type].bytes - call_types[type].is_signed;
    double limit   = ldexp(1, bits);
    uint64_t most  = bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
    if (product >= limit) return (number){.u = most};
    if (!call_types[type].is_signed) return (number){.u = product < 0 ? 0 : (uint64_t)product};
    if (product <= -limit) return (number){.i = -(int64_t)most - 1};
    return (number){.i = (int64_t)product};
}
/* ---- one call -------------------------------------------------------------------------------- */
size_t call_count(const test_call *c, int from, int to)
{
    if (!c->has_counts) return c->n;
    uint64_t h = c->kind == ALL_TO_ALL ? call_mix(call_mix(c->id, (uint64_t)from), (uint64_t)to)
                                       : call_mix(c->id, (uint64_t)to);
    size_t n[] = {0, 1, 7, c->n};
    return n[h % 4];
}

/* Parts before `who`: of what `rank` sends, or of what it receives. */
static size_t sent_before(const test_call *c, int rank, int who)
{
    size_t sum = 0;
    for (int i = 0; i < who; i++) sum += call_count(c, rank, i);
    return sum;
}

static size_t got_before(const test_call *c, int rank, int who)
{
    size_t sum = 0;
    for (int i = 0; i < who; i++)
        sum += c->kind == ALL_TO_ALL ? call_count(c, i, rank) : call_count(c, rank, i);
    return sum;
}

size_t call_elements_in(const test_call *c)
{
    switch (c->kind) {
    case GATHER:
    case ALL_GATHER: return call_count(c, c->rank, c->rank);
    case SCATTER: return c->rank == c->root ? sent_before(c, c->rank, c->size) : 0;
    case REDUCE_SCATTER:
    case ALL_TO_ALL: return sent_before(c, c->rank, c->size);
    case BROADCAST: return c->rank == c->root ? c->n : 0;
    default: return c->n;
    }
}

size_t call_elements_out(const test_call *c)
{
    bool is_root = c->rank == c->root;
    switch (c->kind) {
    case REDUCE: return is_root ? c->n : 0;
    case GATHER: return is_root ? got_before(c, c->rank, c->size) : 0;
    case ALL_GATHER:
    case ALL_TO_ALL: return got_before(c, c->rank, c->size);
    case SCATTER:
    case REDUCE_SCATTER: return call_count(c, c->rank, c->rank);
    default: return c->n;
    }
}

bool call_reduces(kind k)
{
    return k == REDUCE || k == ALL_REDUCE || k == REDUCE_SCATTER;
}

static double scale_of(const test_call *c, int rank)
{
    if (!c->is_scaled) return 1;
    return 0.125 + 0.3 * (double)((c->id + (uint64_t)rank * 7) % 11);
}

double call_scale(const test_call *c)
{
    return scale_of(c, c->rank);
}

static double drawn_value(const test_call *c, uint64_t h)
{
    if ((c->op == PEN_MIN || c->op == PEN_MAX) && h % 89 == 0) return NAN;
    if (c->op == PEN_PROD) return 0.9 + (double)(h % 2001) / 10000;
    return ((double)(h % 20001) / 10000 - 1) * (double)(1 << (h >> 20 & 7));
}

/* A value of the call's type; h is its random number. */
static number drawn(const test_call *c, uint64_t h)
{
    unsigned char bytes[8];
    if (call_types[c->type].type == PEN_F64) return (number){.d = drawn_value(c, h)};
    if (call_types[c->type].type == PEN_F32) return (number){.f = (float)drawn_value(c, h)};
    if (call_types[c->type].is_float) {
        store(c->type, (number){.f = (float)drawn_value(c, h)}, bytes);
        return load(c->type, bytes); /* after rounding */
    }
    bool is_false = c->op >= PEN_LAND && h >> 40 & 1;
    return wrap(c->type, (number){.u = is_false ? 0 : h});
}

/* The values of which calls with this type and operation draw. */
static const number *values_of(const test_call *c)
{
    static number *values[TYPES][OPS];
    number **v = &values[c->type][c->op];
    if (*v == NULL) {
        *v = calloc(VALUES, sizeof **v);
        if (*v == NULL) abort();
        for (uint64_t i = 0; i < VALUES; i++) (*v)[i] = drawn(c, call_mix(seed, i));
    }
    return *v;
}

/* Elements of a rank's input, from i on, at most a block. */
static void draw(const test_call *c, int rank, size_t i, size_t n, number *x)
{
    const number *values   = values_of(c);
    const uint64_t of_rank = call_mix(seed ^ c->id, (uint64_t)rank);
    for (size_t e = 0; e < n; e++) x[e] = values[call_mix(of_rank, i + e) % VALUES];
}

/* The members of first's node, from `first` on. */
static void folded_node(const test_call *c, int first, size_t i, size_t n, number *acc)
{
    number x[BLOCK];
    for (int r = first; r < c->size; r++) {
        if (c->node != NULL && c->node[r] != c->node[first]) continue;
        number *to = r == first ? acc : x;
        draw(c, r, i, n, to);
        for (size_t e = 0; c->is_scaled && e < n; e++)
            to[e] = scaled(c->type, scale_of(c, r), to[e]);
        if (r != first) fold_block(c->type, c->op, acc, x, n);
    }
}

static bool begins_node(const test_call *c, int position)
{
    for (int r = 0; r < position; r++)
        if (c->node == NULL || c->node[r] == c->node[position]) return false;
    return true;
}

static void folded(const test_call *c, size_t i, size_t n, number *acc)
{
    number of_node[BLOCK];
    folded_node(c, 0, i, n, acc);
    for (int r = 1; r < c->size; r++) {
        if (!begins_node(c, r)) continue;
        folded_node(c, r, i, n, of_node);
        fold_block(c->type, c->op, acc, of_node, n);
    }
    for (size_t e = 0; e < n; e++) acc[e] = finish(c->type, c->op, acc[e], c->size);
}

static bool has_parts(kind k)
{
    return k == GATHER || k == ALL_GATHER || k == ALL_TO_ALL;
}

/* Where in the inputs this member's result begins, from member `part` if outputs have
 * parts. */
static size_t origin(const test_call *c, int part)
{
    switch (c->kind) {
    case REDUCE_SCATTER: return sent_before(c, c->rank, c->rank);
    case SCATTER: return sent_before(c, c->root, c->rank);
    case ALL_TO_ALL: return sent_before(c, part, c->rank);
    default: return 0;
    }
}

/* The results for elements of the inputs, from i on, at most a block. */
static void expected(const test_call *c, int part, size_t i, size_t n, number *x)
{
    if (call_reduces(c->kind))
        folded(c, i, n, x);
    else
        draw(c, has_parts(c->kind) ? part : c->root, i, n, x);
}

/* ---- inputs and results ---------------------------------------------------------------------- */
void call_write_input(const test_call *c, unsigned char *at)
{
    const size_t n = call_elements_in(c);
    number x[BLOCK];
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t length = n - i < BLOCK ? n - i : BLOCK;
        draw(c, c->rank, i, length, x);
        store_block(c->type, x, length, at + i * call_types[c->type].bytes);
    }
}

static bool is_same(int type, const unsigned char *a, const unsigned char *b)
{
    if (memcmp(a, b, call_types[type].bytes) == 0) return true;
    if (!call_types[type].is_float) return false;
    number x = load(type, a), y = load(type, b);
    return call_types[type].type == PEN_F64 ? isnan(x.d) && isnan(y.d) : isnan(x.f) && isnan(y.f);
}

/* The expected elements of a part, from i on. */
typedef void (*wanted)(const test_call *c, int part, size_t i, size_t n, number *x);

/* The index of the first wrong element of n from `begin` on, or n.  A block is
 * compared at once; only where that fails, as with NaNs, one by one. */
static size_t first_wrong(const test_call *c, const unsigned char *at, size_t n, wanted elements,
                          int part, size_t begin)
{
    number x[BLOCK];
    unsigned char want[BLOCK * 8];
    size_t bytes = call_types[c->type].bytes;
    for (size_t done = 0; done < n; done += BLOCK) {
        size_t length = n - done < BLOCK ? n - done : BLOCK;
        elements(c, part, begin + done, length, x);
        store_block(c->type, x, length, want);
        if (memcmp(at + done * bytes, want, length * bytes) == 0) continue;
        for (size_t i = 0; i < length; i++)
            if (!is_same(c->type, at + (done + i) * bytes, want + i * bytes)) return done + i;
    }
    return n;
}

bool call_input_is_kept(const test_call *c, const unsigned char *at, size_t *element)
{
    const size_t n = call_elements_in(c);
    *element       = first_wrong(c, at, n, draw, c->rank, 0);
    return *element >= n;
}

bool call_output_is_right(const test_call *c, const unsigned char *at, int *part, size_t *element)
{
    const size_t bytes = call_types[c->type].bytes, all = call_elements_out(c);
    const bool is_one = all == 0 || !has_parts(c->kind);
    for (*part = 0; *part < (is_one ? 1 : c->size); ++*part) {
        const size_t begin = is_one ? 0 : got_before(c, c->rank, *part);
        const size_t n     = is_one ? all : got_before(c, c->rank, *part + 1) - begin;
        *element = first_wrong(c, at + begin * bytes, n, expected, *part, origin(c, *part));
        if (*element < n) return false;
    }
    return true;
}
