/* gpt2_judge.c - rates a sample of gpt2 against its training text:
 *
 *     gpt2_judge TEXT|- SAMPLE|- [ORDER]
 *     gpt2_judge TEXT|-                      writes the text as gpt2 learns it
 *
 * The first prints one line of JSON: bits per byte of a counting model of that order (3) on the
 * last tenth of the text, after learning the rest; how many of the sample's words of at least four
 * letters are in the text; and the bytes of the longest run that sample and text share. "-": the
 * default text; no sample.
 */
#include "order3.h"
#include "text/text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_LEAST = 4, WORD_MOST = 63 };

typedef struct {
    size_t words, known;
} tally;

/* The next word at or after *at, in lower case; 0: none. */
static size_t next_word(const text *t, size_t *at, char word[WORD_MOST + 1])
{
    while (*at < t->n && !isalpha(t->bytes[*at])) ++*at;
    size_t n = 0;
    for (; *at < t->n && isalpha(t->bytes[*at]); ++*at)
        if (n < WORD_MOST) word[n++] = (char)tolower(t->bytes[*at]);
    word[n] = '\0';
    return n;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static tally count_words(const text *corpus, const text *sample)
{
    tally sum = {0};
    size_t n = 0, room             = corpus->n / 2 + 1;
    char word[WORD_MOST + 1], *key = word, **list = malloc(room * sizeof *list),
                              *pool = malloc(corpus->n * 2 + 1);
    if (!list || !pool) exit(1);
    char *to = pool;
    for (size_t at = 0; next_word(corpus, &at, word) > 0;) {
        list[n++] = to;
        to        = stpcpy(to, word) + 1;
    }
    qsort(list, n, sizeof *list, by_name);
    for (size_t at = 0, length; (length = next_word(sample, &at, word)) > 0;) {
        if (length < WORD_LEAST) continue;
        sum.words++;
        sum.known += bsearch(&key, list, n, sizeof *list, by_name) != NULL;
    }
    free(list);
    free(pool);
    return sum;
}

/* ---- the longest common run: bisect its length, and look up every run of that length ----------- */
#define BASE UINT64_C(0x100000001b3)

typedef struct {
    uint64_t hash;
    size_t at;
} run;

static int by_hash(const void *a, const void *b)
{
    const run *x = a, *y = b;
    return (x->hash > y->hash) - (x->hash < y->hash);
}

static uint64_t power(size_t n)
{
    uint64_t p = 1;
    for (size_t i = 0; i < n; i++) p *= BASE;
    return p;
}

static uint64_t hash_of(const uint8_t *p, size_t n)
{
    uint64_t h = 0;
    for (size_t i = 0; i < n; i++) h = h * BASE + p[i] + 1;
    return h;
}

static bool is_shared(const text *corpus, const text *sample, size_t length, size_t *where)
{
    if (length > sample->n || length > corpus->n) return false;
    const size_t runs  = sample->n - length + 1;
    const uint64_t top = power(length - 1);
    run *list          = malloc(runs * sizeof *list);
    if (!list) exit(1);
    for (size_t i = 0; i < runs; i++) list[i] = (run){hash_of(sample->bytes + i, length), i};
    qsort(list, runs, sizeof *list, by_hash);
    bool found = false;
    uint64_t h = hash_of(corpus->bytes, length);
    for (size_t i = 0; !found; i++) {
        const run *hit = bsearch(&(run){.hash = h}, list, runs, sizeof *list, by_hash);
        found          = hit && memcmp(sample->bytes + hit->at, corpus->bytes + i, length) == 0;
        if (found) *where = hit->at;
        if (i + length == corpus->n) break;
        h = (h - (corpus->bytes[i] + 1) * top) * BASE + corpus->bytes[i + length] + 1;
    }
    free(list);
    return found;
}

static size_t longest_run(const text *corpus, const text *sample, size_t *where)
{
    size_t low = 0, high = sample->n;
    while (low < high) {
        const size_t middle = (low + high + 1) / 2;
        if (is_shared(corpus, sample, middle, where))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static double bits_of(const text *corpus, int order)
{
    const size_t cut = text_train_bytes(corpus);
    order3 *m        = order3_new(order);
    if (!m || !order3_learn(m, corpus->bytes, cut)) exit(1);
    const double bits = order3_bits(m, corpus->bytes + cut, corpus->n - cut);
    order3_free(m);
    return bits;
}

int main(int argc, char **argv)
{
    text corpus, sample = {0};
    char why[TEXT_WHY_BYTES];
    const int order = argc > 3 ? atoi(argv[3]) : ORDER3_MOST;
    if (argc < 2 || order < 0 || order > ORDER3_MOST) {
        fputs("usage: gpt2_judge TEXT|- [SAMPLE|- [ORDER]]\n", stderr);
        return 2;
    }
    if (!text_load(&corpus, strcmp(argv[1], "-") == 0 ? NULL : argv[1], why) ||
        (argc > 2 && strcmp(argv[2], "-") != 0 && !text_load(&sample, argv[2], why))) {
        fprintf(stderr, "gpt2_judge: %s\n", why);
        return 1;
    }
    if (argc == 2) return fwrite(corpus.bytes, 1, corpus.n, stdout) == corpus.n ? 0 : 1;
    size_t where        = 0;
    const tally words   = count_words(&corpus, &sample);
    const size_t shared = longest_run(&corpus, &sample, &where);
    printf("{\"order\": %d, \"bits_per_byte\": %.4f, \"words\": %zu, \"words_known\": %zu, "
           "\"longest_run\": %zu}\n",
           order, bits_of(&corpus, order), words.words, words.known, shared);
    if (shared > 0)
        fprintf(stderr, "longest run: %.*s\n", (int)shared, (const char *)sample.bytes + where);
    text_free(&corpus);
    text_free(&sample);
    return 0;
}
