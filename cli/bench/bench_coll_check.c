/* bench_coll_check.c - values for the collectives: a hash of (rank, element), so that every rank can compute the
 * expected result element by element, without code of the SDK. */
#include "cli/bench/bench_coll.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- sizes ----------------------------------------------------------------------------------- */

size_t bench_coll_in_elements(const bench_coll_case *c)
{
    const size_t all = c->n * (size_t)c->ranks;
    switch (c->kind) {
    case BENCH_BARRIER: return 0;
    case BENCH_BROADCAST: return c->rank == c->root ? c->n : 0;
    case BENCH_SCATTER: return c->rank == c->root ? all : 0;
    case BENCH_REDUCE_SCATTER:
    case BENCH_ALL_TO_ALL: return all;
    default: return c->n;
    }
}

size_t bench_coll_out_elements(const bench_coll_case *c)
{
    const size_t all = c->n * (size_t)c->ranks;
    switch (c->kind) {
    case BENCH_BARRIER: return 0;
    case BENCH_REDUCE: return c->rank == c->root ? c->n : 0;
    case BENCH_GATHER: return c->rank == c->root ? all : 0;
    case BENCH_ALL_GATHER:
    case BENCH_ALL_TO_ALL: return all;
    default: return c->n;
    }
}

size_t bench_coll_in_place(const bench_coll_case *c)
{
    const bool has_own =
        c->kind == BENCH_ALL_GATHER || c->kind == BENCH_REDUCE_SCATTER ||
        ((c->kind == BENCH_GATHER || c->kind == BENCH_SCATTER) && c->rank == c->root);
    return has_own ? c->n * (size_t)c->rank : 0;
}

/* ---- values of every type -------------------------------------------------------------------- */

/* Small whole numbers are exact in every type; from 1 to 4, so that no 8-bit sum of a few wraps and no product is 0. */
static int drawn(int rank, size_t i)
{
    uint64_t x = ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u ^ ((uint64_t)rank + 1) << 32;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return 1 + (int)(x >> 60 & 3);
}

static uint16_t half_of(double x, int fraction_bits, int bias)
{
    int exponent;
    if (x == 0) return 0;
    if (isinf(x) || ilogb(x) > bias) return (uint16_t)((2 * bias + 1) << fraction_bits);
    frexp(x, &exponent);
    const double units = nearbyint(ldexp(x, fraction_bits + 1 - exponent));
    return (uint16_t)(((exponent - 2 + bias) << fraction_bits) + (int)units);
}

/* Subnormal numbers become 0: none is ever expected. */
static double of_half(uint16_t h, int fraction_bits, int bias)
{
    const int fraction = h & ((1 << fraction_bits) - 1), exponent = (h & 0x7fff) >> fraction_bits;
    const double size =
        exponent == 0 ? 0 : ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
    return exponent > 2 * bias ? INFINITY : h >> 15 ? -size : size;
}

static void put(void *at, pen_dtype t, double x)
{
    const float f      = (float)x;
    const int64_t i    = t == PEN_F64 || t == PEN_F32 ? 0 : (int64_t)x;
    const uint16_t f16 = half_of(x, 10, 15), bf16 = half_of(x, 7, 127);
    switch (t) {
    case PEN_F32: memcpy(at, &f, sizeof f); break;
    case PEN_F64: memcpy(at, &x, sizeof x); break;
    case PEN_F16: memcpy(at, &f16, sizeof f16); break;
    case PEN_BF16: memcpy(at, &bf16, sizeof bf16); break;
    default: memcpy(at, &i, bench_coll_dtype_bytes(t)); break; /* little end first */
    }
}

static double get(const void *at, pen_dtype t)
{
    float f;
    double d;
    uint16_t h;
    int64_t i            = 0;
    const unsigned shift = 64 - 8 * (unsigned)bench_coll_dtype_bytes(t);
    memcpy(&i, at, bench_coll_dtype_bytes(t));
    memcpy(&f, &i, sizeof f);
    memcpy(&d, &i, sizeof d);
    memcpy(&h, &i, sizeof h);
    switch (t) {
    case PEN_F32: return (double)f;
    case PEN_F64: return d;
    case PEN_F16: return of_half(h, 10, 15);
    case PEN_BF16: return of_half(h, 7, 127);
    case PEN_I8:
    case PEN_I32:
    case PEN_I64: return (double)((int64_t)((uint64_t)i << shift) >> shift);
    default: return (double)(uint64_t)i;
    }
}

