/* coll_test.c - every operation, type and reduction against a scalar reference, on every path.
 *
 * Inputs are a function of the seed, the call, the rank and the place. So each member knows all
 * inputs and folds them itself, one element after the other, in rank order; results are compared
 * bit for bit (a NaN with any NaN).  Then again with deterministic=node, on several layouts of nodes: each node in rank
 * order, then the nodes by their lowest ranks.  Guard bytes around every buffer must not change.
 */
#include "coll_paths.h"
#include "worker/collective/fault_point.h"
#include "worker/collective/schedule/schedule.h"

#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 9, MARGIN = 64, SMALL = 4097, LARGE = (1 << 20) + 3, LARGE_RANKS = 4, GUARD = 0xa5 };

/* A sanitizer is several times slower: then only some numbers of ranks are tried. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { RANKS_ALL = 3, SOME = 5, ALGORITHM_RANKS = 2, LIMIT_S = 450 };
#else
enum { RANKS_ALL = RANKS, SOME = RANKS, ALGORITHM_RANKS = 4, LIMIT_S = 170 };
#endif

static bool is_tried(int ranks)
{
    return ranks <= RANKS_ALL || ranks == SOME;
}

static const size_t sizes[] = {0, 1, 7, SMALL};

typedef enum {
    BROADCAST,
    REDUCE,
    ALL_REDUCE,
    GATHER,
    ALL_GATHER,
    SCATTER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    KINDS
} kind;
static const char *const kind_names[] = {"broadcast",  "reduce",  "all_reduce",     "gather",
                                         "all_gather", "scatter", "reduce_scatter", "all_to_all"};

static const struct {
    pen_dtype type;
    const char *name;
    size_t bytes;
    bool is_float, is_signed;
} types[] = {
    {PEN_F32, "f32", 4, true, true},   {PEN_F16, "f16", 2, true, true},
    {PEN_BF16, "bf16", 2, true, true}, {PEN_F64, "f64", 8, true, true},
    {PEN_I8, "i8", 1, false, true},    {PEN_U8, "u8", 1, false, false},
    {PEN_I32, "i32", 4, false, true},  {PEN_U32, "u32", 4, false, false},
    {PEN_I64, "i64", 8, false, true},  {PEN_U64, "u64", 8, false, false},
};
static const char *const op_names[] = {"SUM", "AVG",  "PROD", "MIN", "MAX", "LAND",
                                       "LOR", "LXOR", "BAND", "BOR", "BXOR"};
enum { TYPES = sizeof types / sizeof *types, OPS = sizeof op_names / sizeof *op_names };

static uint64_t seed;

static uint64_t mix(uint64_t a, uint64_t b)
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

static float half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    float sign = h >> 15 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexpf((float)fraction, -24);
    return sign * ldexpf((float)(1024 + fraction), exponent - 25);
}

/* To nearest, ties to even: multiples of the quantum of halves of this size. */
static uint16_t half_bits(float f)
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

static float halves[0x10000]; /* half_value() of each: a table is faster */

static void fill_halves(void)
{
    for (uint32_t h = 0; h < 0x10000; h++) halves[h] = half_value((uint16_t)h);
}

/* half_bits(), which remembers what it has rounded. */
static uint16_t half_bits_again(float f)
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
        rounded[at].bits     = half_bits(f);
        rounded[at].is_known = true;
    }
    return rounded[at].bits;
}

static float bfloat_value(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t bfloat_bits(float f)
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
    switch (types[type].type) {
    case PEN_F16: memcpy(&h, at, 2); return (number){.f = halves[h]};
    case PEN_BF16: memcpy(&h, at, 2); return (number){.f = bfloat_value(h)};
    default: break;
    }
    copy_element(&x, at, types[type].bytes); /* little-endian */
    int spare = 64 - 8 * (int)types[type].bytes;
    if (!types[type].is_float && types[type].is_signed) x.i = (int64_t)(x.u << spare) >> spare;
    return x;
}

static void store(int type, number x, unsigned char *at)
{
    uint16_t h;
    switch (types[type].type) {
    case PEN_F16:
        h = half_bits_again(x.f);
        memcpy(at, &h, 2);
        return;
    case PEN_BF16:
        h = bfloat_bits(x.f);
        memcpy(at, &h, 2);
        return;
    default: copy_element(at, &x, types[type].bytes);
    }
}

/* The reference works in blocks: what depends on type and operation only is then decided once for many elements. */
enum { BLOCK = 64, VALUES = 4096 };

