/* init.c - Philox4x32-10, and distributions made from it. */
#include "common/compute/init.h"

#include "common/base/config.h"
#include "common/base/why.h"

#include <math.h>
#include <string.h>

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

/* ---- logarithm, sine and cosine -------------------------------------------------------------- */
/* x in (0, 1].  ln m = 2 atanh((m - 1) / (m + 1)) for m in [sqrt 1/2, sqrt 2); the first omitted
 * term is below 1e-18 of the sum. */
static double ln(double x)
{
    int exponent;
    double m = frexp(x, &exponent);
    if (m < 0.70710678118654752) {
        m *= 2;
        exponent--;
    }
    const double s = (m - 1) / (m + 1), s2 = s * s;
    double sum = 0;
    for (int k = 23; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
    return 2 * s * sum + exponent * 0.69314718055994531;
}

/* Cosine and sine of 2 pi v, v in [0, 1): Taylor series within an eighth of a turn; error below 1e-17. */
static void turn(double v, double *cosine, double *sine)
{
    const int quarter = (int)(4 * v + 0.5);
    const double x = 6.2831853071795865 * (v - quarter * 0.25), x2 = x * x;
    double s = 0, c = 0;
    for (int k = 17; k >= 1; k -= 2) s = 1 - s * x2 / ((k + 1) * (k + 2));
    for (int k = 16; k >= 0; k -= 2) c = 1 - c * x2 / ((k + 1) * (k + 2));
    s *= x;
    switch (quarter & 3) {
    case 0: *cosine = c, *sine = s; break;
    case 1: *cosine = -s, *sine = c; break;
    case 2: *cosine = -c, *sine = -s; break;
    default: *cosine = s, *sine = -c; break;
    }
}

/* ---- values ---------------------------------------------------------------------------------- */
/* Elements 4 block to 4 block + 3. */
static void init_block(const init_rule *rule, uint64_t key, uint64_t row, uint64_t block,
                       float to[4])
{
    const double scale        = 1.0 / 4294967296.0;
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)row,
                                 (uint32_t)(row >> 32)};
    uint32_t word[4];
    init_philox(key, counter, word);
    if (rule->kind == INIT_UNIFORM) {
        for (int i = 0; i < 4; i++)
            to[i] = (float)(rule->a + (rule->b - rule->a) * (word[i] * scale));
        return;
    }
    for (int i = 0; i < 4; i += 2) {
        double cosine, sine;
        const double radius = rule->b * sqrt(-2 * ln(((double)word[i] + 1) * scale));
        turn(word[i + 1] * scale, &cosine, &sine);
        to[i]     = (float)(rule->a + radius * cosine);
        to[i + 1] = (float)(rule->a + radius * sine);
    }
}

static void draw(const init_rule *rule, uint64_t key, uint64_t row, uint64_t start, size_t n,
                 float *to)
{
    float block[4];
    if (rule->kind == INIT_ZERO || rule->kind == INIT_CONST) {
        for (size_t i = 0; i < n; i++) to[i] = (float)rule->a;
        return;
    }
    for (size_t i = 0; i < n;) {
        const size_t first = (start + i) % 4, take = 4 - first < n - i ? 4 - first : n - i;
        init_block(rule, key, row, (start + i) / 4, block);
        memcpy(to + i, block + first, take * sizeof *to);
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
