/* click.c - predicts clicks: logistic regression over sparse keys, in a table on servers, trained by FTRL.
 *
 *   penstock run --nproc-per-node 2 --servers 2 click [--batch N] [--every STEPS] [--test SAMPLES]
 *   penstock run --servers 3 --store snapshots --snapshot-every 500 click, and --resume to go on
 *
 * The data are made up, by a process that is known, so that the best possible prediction is known too.  A sample is a
 * user, an item (both from a Zipf distribution: a few are seen all the time, most of them rarely) and an hour.  Its chance
 * of a click is the logistic function of a bias and four weights: of the user, of the item, of the hour, and of the pair
 * (group of the user, genre of the item), a feature that is crossed from two others.  The model has one weight for each of
 * these keys.  Quality is the area under the ROC curve (AUC) over samples that are not trained on: the chance that a
 * sample with a click gets a higher prediction than one without.
 * Source  FTRL and the features: McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013.
 */
#include "penstock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    USERS     = 2000,
    ITEMS     = 500,
    GROUPS    = 20,
    GENRES    = 25,
    HOURS     = 24,
    KEYS      = 3,
    BATCH_MAX = 65536
};
enum { FIELD_USER = 1, FIELD_ITEM, FIELD_CROSS, FIELD_HOUR };

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != PEN_OK) return fprintf(stderr, "click: %s\n", pen_last_error(NULL)), 1;      \
    } while (0)

typedef struct { /* samples, side by side */
    size_t n;
    uint64_t *key; /* [n][KEYS] */
    uint32_t *hour;
    float *clicked, *best; /* best: the true logit */
    float *weight;         /* [n][KEYS] of the keys, pulled; then their gradients */
} samples;

static double user_below[USERS], item_below[ITEMS]; /* distribution functions */
static float hours[HOURS], grad_hours[HOURS];       /* the dense part of the model */
static long batch = 2048, every = 250, n_test = 20000;

/* ---- the process ----------------------------------------------------------------------------- */
static uint64_t mix(uint64_t x) /* the finalizer of splitmix64, public domain */
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double uniform(uint64_t *state) /* 0 <= u < 1 */
{
    return (double)(mix(*state += 0x9e3779b97f4a7c15u) >> 11) / 9007199254740992.0;
}

/* Normal with this deviation; a pure function of the key. */
static float true_weight(uint64_t key, double deviation)
{
    uint64_t state  = key * 0x9e3779b97f4a7c15u;
    const double u1 = uniform(&state), u2 = uniform(&state);
    return (float)(deviation * sqrt(-2 * log(1 - u1)) * cos(6.283185307179586 * u2));
}

static void make_zipf(double *below, int n, double exponent)
{
    double sum = 0;
    for (int i = 0; i < n; i++) below[i] = sum += pow(i + 1, -exponent);
    for (int i = 0; i < n; i++) below[i] /= sum;
}

static uint64_t draw(const double *below, int n, double u)
{
    int low = 0, high = n - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (below[middle] <= u)
            low = middle + 1;
        else
            high = middle;
    }
    return (uint64_t)low;
}

static uint64_t key_of(uint64_t field, uint64_t value)
{
    return field << 56 | value;
}

static double logistic(double x)
{
    return 1 / (1 + exp(-x));
}

/* Sample `number` of all, into place i: a function of the number alone, so any rank can make any sample. */
static void make_sample(samples *s, size_t i, uint64_t number)
{
    uint64_t state      = mix(number + 1);
    const uint64_t user = draw(user_below, USERS, uniform(&state));
    const uint64_t item = draw(item_below, ITEMS, uniform(&state));
    const uint64_t hour = (uint64_t)(uniform(&state) * HOURS);
    uint64_t *key       = &s->key[i * KEYS];
    key[0]              = key_of(FIELD_USER, user);
    key[1]              = key_of(FIELD_ITEM, item);
    key[2]              = key_of(FIELD_CROSS, user % GROUPS * GENRES + item % GENRES);
    s->hour[i]          = (uint32_t)hour;
    s->best[i]          = -1.5f + true_weight(key[0], 0.5) + true_weight(key[1], 0.7) +
                 true_weight(key[2], 0.7) + true_weight(key_of(FIELD_HOUR, hour), 0.3);
    s->clicked[i] = uniform(&state) < logistic(s->best[i]);
}

/* Those behind 2^62 are for testing. */
static void make_samples(samples *s, uint64_t first)
{
    for (size_t i = 0; i < s->n; i++) make_sample(s, i, first + i);
}

static int allocate(samples *s, size_t n)
{
    *s = (samples){.n       = n,
                   .key     = malloc(n * KEYS * sizeof(uint64_t)),
                   .hour    = malloc(n * sizeof(uint32_t)),
                   .clicked = malloc(n * sizeof(float)),
                   .best    = malloc(n * sizeof(float)),
                   .weight  = malloc(n * KEYS * sizeof(float))};
    return s->key && s->hour && s->clicked && s->best && s->weight;
}

/* ---- quality --------------------------------------------------------------------------------- */
typedef struct {
    float score;
    int clicked;
} scored;

static int by_score(const void *a, const void *b)
{
    const float x = ((const scored *)a)->score, y = ((const scored *)b)->score;
    return x < y ? -1 : x > y;
}