static void store_block(int type, const number *x, size_t n, unsigned char *at)
{
    switch (types[type].bytes) {
    case 8: memcpy(at, x, 8 * n); return;
    case 4:
        for (size_t i = 0; i < n; i++) memcpy(at + 4 * i, &x[i], 4);
        return;
    default:
        for (size_t i = 0; i < n; i++) store(type, x[i], at + i * types[type].bytes);
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
    if (types[type].type == PEN_F64) return (number){.d = FOLD_FLOAT(a.d, b.d)};
    if (types[type].is_float) return (number){.f = (float)FOLD_FLOAT(a.f, b.f)};
    bool less = types[type].is_signed ? b.i < a.i : b.u < a.u;
    if (op == PEN_MIN) return less ? b : a;
    if (op == PEN_MAX) return less ? a : b;
    return wrap(type, (number){.u = fold_bits(op, a.u, b.u)});
}

static void fold_block(int type, pen_op op, number *acc, const number *x, size_t n)
{
    if (types[type].type == PEN_F32 && (op == PEN_SUM || op == PEN_AVG))
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
    if (types[type].type == PEN_F64) return (number){.d = x.d / n};
    if (types[type].is_float) return (number){.f = x.f / (float)n};
    if (types[type].is_signed) return (number){.i = x.i / n};
    return (number){.u = x.u / (uint64_t)n};
}

static number scaled(int type, double scale, number x)
{
    if (types[type].type == PEN_F64) return (number){.d = scale * x.d};
    if (types[type].is_float) return (number){.f = (float)scale * x.f};
    double product = trunc(scale * (types[type].is_signed ? (double)x.i : (double)x.u));
    int bits       = 8 * (int)types[type].bytes - types[type].is_signed;
    double limit   = ldexp(1, bits);
    uint64_t most  = bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
    if (product >= limit) return (number){.u = most};
    if (!types[type].is_signed) return (number){.u = product < 0 ? 0 : (uint64_t)product};
    if (product <= -limit) return (number){.i = -(int64_t)most - 1};
    return (number){.i = (int64_t)product};
}

/* ---- layouts of nodes -------------------------------------------------------------------------- */
static int uneven(int rank, int n)
{
    return rank * 4 / 3 >= n;
}

static int interleaved(int rank, int n)
{
    (void)n;
    return rank % 2;
}

static int three_backwards(int rank, int n)
{
    return (n - 1 - rank) % 3;
}

static const struct {
    const char *name;
    int (*node)(int rank, int n); /* NULL: rank order, deterministic=yes */
    int ranks;                    /* that are tried; 0: is_tried() */
} layouts[] = {{"in rank order", NULL, 0},
               {"uneven nodes", uneven, 4},
               {"interleaved nodes", interleaved, 4},
               {"three nodes backwards", three_backwards, 6}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static bool is_tried_on(int layout, int ranks)
{
    return layouts[layout].ranks == 0 ? is_tried(ranks) : ranks == layouts[layout].ranks;
}

#define EACH_COURSE(path, layout, n)                                                               \
    EACH_PATH(path)                                                                                \
    for (int layout = 0; layout < LAYOUTS; layout++)                                               \
        for (int n = path->ranks_min; n <= RANKS; n++)                                             \
            if (is_tried_on(layout, n))

/* ---- one call -------------------------------------------------------------------------------- */
typedef struct {
    kind kind;
    int type; /* of types[] */
    pen_op op;
    int size, rank, root;
    const int *node; /* [size] by position; NULL: folds are in rank order */
    uint64_t id;     /* of the call; seeds its random choices */
    size_t n;
    bool has_counts, in_place, is_scaled, is_registered, null_where_allowed;
    bool overwrites;              /* PEN_OVERWRITE; may differ between members */
    size_t offset_in, offset_out; /* bytes after a multiple of 64 */
} test_call;

static size_t count_of(const test_call *c, int from, int to)
{
    if (!c->has_counts) return c->n;
    uint64_t h = c->kind == ALL_TO_ALL ? mix(mix(c->id, (uint64_t)from), (uint64_t)to)
                                       : mix(c->id, (uint64_t)to);
    size_t n[] = {0, 1, 7, c->n};
    return n[h % 4];
}

/* Parts before `who`: of what `rank` sends, or of what it receives. */
static size_t sent_before(const test_call *c, int rank, int who)
{
    size_t sum = 0;
    for (int i = 0; i < who; i++) sum += count_of(c, rank, i);
    return sum;
}

static size_t got_before(const test_call *c, int rank, int who)
{
    size_t sum = 0;
    for (int i = 0; i < who; i++)
        sum += c->kind == ALL_TO_ALL ? count_of(c, i, rank) : count_of(c, rank, i);
    return sum;
}

static size_t elements_in(const test_call *c, int rank)
{
    switch (c->kind) {
    case GATHER:
    case ALL_GATHER: return count_of(c, rank, rank);
    case SCATTER: return rank == c->root ? sent_before(c, rank, c->size) : 0;
    case REDUCE_SCATTER:
    case ALL_TO_ALL: return sent_before(c, rank, c->size);
    case BROADCAST: return rank == c->root ? c->n : 0;
    default: return c->n;
    }
}

static size_t elements_out(const test_call *c)
{
    bool is_root = c->rank == c->root;
    switch (c->kind) {
    case REDUCE: return is_root ? c->n : 0;
    case GATHER: return is_root ? got_before(c, c->rank, c->size) : 0;
    case ALL_GATHER:
    case ALL_TO_ALL: return got_before(c, c->rank, c->size);
    case SCATTER:
    case REDUCE_SCATTER: return count_of(c, c->rank, c->rank);
    default: return c->n;
    }
}

static bool reduces(kind k)
{
    return k == REDUCE || k == ALL_REDUCE || k == REDUCE_SCATTER;
}

static double scale_of(const test_call *c, int rank)
{
    if (!c->is_scaled) return 1;
    return 0.125 + 0.3 * (double)((c->id + (uint64_t)rank * 7) % 11);
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
    if (types[c->type].type == PEN_F64) return (number){.d = drawn_value(c, h)};
    if (types[c->type].type == PEN_F32) return (number){.f = (float)drawn_value(c, h)};
    if (types[c->type].is_float) {
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
        for (uint64_t i = 0; i < VALUES; i++) (*v)[i] = drawn(c, mix(seed, i));
    }
    return *v;
}

/* Elements of a rank's input, from i on, at most a block. */
static void draw(const test_call *c, int rank, size_t i, size_t n, number *x)
{
    const number *values   = values_of(c);
    const uint64_t of_rank = mix(seed ^ c->id, (uint64_t)rank);
    for (size_t e = 0; e < n; e++) x[e] = values[mix(of_rank, i + e) % VALUES];
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
    if (reduces(c->kind))
        folded(c, i, n, x);
    else
        draw(c, has_parts(c->kind) ? part : c->root, i, n, x);
}

/* ---- buffers --------------------------------------------------------------------------------- */
typedef struct {
    unsigned char *begin, *at; /* at: begin + MARGIN + offset */
    size_t bytes;              /* all of it */
} buffer;

typedef struct {
    pen_ctx *ctx;
    pen_group *g;
    buffer memory[2][2]; /* foreign, registered; in, out */
} bench;

static void place(buffer *b, size_t offset)
{
    b->at = b->begin + MARGIN + offset;
}

static void write_elements(const test_call *c, int rank, size_t n, unsigned char *at)
{
    number x[BLOCK];
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t length = n - i < BLOCK ? n - i : BLOCK;
        draw(c, rank, i, length, x);
        store_block(c->type, x, length, at + i * types[c->type].bytes);
    }
}

static void write_input(const test_call *c, buffer *b)
{
    write_elements(c, c->rank, elements_in(c, c->rank), b->at);
}

static bool is_same(int type, const unsigned char *a, const unsigned char *b)
{
    if (memcmp(a, b, types[type].bytes) == 0) return true;
    if (!types[type].is_float) return false;
    number x = load(type, a), y = load(type, b);
    return types[type].type == PEN_F64 ? isnan(x.d) && isnan(y.d) : isnan(x.f) && isnan(y.f);
}

static const char *describe(const test_call *c)
{
    static char text[200];
    snprintf(text, sizeof text, "call %llu: %s %s %s n=%zu root=%d%s%s%s%s%s offsets %zu %zu",
             (unsigned long long)c->id, kind_names[c->kind], types[c->type].name,
             reduces(c->kind) ? op_names[c->op] : "", c->n, c->root, c->has_counts ? " counts" : "",
             c->in_place ? " in place" : "", c->overwrites ? " overwrites" : "",
             c->is_scaled ? " scaled" : "", c->is_registered ? " registered" : "", c->offset_in,
             c->offset_out);
    return text;
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
    size_t bytes = types[c->type].bytes;
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

static const char *check_piece(const test_call *c, const unsigned char *at, int part, size_t n)
{
    size_t wrong = first_wrong(c, at, n, expected, part, origin(c, part));
    if (wrong < n)
        return complaint("%s: element %zu of part %d is wrong", describe(c), wrong, part);
    return NULL;
}

static const char *check_output(const test_call *c, const unsigned char *at)
{
    size_t n = elements_out(c), bytes = types[c->type].bytes;
    if (n == 0 || !has_parts(c->kind)) return check_piece(c, at, 0, n);
    for (int part = 0; part < c->size; part++) {
        size_t begin      = got_before(c, c->rank, part);
        size_t length     = got_before(c, c->rank, part + 1) - begin;
        const char *wrong = check_piece(c, at + begin * bytes, part, length);
        if (wrong) return wrong;
    }
    return NULL;
}

static bool is_untouched(const unsigned char *from, const unsigned char *to)
{
    for (; from < to; from++)
        if (*from != GUARD) return false;
    return true;
}

static const char *check_guards(const test_call *c, const buffer *b, size_t used)
{
    size_t end = (size_t)(b->at - b->begin) + used + 2 * MARGIN;
    if (end > b->bytes) end = b->bytes;
    if (!is_untouched(b->begin, b->at) || !is_untouched(b->at + used, b->begin + end))
        return complaint("%s: bytes outside the buffer changed", describe(c));
    return NULL;
}

/* ---- calling --------------------------------------------------------------------------------- */
static pen_status call_it(const test_call *c, pen_group *g, const void *in, void *out,
                          const size_t *counts, const size_t *out_counts, const pen_opts *o,
                          pen_req *req)
{
    pen_dtype t = types[c->type].type;
    size_t own  = count_of(c, c->rank, c->rank);
    switch (c->kind) {
    case BROADCAST: return pen_broadcast(g, out, c->n, t, c->root, o, req);
    case REDUCE: return pen_reduce(g, in, out, c->n, t, c->op, c->root, o, req);
    case ALL_REDUCE: return pen_all_reduce(g, in, out, c->n, t, c->op, o, req);
    case GATHER: return pen_gather(g, in, own, out, counts, t, c->root, o, req);
    case ALL_GATHER: return pen_all_gather(g, in, own, out, counts, t, o, req);
    case SCATTER: return pen_scatter(g, in, counts, out, own, t, c->root, o, req);
    case REDUCE_SCATTER: return pen_reduce_scatter(g, in, counts, out, own, t, c->op, o, req);
    default: return pen_all_to_all(g, in, counts, out, out_counts, c->n, t, o, req);
    }
}

/* Makes the call and checks everything it may have touched.  PEN_OK and *wrong: a wrong
 * result. */
static pen_status carry_out(const bench *b, const test_call *c, const char **wrong)
{
    buffer in = b->memory[c->is_registered][0], out = b->memory[c->is_registered][1];
    size_t bytes    = types[c->type].bytes, counts[RANKS], out_counts[RANKS];
    size_t bytes_in = elements_in(c, c->rank) * bytes, bytes_out = elements_out(c) * bytes;
    bool one_buffer = c->in_place || c->kind == BROADCAST;
    for (int i = 0; i < c->size; i++) {
        counts[i]     = count_of(c, c->rank, i);
        out_counts[i] = count_of(c, i, c->rank);
    }
    place(&in, c->offset_in);
    place(&out, c->offset_out);
    size_t cleared = bytes_in > bytes_out ? bytes_in : bytes_out;
    memset(in.begin, GUARD, MARGIN + c->offset_in + cleared + 2 * MARGIN);
    memset(out.begin, GUARD, MARGIN + c->offset_out + cleared + 2 * MARGIN);
    write_input(c, &in);
    buffer *result = one_buffer ? &in : &out;
    void *out_at   = c->null_where_allowed && bytes_out == 0 ? NULL : result->at;
    void *in_at    = c->null_where_allowed && bytes_in == 0 ? NULL : in.at;
    pen_opts o     = {.label = "tested", .scale = scale_of(c, c->rank)};
    if (c->is_scaled) o.flags = PEN_SCALED;
    if (c->overwrites) o.flags |= PEN_OVERWRITE;
    bool has          = c->has_counts;
    pen_status status = call_it(c, b->g, in_at, c->kind == BROADCAST ? in.at : out_at,
                                has ? counts : NULL, has ? out_counts : NULL, &o, NULL);
    if (status != PEN_OK) return status;
    *wrong      = check_output(c, result->at);
    size_t used = one_buffer && bytes_in > bytes_out ? bytes_in : bytes_out;
    if (!*wrong) *wrong = check_guards(c, result, used);
    if (*wrong || (one_buffer && bytes_out > 0)) return PEN_OK;
    size_t n = bytes_in / bytes, changed = first_wrong(c, in.at, n, draw, c->rank, 0);
    if (changed < n) *wrong = complaint("%s: input %zu changed", describe(c), changed);
    return PEN_OK;
}

/* ---- suites: what one member does ------------------------------------------------------------ */
typedef struct {
    bench b;
    const coll_test_path *path;
    int size, rank, layout;
    int node_of[RANKS];
    const int *node;   /* node_of, or NULL: rank order */
    const char *first; /* this suite's complaint */
} session;

/* False: the group is no longer usable. */
static bool try(session *s, test_call *c)
{
    const char *wrong = NULL;
    c->size           = s->size;
    c->rank           = s->rank;
    c->node           = s->node;
    c->overwrites     = mix(c->id, (uint64_t)s->rank) & 1;
    pen_status status = carry_out(&s->b, c, &wrong);
    if (status != PEN_OK) wrong = complaint("%s: %s", describe(c), pen_last_error(NULL));
    if (wrong && !s->first) s->first = strdup(wrong);
    return status == PEN_OK;
}

/* Variations besides kind, type and operation: random, the same on all members. */
static test_call vary(const session *s, kind k, int type, int op, int pass)
{
    test_call c          = {.kind = k, .type = type, .op = (pen_op)op};
    c.id                 = (uint64_t)(((pass * KINDS + (int)k) * TYPES + type) * OPS + op) + 1;
    uint64_t h           = mix(seed + (uint64_t)s->size, c.id);
    c.n                  = sizes[h >> 24 & 3];
    c.root               = (int)(h % (uint64_t)s->size);
    c.in_place           = h >> 8 & 1;
    c.is_registered      = h >> 9 & 1;
    c.null_where_allowed = h >> 10 & 1;
    c.offset_in          = h >> 12 & 15;
    c.offset_out         = h >> 16 & 15;
    c.has_counts         = k != BROADCAST && k != REDUCE && k != ALL_REDUCE && pass % 2;
    return c;
}

/* Many members share few processors; their variations are spread over the numbers of members
 * instead. */
static bool is_turn(const session *s, int which, int of)
{
    return s->size <= 4 || which % of == s->size % of;
}

static bool is_legal(int type, int op)
{
    return op <= PEN_MAX || !types[type].is_float;
}

static void all_reductions(session *s)
{
    static const kind kinds[] = {REDUCE, ALL_REDUCE, REDUCE_SCATTER};
    for (int k = 0; k < 3; k++)
        for (int type = 0; type < TYPES; type++)
            for (int op = 0; op < OPS; op++)
                for (int pass = 0; pass < 2 && is_legal(type, op); pass++) {
                    test_call c = vary(s, kinds[k], type, op, pass);
                    if (is_turn(s, type + op + pass, 2) && !try(s, &c)) return;
                }
}

static void all_movements(session *s)
{
    static const kind kinds[] = {BROADCAST, GATHER, ALL_GATHER, SCATTER, ALL_TO_ALL};
    for (int k = 0; k < 5; k++)
        for (int type = 0; type < TYPES; type++)
            for (int pass = 0; pass < 4; pass++) {
                test_call c = vary(s, kinds[k], type, 0, pass);
                if (is_turn(s, type + pass / 2, 2) && !try(s, &c)) return;
            }
}

static void all_offsets(session *s)
{
    static const kind kinds[] = {BROADCAST, ALL_REDUCE, REDUCE_SCATTER, ALL_TO_ALL};
    for (size_t offset = 0; offset < 16; offset++)
        for (int k = 0; k < 4; k++)
            for (int in_place = 0; in_place < 2; in_place++) {
                test_call c  = vary(s, kinds[k], (int)offset % 4, PEN_SUM, 100 + (int)offset);
                c.n          = offset % 2 ? 4097 : 7;
                c.has_counts = false;
                c.in_place   = in_place;
                c.offset_in  = offset;
                c.offset_out = (offset * 7 + 3) % 16;
                if (is_turn(s, (int)offset, 3) && !try(s, &c)) return;
            }
}

static void all_scales(session *s)
{
    static const kind kinds[]  = {REDUCE, ALL_REDUCE, REDUCE_SCATTER};
    static const pen_op with[] = {PEN_SUM, PEN_AVG, PEN_MAX};
    for (int k = 0; k < 3; k++)
        for (int type = 0; type < TYPES; type++)
            for (int op = 0; op < 3; op++) {
                test_call c = vary(s, kinds[k], type, with[op], 200);
                c.is_scaled = true;
                if (is_turn(s, type + op, 2) && !try(s, &c)) return;
            }
}

static void large_ones(session *s)
{
    static const struct {
        kind kind;
        int type, largest;
    } rows[] = {{ALL_REDUCE, 0, 4},     {ALL_REDUCE, 2, 3}, {BROADCAST, 4, 4}, {REDUCE, 3, 2},
                {REDUCE_SCATTER, 0, 2}, {ALL_GATHER, 1, 3}, {ALL_TO_ALL, 6, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int in_place = (int)(i + (size_t)s->size) % 2;
        test_call c  = vary(s, rows[i].kind, rows[i].type, PEN_SUM, 300);
        if (s->size > rows[i].largest) continue;
        c.n          = LARGE;
        c.in_place   = in_place;
        c.has_counts = false;
        if (!try(s, &c)) return;
    }
}

static const char *illegal(pen_group *g, int type, int op)
{
    unsigned char x[8 * RANKS] = {0}, y[8 * RANKS] = {0};
    pen_dtype t         = types[type].type;
    pen_status status[] = {pen_reduce(g, x, y, 1, t, (pen_op)op, 0, NULL, NULL),
                           pen_all_reduce(g, x, y, 1, t, (pen_op)op, NULL, NULL),
                           pen_reduce_scatter(g, x, NULL, y, 1, t, (pen_op)op, NULL, NULL)};
    for (int i = 0; i < 3; i++)
        if (status[i] != PEN_UNSUPPORTED)
            return complaint("%s of %s is %s, not UNSUPPORTED", op_names[op], types[type].name,
                             pen_status_info(status[i])->name);
    return NULL;
}

static const char *no_type_of_wires(pen_group *g, pen_dtype t)
{
    unsigned char x[RANKS] = {0}, y[RANKS] = {0};
    HOLDS(pen_broadcast(g, x, 1, t, 0, NULL, NULL) == PEN_UNSUPPORTED);
    HOLDS(pen_reduce(g, x, y, 1, t, PEN_SUM, 0, NULL, NULL) == PEN_UNSUPPORTED);
    HOLDS(pen_all_reduce(g, x, y, 1, t, PEN_SUM, NULL, NULL) == PEN_UNSUPPORTED);
    HOLDS(pen_gather(g, x, 1, y, NULL, t, 0, NULL, NULL) == PEN_UNSUPPORTED);
    HOLDS(pen_all_gather(g, x, 1, y, NULL, t, NULL, NULL) == PEN_UNSUPPORTED);
    HOLDS(pen_scatter(g, x, NULL, y, 1, t, 0, NULL, NULL) == PEN_UNSUPPORTED);
    HOLDS(pen_reduce_scatter(g, x, NULL, y, 1, t, PEN_SUM, NULL, NULL) == PEN_UNSUPPORTED);
    HOLDS(pen_all_to_all(g, x, NULL, y, NULL, 1, t, NULL, NULL) == PEN_UNSUPPORTED);
    return NULL;
}

/* Refused at once, by every member itself; the group stays usable. */
static void illegal_pairs(session *s)
{
    for (int type = 0; type < TYPES && !s->first; type++)
        for (int op = 0; op < OPS && !s->first; op++) {
            if (is_legal(type, op)) continue;
            const char *wrong = illegal(s->b.g, type, op);
            if (wrong) s->first = strdup(wrong);
        }
    const char *wrong = no_type_of_wires(s->b.g, PEN_F8E4M3);
    if (!wrong) wrong = no_type_of_wires(s->b.g, PEN_F8E5M2);
    if (!wrong && pen_barrier(s->b.g, NULL, NULL) != PEN_OK) wrong = pen_last_error(NULL);
    if (wrong && !s->first) s->first = strdup(wrong);
}

/* Many calls in flight on one group, waited for from the last to the first. */
static const char *outstanding(const session *s)
{
    enum { MANY = 24, N = 501 };
    static float in[MANY][N], out[MANY][N];
    pen_req req[MANY];
    test_call c = {.kind = ALL_REDUCE, .size = s->size, .rank = s->rank, .node = s->node, .n = N};
    for (int i = 0; i < MANY; i++) {
        c.id = 5000 + (uint64_t)i;
        write_elements(&c, s->rank, N, (unsigned char *)in[i]);
        DO(pen_all_reduce(s->b.g, in[i], out[i], N, PEN_F32, PEN_SUM, NULL, &req[i]));
    }
    for (int i = MANY - 1; i >= 0; i--) {
        pen_result result = {0};
        DO(pen_wait(&req[i], &result));
        HOLDS(result.count == N);
        c.id              = 5000 + (uint64_t)i;
        const char *wrong = check_output(&c, (const unsigned char *)out[i]);
        if (wrong) return wrong;
    }
    return NULL;
}

static void asynchronous_calls(session *s)
{
    const char *wrong = outstanding(s);
    if (wrong) s->first = strdup(wrong);
}

/* In group order, which is not rank order: the last rank is position 0. */
static const char *backwards(const session *s)
{
    int ranks[RANKS], there[RANKS], node[RANKS];
    pen_group *g = NULL, *half = NULL;
    for (int i = 0; i < s->size; i++) {
        ranks[i] = s->size - 1 - i;
        node[i]  = s->node_of[ranks[i]];
    }
    DO(pen_group_new(s->b.g, ranks, s->size, &g));
    HOLDS(pen_size(g) == s->size && pen_rank(g) == s->size - 1 - s->rank);
    HOLDS(pen_group_ranks(g, there, RANKS) == s->size);
    HOLDS(memcmp(ranks, there, sizeof *ranks * (size_t)s->size) == 0);
    float x[64], sum[64];
    test_call c = {.kind = ALL_REDUCE, .size = s->size, .rank = pen_rank(g), .n = 64, .id = 6000};
    if (s->node != NULL) c.node = node;
    write_elements(&c, pen_rank(g), 64, (unsigned char *)x);
    DO(pen_all_reduce(g, x, sum, 64, PEN_F32, PEN_SUM, NULL, NULL));
    const char *wrong = check_output(&c, (const unsigned char *)sum);
    if (wrong) return wrong;
    /* Every second member; both halves at the same time, inside the reversed group. */
    DO(pen_group_split(g, s->rank % 2, s->rank, &half));
    int64_t mine = s->rank, total = 0, want = 0;
    DO(pen_all_reduce(half, &mine, &total, 1, PEN_I64, PEN_SUM, NULL, NULL));
    for (int r = s->rank % 2; r < s->size; r += 2) want += r;
    HOLDS(total == want && pen_rank(half) == s->rank / 2);
    pen_group_free(half);
    pen_group_free(g);
    return NULL;
}

/* The intended path, and whether the last call used it; the hook runs on this thread
 * or "pen-coll". */
static const char *meant;
static volatile bool has_carried;

static void note_carrier(const char *path, uint64_t seq, int step)
{
    (void)seq, (void)step;
    if (strcmp(path, meant) == 0) has_carried = true;
}

static void right_path(session *s)
{
    meant            = s->path->carrier;
    coll_fault_point = note_carrier;
    if (pen_barrier(s->b.g, NULL, NULL) != PEN_OK) s->first = strdup(pen_last_error(NULL));
    coll_fault_point = NULL;
    if (!s->first && s->size > 1 && !has_carried)
        s->first = strdup(complaint("%s had no part in it", meant));
}

static void groups(session *s)
{
    const char *wrong = backwards(s);
    if (wrong) s->first = strdup(wrong);
}

/* Integers may be folded in any order and use the requested algorithm; floats use one that keeps
 * the order. */
static void all_kinds(session *s)
{
    static const int two[] = {0, 6};
    for (int k = 0; k < KINDS; k++)
        for (int type = 0; type < 2; type++)
            for (int pass = 0; pass < 6; pass++) {
                test_call c = vary(s, (kind)k, two[type], pass % 2 ? PEN_AVG : PEN_SUM, 400 + pass);
                c.n         = sizes[1 + pass % 3];
                if (!try(s, &c)) return;
            }
}

/* ---- the board ------------------------------------------------------------------------------- */
typedef struct {
    const char *name;
    void (*member)(session *s);
    bool is_by_rank; /* the layout of nodes does not matter */
} suite;

static const suite suites[] = {
    {"calls_are_carried_by_the_path_that_is_meant", right_path, true},
    {"every_reduction_of_every_type_is_the_fold_in_the_job_s_order", all_reductions},
    {"every_movement_of_every_type_moves_the_right_bytes", all_movements, true},
    {"buffers_may_lie_anywhere", all_offsets, true},
    {"inputs_may_be_scaled", all_scales},
    {"large_calls_are_as_right_as_small_ones", large_ones},
    {"what_has_no_meaning_is_refused_on_every_member_alone", illegal_pairs, true},
    {"many_calls_may_be_outstanding", asynchronous_calls},
    {"groups_fold_in_their_own_order_and_do_not_disturb_each_other", groups},
};
enum { SUITES = sizeof suites / sizeof *suites };

static struct board {
    char complaint[COLL_TEST_PATHS][LAYOUTS][RANKS + 1][SUITES][COMPLAINT_BYTES];
    bool has_run[COLL_TEST_PATHS][LAYOUTS][RANKS + 1][SUITES][RANKS];
    int code[COLL_TEST_PATHS][LAYOUTS][RANKS + 1];
} * board;

typedef struct { /* what a job is to do */
    const coll_test_path *path;
    int layout;
} course;

/* has_large: room for two ranks with f32, and one with f64. */
static bool make_buffers(session *s, bool has_large)
{
    const size_t bytes =
        has_large ? (size_t)LARGE * 8 + 8 * MARGIN : (size_t)SMALL * 8 * RANKS + 4 * MARGIN;
    for (int registered = 0; registered < 2; registered++)
        for (int i = 0; i < 2; i++) {
            buffer *b = &s->b.memory[registered][i];
            b->bytes  = bytes;
            b->begin  = registered ? pen_alloc(s->b.ctx, bytes, PEN_HOST) : malloc(bytes);
            if (!b->begin) return false;
        }
    return true;
}

static void free_buffers(const session *s)
{
    for (int i = 0; i < 2; i++) {
        free(s->b.memory[0][i].begin);
        pen_free(s->b.memory[1][i].begin);
    }
}

static int member(pen_ctx *ctx, void *arg)
{
    const course *own = arg;
    ptrdiff_t p       = own->path - coll_test_paths;
    session s         = {.b = {.ctx = ctx, .g = pen_world(ctx)}, .path = own->path};
    s.size            = pen_size(s.b.g);
    s.rank            = pen_rank(s.b.g);
    if (layouts[own->layout].node != NULL) s.node = s.node_of;
    for (int r = 0; s.node != NULL && r < s.size; r++)
        s.node_of[r] = layouts[own->layout].node(r, s.size);
    if (!make_buffers(&s, s.size <= LARGE_RANKS)) return 1;
    for (int i = 0; i < SUITES; i++) {
        s.first = NULL;
        if (s.node == NULL || !suites[i].is_by_rank) suites[i].member(&s);
        board->has_run[p][own->layout][s.size][i][s.rank] = true;
        if (!s.first) continue;
        snprintf(board->complaint[p][own->layout][s.size][i], COMPLAINT_BYTES, "rank %d: %s",
                 s.rank, s.first);
        free((void *)s.first);
    }
    free_buffers(&s);
    return 0;
}

static int run_course(course own, int n)
{
    int node[RANKS];
    if (layouts[own.layout].node == NULL) return spawn_on(own.path, n, member, &own);
    for (int r = 0; r < n; r++) node[r] = layouts[own.layout].node(r, n);
    setenv("PENSTOCK_DETERMINISTIC", "node", 1);
    int code = spawn_on_nodes(own.path, n, node, member, &own);
    unsetenv("PENSTOCK_DETERMINISTIC");
    return code;
}

static int run_all(void **state)
{
    (void)state;
    const char *given = getenv("COLL_TEST_SEED");
    seed              = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("COLL_TEST_SEED=%llu\n", (unsigned long long)seed);
    board = shared_board(sizeof *board);
    if (!board) return -1;
    fill_halves();
    EACH_COURSE(path, layout, n)
    board->code[path - coll_test_paths][layout][n] = run_course((course){path, layout}, n);
    return 0;
}

static void holds_on_every_path_and_for_1_to_9_ranks(void **state)
{
    ptrdiff_t i = (const suite *)*state - suites;
    EACH_COURSE(path, layout, n)
    {
        ptrdiff_t p      = path - coll_test_paths;
        const char *text = board->complaint[p][layout][n][i], *name = layouts[layout].name;
        if (text[0]) fail_msg("%s, %s, %d ranks, %s", path->name, name, n, text);
        for (int r = 0; r < n; r++)
            if (!board->has_run[p][layout][n][i][r])
                fail_msg("%s, %s, %d ranks: rank %d never came so far; pen_spawn said %d",
                         path->name, name, n, r, board->code[p][layout][n]);
    }
}

/* ---- algorithms ------------------------------------------------------------------------------ */
static char (*algorithm_board)[COMPLAINT_BYTES];

static int member_of_algorithm(pen_ctx *ctx, void *arg)
{
    (void)arg;
    session s = {.b = {.ctx = ctx, .g = pen_world(ctx)}};
    s.size    = pen_size(s.b.g);
    s.rank    = pen_rank(s.b.g);
    if (!make_buffers(&s, false)) return 1;
    all_kinds(&s);
    if (s.first) snprintf(*algorithm_board, COMPLAINT_BYTES, "rank %d: %s", s.rank, s.first);
    free_buffers(&s);
    return s.first != NULL;
}

/* A rule for each kind that it supports. */
static void choose_always(const schedule_algorithm *a)
{
    char rules[400] = "";
    for (int k = 0; k < COLL_KINDS; k++) {
        size_t at = strlen(rules);
        if (a->fits((coll_kind)k, 2))
            snprintf(rules + at, sizeof rules - at, "%s:%s;", coll_kind_name((coll_kind)k),
                     a->name);
    }
    setenv("PENSTOCK_COLL_ALGORITHM", rules, 1);
}

static void every_algorithm_is_right_between_processes(void **state)
{
    (void)state;
    static const int ranks[4] = {2, 3, 4, 7};
    algorithm_board           = shared_board(sizeof *algorithm_board);
    assert_non_null(algorithm_board);
    for (int i = 0; schedule_all[i]; i++)
        for (int r = 0; r < ALGORITHM_RANKS; r++) {
            choose_always(schedule_all[i]);
            int code = spawn_on(&coll_test_paths[1], ranks[r], member_of_algorithm, NULL);
            if (code || (*algorithm_board)[0])
                fail_msg("%s, %d ranks, code %d: %s", schedule_all[i]->name, ranks[r], code,
                         *algorithm_board);
        }
    unsetenv("PENSTOCK_COLL_ALGORITHM");
}

static void every_job_ended_well(void **state)
{
    (void)state;
    EACH_COURSE(path, layout, n)
    assert_int_equal(board->code[path - coll_test_paths][layout][n], 0);
}

/* ---- the reference itself -------------------------------------------------------------------- */
static void the_reference_rounds_halves_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = half_value((uint16_t)h);
        if (!isnan(f)) assert_int_equal(half_bits(f), h);
        if (!isnan(bfloat_value((uint16_t)h)))
            assert_int_equal(bfloat_bits(bfloat_value((uint16_t)h)), h);
    }
    assert_int_equal(half_bits(65519.0f), 0x7bff);
    assert_int_equal(half_bits(65520.0f), 0x7c00);
    assert_int_equal(half_bits(1.0f + 0x1p-11f), 0x3c00);
    assert_int_equal(half_bits(1.0f + 3 * 0x1p-11f), 0x3c02);
    assert_int_equal(half_bits(0x1p-25f), 0);
    assert_int_equal(half_bits(3 * 0x1p-25f), 2);
    assert_int_equal(bfloat_bits(1.0f + 0x1p-8f), 0x3f80);
    assert_int_equal(bfloat_bits(1.0f + 3 * 0x1p-8f), 0x3f82);
}

int main(void)
{
    struct CMUnitTest tests[SUITES + 3] = {{0}};
    for (int i = 0; i < SUITES; i++)
        tests[i] = (struct CMUnitTest){.name          = suites[i].name,
                                       .test_func     = holds_on_every_path_and_for_1_to_9_ranks,
                                       .initial_state = (void *)&suites[i]};
    tests[SUITES] = (struct CMUnitTest)cmocka_unit_test(every_job_ended_well);
    tests[SUITES + 1] =
        (struct CMUnitTest)cmocka_unit_test(the_reference_rounds_halves_to_nearest_even);
    tests[SUITES + 2] =
        (struct CMUnitTest)cmocka_unit_test(every_algorithm_is_right_between_processes);
    alarm(LIMIT_S);
    return cmocka_run_group_tests(tests, run_all, NULL);
}