/* ---- expected results ----------------------------------------------------------------------- */

static bool is_float(pen_dtype t)
{
    return t <= PEN_F64;
}

/* On 64-bit integers; sums of a few small ones fit in every type. */
static int64_t fold(int64_t a, int64_t b, pen_op op)
{
    switch (op) {
    case PEN_PROD: return (int64_t)((uint64_t)a * (uint64_t)b);
    case PEN_MIN: return a < b ? a : b;
    case PEN_MAX: return a > b ? a : b;
    case PEN_LAND: return a && b;
    case PEN_LOR: return a || b;
    case PEN_LXOR: return !a != !b;
    case PEN_BAND: return a & b;
    case PEN_BOR: return a | b;
    case PEN_BXOR: return a ^ b;
    default: return a + b;
    }
}

/* As stored in type t: integers wrap around. */
static double kept(int64_t x, pen_dtype t)
{
    unsigned char bytes[8];
    if (is_float(t)) return (double)x;
    memcpy(bytes, &x, sizeof bytes);
    return get(bytes, t);
}

static double reduced(const bench_coll_case *c, size_t i)
{
    int64_t sum    = drawn(0, i);
    double product = (double)sum; /* a power of two times a power of three: may be large */
    for (int r = 1; r < c->ranks; r++) {
        sum = fold(sum, drawn(r, i), c->op);
        product *= drawn(r, i);
    }
    if (c->op == PEN_PROD && is_float(c->dtype)) return product;
    if (c->op >= PEN_LAND && c->op <= PEN_LXOR && c->ranks == 1) sum = sum != 0;
    const double x = kept(sum, c->dtype);
    if (c->op != PEN_AVG) return x;
    return is_float(c->dtype) ? x / c->ranks : trunc(x / c->ranks);
}

static double expected(const bench_coll_case *c, size_t i)
{
    const int from = c->n > 0 ? (int)(i / c->n) : 0;
    const size_t j = c->n > 0 ? i % c->n : 0, own = c->n * (size_t)c->rank;
    switch (c->kind) {
    case BENCH_ALL_REDUCE:
    case BENCH_REDUCE: return reduced(c, i);
    case BENCH_REDUCE_SCATTER: return reduced(c, own + i);
    case BENCH_BROADCAST: return drawn(c->root, i);
    case BENCH_GATHER:
    case BENCH_ALL_GATHER: return drawn(from, j);
    case BENCH_SCATTER: return drawn(c->root, own + i);
    case BENCH_ALL_TO_ALL: return drawn(from, own + j);
    default: return drawn((c->rank + c->ranks - 1) % c->ranks, i);
    }
}

/* Small integers are exact; large ones and means may be rounded in the last place. */
static double tolerance(const bench_coll_case *c, double want)
{
    static const double last_place[] = {
        [PEN_F32] = 0x1p-22, [PEN_F16] = 0x1p-10, [PEN_BF16] = 0x1p-7, [PEN_F64] = 0x1p-51};
    if (!bench_coll_reduces(c->kind) || !is_float(c->dtype)) return 0;
    const bool is_exact = c->op != PEN_AVG && fabs(want) * last_place[c->dtype] < 1;
    return is_exact ? 0 : fabs(want) * last_place[c->dtype] * (c->op == PEN_PROD ? c->ranks : 1);
}

void bench_coll_fill(const bench_coll_case *c, void *in, size_t elements)
{
    const size_t size = bench_coll_dtype_bytes(c->dtype);
    for (size_t i = 0; i < elements; i++)
        put((unsigned char *)in + i * size, c->dtype, drawn(c->rank, i));
}

bool bench_coll_verify(const bench_coll_case *c, const void *out, char *sentence, size_t size)
{
    const size_t element = bench_coll_dtype_bytes(c->dtype), n = bench_coll_out_elements(c);
    for (size_t i = 0; i < n; i++) {
        const double want      = expected(c, i);
        const double have      = get((const unsigned char *)out + i * element, c->dtype);
        const bool is_past_f16 = c->dtype == PEN_F16 && want > 65504;
        if (is_past_f16 ? isinf(have) : fabs(have - want) <= tolerance(c, want)) continue;
        snprintf(sentence, size, "rank %d: element %zu of %zu is %.17g, expected %.17g", c->rank, i,
                 n, have, want);
        return false;
    }
    return true;
}