/* The area under the ROC curve, by ranks; equal scores count half. */
static double auc_of(const samples *s, const float *score)
{
    scored *all  = malloc(s->n * sizeof *all);
    double ranks = 0, clicks = 0;
    if (all == NULL) return NAN;
    for (size_t i = 0; i < s->n; i++) all[i] = (scored){score[i], s->clicked[i] > 0};
    qsort(all, s->n, sizeof *all, by_score);
    for (size_t i = 0, same; i < s->n; i += same) {
        for (same = 0; i + same < s->n && all[i + same].score == all[i].score;) same++;
        for (size_t k = 0; k < same; k++)
            if (all[i + k].clicked) ranks += (double)i + (double)(same + 1) / 2, clicks++;
    }
    free(all);
    return (ranks - clicks * (clicks + 1) / 2) / (clicks * ((double)s->n - clicks));
}

/* ---- the model ------------------------------------------------------------------------------- */
static int pull(pen_table *t, samples *s)
{
    const pen_kv kv = {.keys = s->key, .n = s->n * KEYS, .out = s->weight, .out_cap = s->n * KEYS};
    TRY(pen_kv_pull(t, &kv, NULL, NULL));
    return 0;
}

static double logit(const samples *s, size_t i)
{
    const float *w = &s->weight[i * KEYS];
    return (double)hours[s->hour[i]] + (double)w[0] + (double)w[1] + (double)w[2];
}

/* The mean over all ranks is the gradient of the whole batch's sum, over `size` ranks with equal shares. */
static double gradients(samples *s, int size)
{
    double loss = 0;
    memset(grad_hours, 0, sizeof grad_hours);
    for (size_t i = 0; i < s->n; i++) {
        const double p = logistic(logit(s, i));
        const float g  = (float)((p - (double)s->clicked[i]) * size);
        loss -= log(fmax(s->clicked[i] > 0 ? p : 1 - p, 1e-12));
        grad_hours[s->hour[i]] += g;
        for (int k = 0; k < KEYS; k++) s->weight[i * KEYS + (size_t)k] = g;
    }
    return loss / (double)s->n;
}

static int evaluate(pen_table *t, samples *test, int64_t step, double loss, double best)
{
    float *score = malloc(test->n * sizeof *score);
    if (score == NULL || pull(t, test) != 0) return 1;
    for (size_t i = 0; i < test->n; i++) score[i] = (float)logit(test, i);
    printf("step %lld  loss %.4f  AUC %.4f  (best possible %.4f)\n", (long long)step, loss,
           auc_of(test, score), best);
    fflush(stdout);
    free(score);
    return 0;
}

static int train(pen_ctx *ctx, pen_table *t)
{
    pen_step step;
    pen_status status;
    samples mine, test;
    double loss    = 0;
    const int size = pen_size(pen_world(ctx)), rank = pen_rank(pen_world(ctx));
    if (!allocate(&mine, (size_t)(batch / size)) || !allocate(&test, (size_t)n_test)) return 1;
    make_samples(&test, (uint64_t)1 << 62);
    const double best = auc_of(&test, test.best);
    int64_t last      = -1;
    while ((status = pen_step_begin(ctx, &step)) == PEN_OK) {
        make_samples(&mine, ((uint64_t)step.index * (uint64_t)size + (uint64_t)rank) * mine.n);
        if (pull(t, &mine) != 0) return 1;
        TRY(pen_step_scalar(ctx, "loss", gradients(&mine, size)));
        const pen_kv kv = {.keys = mine.key, .n = mine.n * KEYS, .in = mine.weight};
        TRY(pen_kv_push(t, &kv, NULL, NULL));
        TRY(pen_ready(ctx, NULL, PEN_ALL));
        TRY(pen_step_end(ctx, &step));
        TRY(pen_step_total(ctx, "loss", PEN_AVG, &loss));
        last = step.index + 1;
        if (rank == 0 && last % every == 0 && evaluate(t, &test, last, loss, best) != 0) return 1;
    }
    if (status != PEN_END) return fprintf(stderr, "click: %s\n", pen_last_error(NULL)), 1;
    return rank == 0 && last > 0 && last % every != 0 ? evaluate(t, &test, last, loss, best) : 0;
}

static int read_flags(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        long *number = strcmp(argv[i], "--batch") == 0   ? &batch
                       : strcmp(argv[i], "--every") == 0 ? &every
                       : strcmp(argv[i], "--test") == 0  ? &n_test
                                                         : NULL;
        if (number == NULL || (*number = atol(argv[i + 1])) < 1) return 0;
    }
    return argc % 2 == 1 && batch <= BATCH_MAX;
}

int main(int argc, char **argv)
{
    static const char *const settings[] = {"optim=ftrl lr=0.1 l1=0.1 l2=1", "steps=1500", NULL};
    pen_ctx *ctx;
    pen_table *t;
    if (!read_flags(argc, argv))
        return fprintf(stderr, "usage: click [--batch N] [--every STEPS] [--test SAMPLES]\n"), 2;
    make_zipf(user_below, USERS, 0.99);
    make_zipf(item_below, ITEMS, 0.99);
    TRY(pen_init(settings, &ctx));
    if (batch < pen_size(pen_world(ctx)))
        return fprintf(stderr, "click: --batch is below the workers\n"), 2;
    const pen_tensor_desc d = {.name  = "hours",
                               .ndim  = 1,
                               .shape = {HOURS},
                               .param = hours,
                               .grad  = grad_hours,
                               .init  = "zero"};
    TRY(pen_register(ctx, &d, NULL));
    TRY(pen_table_new(ctx, &(pen_table_desc){.name = "weights", .dim = 1, .flags = PEN_KEYS_ANY},
                      &t));
    TRY(pen_commit(ctx));
    if (train(ctx, t) != 0) return 1;
    return pen_finalize(ctx) != PEN_OK;
}
