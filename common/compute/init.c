/* init.c - Philox4x32-10, and distributions made from it. */
#include "common/compute/init.h"

#include "common/base/config.h"
#include "common/base/why.h"

#include <math.h>
#include <string.h>

enum { BLOCKS = 16 }; /* drawn at a time */

/* ---- init strings ---------------------------------------------------------------------------- */
typedef struct {
    double v, mean, std, a, b;
} init_words;

#define WORD(word, usual, least)                                                                   \
    {                                                                                              \
        .name = #word, .type = CONFIG_F64, .offset = offsetof(init_words, word), .dfl = usual,     \
        .min = least, .max = 1e30                                                                  \
    }
static const config_row zero_rows[]    = {{0}};
static const config_row const_rows[]   = {WORD(v, "0", -1e30), {0}};
static const config_row normal_rows[]  = {WORD(mean, "0", -1e30), WORD(std, "1", 0), {0}};
static const config_row uniform_rows[] = {WORD(a, "0", -1e30), WORD(b, "1", -1e30), {0}};

static const struct {
    const char *name;
    const config_row *rows;
} kinds[] = {[INIT_ZERO]    = {"zero", zero_rows},
             [INIT_CONST]   = {"const", const_rows},
             [INIT_NORMAL]  = {"normal", normal_rows},
             [INIT_UNIFORM] = {"uniform", uniform_rows}};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static void set_rule(init_rule *rule, init_kind kind, const init_words *w)
{
    *rule = (init_rule){.kind = kind};
    if (kind == INIT_CONST) rule->a = w->v;
    if (kind == INIT_NORMAL) rule->a = w->mean;
    if (kind == INIT_NORMAL) rule->b = w->std;
    if (kind == INIT_UNIFORM) rule->a = w->a;
    if (kind == INIT_UNIFORM) rule->b = w->b;
}

pen_status init_parse(const char *init, init_rule *rule, pen_error *why)
{
    const size_t n = strcspn(init, " ");
    init_words w   = {0};
    for (int k = 0; k < N_KINDS; k++) {
        if (strlen(kinds[k].name) != n || memcmp(kinds[k].name, init, n) != 0) continue;
        config_defaults(kinds[k].rows, &w);
        if (config_from_words(kinds[k].rows, &w, init + n, why) != PEN_OK) return why->status;
        set_rule(rule, (init_kind)k, &w);
        return PEN_OK;
    }
    return why_set(
        why, PEN_BAD_SETTING,
        "init '%.64s' is none of \"zero\", \"const v=\", \"normal mean= std=\", \"uniform a= b=\"",
        init);
}

/* ---- bits ------------------------------------------------------------------------------------ */
uint64_t init_key(uint64_t seed, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name != '\0'; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    for (int i = 0; i < 8; i++) hash = (hash ^ (seed >> (8 * i) & 0xff)) * 0x100000001b3u;
    return hash;
}

void init_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* ---- logarithm, sine and cosine: without branches, so that loops over them become vector instructions ---------- */
/* x in (0, 1], normal.  ln m = 2 atanh((m - 1) / (m + 1)) for m in [sqrt 1/2, sqrt 2); the first omitted term is below
 * 1e-18 of the sum. */
static inline double ln(double x)
{
    const uint64_t bits_of_1 = (uint64_t)1023 << 52, bits_of_least_m = 0x3fe6a09e667f3bcd;
    uint64_t bits;
    double m;
    memcpy(&bits, &x, sizeof bits);
    const int32_t exponent = (int32_t)((bits - bits_of_least_m + bits_of_1) >> 52) - 1023;
    bits -= (uint64_t)exponent << 52;
    memcpy(&m, &bits, sizeof m);
    const double s = (m - 1) / (m + 1), s2 = s * s;
    double sum = 0;
    for (int k = 23; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
    return 2 * s * sum + exponent * 0.69314718055994531;
}

/* Cosine and sine of 2 pi v, v in [0, 1): Taylor series within an eighth of a turn; the first omitted term is below
 * 1e-17. */
static inline void turn(double v, double *cosine, double *sine)
{
    const int quarter = (int)(4 * v + 0.5);
    const double x = 6.2831853071795865 * (v - quarter * 0.25), x2 = x * x;
    double s = 0, c = 0;
    for (int k = 17; k >= 1; k -= 2) s = 1 - s * x2 * (1.0 / ((k + 1) * (k + 2)));
    for (int k = 16; k >= 0; k -= 2) c = 1 - c * x2 * (1.0 / ((k + 1) * (k + 2)));
    s *= x;
    const double on_x = quarter & 1 ? s : c, on_y = quarter & 1 ? c : s;
    *cosine = (quarter + 1) & 2 ? -on_x : on_x;
    *sine   = quarter & 2 ? -on_y : on_y;
}

/* ---- values ---------------------------------------------------------------------------------- */
static const double word_scale = 1.0 / 4294967296.0;

/* Elements 0 and 1 of n blocks, or 2 and 3. */
static void draw_normal(const init_rule *rule, const uint32_t u[BLOCKS], const uint32_t v[BLOCKS],
                        size_t n, float *to)
{
    float even[BLOCKS], odd[BLOCKS];
    for (size_t i = 0; i < n; i++) {
        double cosine, sine;
        const double radius = rule->b * sqrt(-2 * ln(((double)u[i] + 1) * word_scale));
        turn(v[i] * word_scale, &cosine, &sine);
        even[i] = (float)(rule->a + radius * cosine);
        odd[i]  = (float)(rule->a + radius * sine);
    }
    for (size_t i = 0; i < n; i++) {
        to[4 * i]     = even[i];
        to[4 * i + 1] = odd[i];
    }
}

/* n blocks of four elements, at most BLOCKS. */
static void draw_blocks(const init_rule *rule, uint64_t key, uint64_t row, uint64_t first, size_t n,
                        float to[4 * BLOCKS])
{
    uint32_t word[4][BLOCKS];
    for (size_t i = 0; i < n; i++) {
        const uint64_t block      = first + i;
        const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)row,
                                     (uint32_t)(row >> 32)};
        uint32_t of[4];
        init_philox(key, counter, of);
        for (int w = 0; w < 4; w++) word[w][i] = of[w];
    }
    if (rule->kind == INIT_NORMAL) {
        draw_normal(rule, word[0], word[1], n, to);
        draw_normal(rule, word[2], word[3], n, to + 2);
        return;
    }
    for (size_t i = 0; i < n; i++)
        for (int w = 0; w < 4; w++)
            to[4 * i + w] = (float)(rule->a + (rule->b - rule->a) * (word[w][i] * word_scale));
}

static void draw(const init_rule *rule, uint64_t key, uint64_t row, uint64_t start, size_t n,
                 float *to)
{
    float some[4 * BLOCKS];
    if (rule->kind == INIT_ZERO || rule->kind == INIT_CONST) {
        for (size_t i = 0; i < n; i++) to[i] = (float)rule->a;
        return;
    }
    for (size_t i = 0; i < n;) {
        const size_t skip = (start + i) % 4, room = 4 * BLOCKS - skip;
        const size_t take = room < n - i ? room : n - i;
        draw_blocks(rule, key, row, (start + i) / 4, (skip + take + 3) / 4, some);
        memcpy(to + i, some + skip, take * sizeof *to);
        i += take;
    }
}

void init_values(const init_rule *rule, uint64_t key, uint64_t start, size_t n, float *to)
{
    draw(rule, key, 0, start, n, to);
}

void init_row(const init_rule *rule, uint64_t key, uint64_t row, uint64_t start, size_t n,
              float *to)
{
    draw(rule, key, row, start, n, to);
}
