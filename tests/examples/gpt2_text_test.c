/* gpt2_text_test.c - the text of gpt2 on its way to numbers and back: files, pieces, tokens, order,
 * sampling; and the counting model that measures its quality. */
#include "order3.h"
#include "pieces.h"
#include "text/reader.h"
#include "sample.h"
#include "text/text.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

/* ---- files ----------------------------------------------------------------------------------- */
typedef struct {
    char dir[64], path[128];
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state     = f;
    if (!f) return -1;
    strcpy(f->dir, "/tmp/gpt2_text_test.XXXXXX");
    return mkdtemp(f->dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    static const char *const names[] = {"a.txt", "a.bin", "b.bin", "vocab.json", "merges.txt"};
    fixture *f                       = *state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(f->path, sizeof f->path, "%s/%s", f->dir, names[i]);
        unlink(f->path);
    }
    const int left = rmdir(f->dir);
    free(f);
    return left;
}

static const char *put(fixture *f, const char *name, const void *bytes, size_t n)
{
    snprintf(f->path, sizeof f->path, "%s/%s", f->dir, name);
    FILE *file = fopen(f->path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    return f->path;
}

/* Text with repetitions, so that packers have something to do. */
static size_t make_prose(uint8_t *to, size_t n)
{
    static const char *const words[] = {"and ",     "the ",   "earth ", "was ",
                                        "without ", "form\n", "void, ", "light: "};
    size_t made                      = 0;
    for (uint32_t x = 1; made + 16 < n; x = x * 1664525 + 1013904223)
        made = (size_t)(stpcpy((char *)to + made, words[x >> 29]) - (char *)to);
    return made;
}

/* ---- .Z: an encoder, written from the description in compress(1) -------------------------------- */
typedef struct {
    uint8_t *out;
    size_t bits, group;
    int width;
} packer;

static void emit(packer *p, unsigned code)
{
    for (int i = 0; i < p->width; i++, p->bits++)
        p->out[3 + p->bits / 8] |= (uint8_t)((code >> i & 1) << p->bits % 8);
}

static void widen(packer *p, int width)
{
    const size_t group = (size_t)p->width * 8;
    p->bits            = p->group + (p->bits - p->group + group - 1) / group * group;
    p->group           = p->bits;
    p->width           = width;
}

/* clear_at: clears the table once it has that many codes; 0: never. */
static size_t pack(const uint8_t *in, size_t n, int width_most, unsigned clear_at, uint8_t *out)
{
    static struct {
        unsigned prefix;
        uint8_t byte;
    } table[1 << 16];
    packer p      = {.out = out, .width = 9};
    unsigned used = 257;
    out[0]        = 0x1f;
    out[1]        = 0x9d;
    out[2]        = (uint8_t)(0x80 | width_most);
    for (size_t at = 0; at < n;) {
        unsigned code = in[at++], next;
        while (at < n) {
            for (next = 257; next < used; next++)
                if (table[next].prefix == code && table[next].byte == in[at]) break;
            if (next == used) break;
            code = next;
            at++;
        }
        emit(&p, code);
        if (at < n && used < 1u << width_most) {
            table[used].prefix = code;
            table[used++].byte = in[at];
        }
        /* the decoder is one entry behind */
        if (p.width < width_most && used - 1 > (1u << p.width) - 1) widen(&p, p.width + 1);
        if (clear_at && used >= clear_at) {
            emit(&p, 256);
            widen(&p, 9);
            used = 257;
        }
    }
    return 3 + (p.bits + 7) / 8;
}

enum { PROSE = 40000 };

/* ---- text ------------------------------------------------------------------------------------ */
static void test_a_damaged_packed_text_is_refused_or_another_text(void **state)
{
    fixture *f     = *state;
    uint8_t *prose = calloc(1, PROSE), *packed = calloc(1, 2 * PROSE);
    const size_t n = make_prose(prose, PROSE), m = pack(prose, n, 16, 0, packed);
    char why[TEXT_WHY_BYTES];
    int refusals = 0;
    for (size_t i = 0; i < 200; i++) {
        text t;
        const size_t at = 3 + i * (m - 3) / 200;
        packed[at] ^= 0x40;
        put(f, "a.txt", packed, m);
        why[0] = '\0';
        if (text_load(&t, f->path, why)) {
            text_free(&t);
        } else {
            assert_non_null(strstr(why, f->path));
            refusals++;
        }
        packed[at] ^= 0x40;
    }
    assert_true(refusals > 0);
    free(prose);
    free(packed);
}

static void test_a_text_is_read_plain_gzipped_and_compressed(void **state)
{
    fixture *f     = *state;
    uint8_t *prose = calloc(1, PROSE), *packed = calloc(1, 2 * PROSE);
    const size_t n = make_prose(prose, PROSE);
    char why[TEXT_WHY_BYTES];
    for (int kind = 0; kind < 3; kind++) {
        text t;
        if (kind == 0) put(f, "a.txt", prose, n);
        if (kind == 1) {
            gzFile file = gzopen(f->path, "wb");
            assert_int_equal(gzwrite(file, prose, (unsigned)n), n);
            assert_int_equal(gzclose(file), Z_OK);
        }
        if (kind == 2) put(f, "a.txt", packed, pack(prose, n, 14, 0, packed));
        assert_true(text_load(&t, f->path, why));
        assert_int_equal(t.n, n);
        assert_memory_equal(t.bytes, prose, n);
        assert_int_equal(text_train_bytes(&t), n - n / 10);
        text_free(&t);
    }
    free(prose);
    free(packed);
}

static void test_the_book_of_bible_kjv_text_gives_its_verses_without_numbers(void **state)
{
    static const char book[]   = "A title: no number before it\nGe1:1 In the beginning\nGe1:2 And "
                                 "the earth\nRev22:21 Amen.\n";
    static const char verses[] = "In the beginning\nAnd the earth\nAmen.\n";
    fixture *f                 = *state;
    uint8_t file[1024]         = "EC02Compressed Data File";
    char why[TEXT_WHY_BYTES];
    text t;
    file[91]       = 1; /* one window: two offsets */
    const size_t n = 100 + pack((const uint8_t *)book, sizeof book - 1, 16, 0, file + 100);
    assert_true(text_load(&t, put(f, "a.txt", file, n), why));
    assert_int_equal(t.n, sizeof verses - 1);
    assert_memory_equal(t.bytes, verses, t.n);
    text_free(&t);

    file[88] = 0x7f; /* two billion windows */
    assert_false(text_load(&t, put(f, "a.txt", file, n), why));
    assert_non_null(strstr(why, "is damaged: it has no text where its head says"));
}

static void test_texts_that_are_not_there_or_empty_get_a_sentence(void **state)
{
    fixture *f = *state;
    char why[TEXT_WHY_BYTES];
    text t;
    assert_false(text_load(&t, "/nowhere/at/all", why));
    assert_string_equal(why, "cannot open /nowhere/at/all: No such file or directory");
    assert_false(text_load(&t, put(f, "a.txt", "", 0), why));
    assert_non_null(strstr(why, "a.txt is empty"));
}

/* ---- pieces ---------------------------------------------------------------------------------- */
/* Right column: the output of Python's regex module for GPT-2's pattern, '|' between pieces. */
static const char *const pieces[][2] = {
    {"In the beginning", "In| the| beginning"},
    {"I'll say: they're we've it's", "I|'ll| say|:| they|'re| we|'ve| it|'s"},
    {"don'T it''s 's", "don|'|T| it|''|s| '|s"},
    {"a  b   c", "a| | b|  | c"},
    {"end   ", "end|   "},
    {"x\n\n y\t\tz", "x|\n\n| y|\t|\t|z"},
    {"12 345.67,8", "12| 345|.|67|,|8"},
    {" \xc3\xa9t\xc3\xa9 \xe6\xbc\xa2\xe5\xad\x97!\xc2\xb2",
     " \xc3\xa9t\xc3\xa9| \xe6\xbc\xa2\xe5\xad\x97|!|\xc2\xb2"},
    {"a\xc2\xa0\xc2\xa0 b", "a|\xc2\xa0\xc2\xa0| b"},
    {"e\xcc\x81 \xf0\x9f\x98\x80x", "e|\xcc\x81| \xf0\x9f\x98\x80|x"},
    {"a\xff\xfe b\xc3", "a|\xff\xfe| b|\xc3"}, /* not UTF-8: as other characters */
};

static void test_pieces_are_those_of_gpt2s_pattern(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        const char *in = pieces[i][0];
        char got[256] = "", *to = got;
        for (size_t at = 0, n = strlen(in), length; at < n; at += length) {
            length = pieces_next((const uint8_t *)in, at, n);
            assert_in_range(length, 1, n - at);
            if (at > 0) *to++ = '|';
            to = mempcpy(to, in + at, length);
        }
        *to = '\0';
        assert_string_equal(got, pieces[i][1]);
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */
/* vocab.json of all bytes, then the merges in their order, as OpenAI's encoder.py numbers them (bytes_to_unicode). */
static void make_files(fixture *f, const char *const merges[], char vocab_path[128],
                       char merges_path[128])
{
    static char vocab[1 << 16];
    char lines[4096] = "#version: 0.2\n", *to = vocab;
    int next = 256, id = 0;
    to += sprintf(to, "{");
    for (int b = 0; b < 256; b++, id++) {
        const bool same = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        to += sprintf(to, "\"\\u%04x\": %d, ", same ? b : next++, id);
    }
    for (int i = 0; merges[i]; i++, id++) {
        char both[64], *end = both;
        for (const char *p = merges[i]; *p; p++)
            if (*p != ' ') *end++ = *p;
        *end = '\0';
        to += sprintf(to, "\"%s\": %d, ", both, id);
        strcat(strcat(lines, merges[i]), "\n");
    }
    to += sprintf(to, "\"<|endoftext|>\": %d}", id);
    strcpy(vocab_path, put(f, "vocab.json", vocab, (size_t)(to - vocab)));
    strcpy(merges_path, put(f, "merges.txt", lines, strlen(lines)));
}

static tokenizer *open_tokenizer(fixture *f, const char *const merges[])
{
    char vocab[128], lines[128], why[TOKENIZER_WHY_BYTES];
    tokenizer *t;
    make_files(f, merges, vocab, lines);
    if (!tokenizer_open(&t, vocab, lines, why)) fail_msg("%s", why);
    return t;
}

static void assert_tokens(const tokenizer *t, const char *in, const uint16_t *want, size_t n)
{
    uint16_t *got;
    size_t count;
    assert_true(tokenizer_encode(t, (const uint8_t *)in, strlen(in), &got, &count));
    assert_int_equal(count, n);
    assert_memory_equal(got, want, n * sizeof *want);
    free(got);
}
#define TOKENS(t, in, ...)                                                                         \
    assert_tokens(t, in, (const uint16_t[]){__VA_ARGS__},                                          \
                  sizeof((const uint16_t[]){__VA_ARGS__}) / sizeof(uint16_t))

/* Bytes are numbered in byte order here; the merges are 256, 257, ... */
static void test_merges_go_by_the_order_of_their_lines(void **state)
{
    /* the files write a blank as G with a dot above */
    static const char *const first[]  = {"\xc4\xa0 t", "h e", "\xc4\xa0t he", "a b", "b c",
                                         "a a",        NULL};
    static const char *const second[] = {"b c", "a b", NULL};
    tokenizer *t                      = open_tokenizer(*state, first);
    assert_int_equal(tokenizer_size(t), 256 + 6 + 1);
    TOKENS(t, "the", 't', 257);
    TOKENS(t, " the", 258);
    TOKENS(t, "the the", 't', 257, 258);
    TOKENS(t, "abc", 259, 'c');
    TOKENS(t, "aaa", 261, 'a');
    TOKENS(t, "aaaa", 261, 261);
    TOKENS(t, "aab", 'a', 259);      /* "a b" comes before "a a" */
    TOKENS(t, "h e", 'h', ' ', 'e'); /* never across pieces */
    tokenizer_free(t);

    t = open_tokenizer(*state, second);
    TOKENS(t, "abc", 'a', 256);
    tokenizer_free(t);
}

static void assert_round_trip(const tokenizer *t, const uint8_t *in, size_t n)
{
    uint16_t *tokens;
    uint8_t *back = malloc(n);
    size_t count, made = 0;
    assert_true(tokenizer_encode(t, in, n, &tokens, &count));
    for (size_t i = 0; i < count; i++) {
        size_t m;
        const uint8_t *bytes = tokenizer_bytes(t, tokens[i], &m);
        assert_true(made + m <= n);
        memcpy(back + made, bytes, m);
        made += m;
    }
    assert_int_equal(made, n);
    assert_memory_equal(back, in, n);
    free(back);
    free(tokens);
}

static void test_any_bytes_come_back(void **state)
{
    static const char *const merges[] = {"\xc4\xa0 t",        "h e", "\xc4\xa0t he", "e r",
                                         "\xc3\x83 \xc2\xa9", NULL};
    uint8_t all[4096];
    char why[TOKENIZER_WHY_BYTES];
    uint32_t x = 7;
    for (size_t i = 0; i < sizeof all; i++, x = x * 1664525 + 1013904223)
        all[i] = (uint8_t)(i < 1024 ? i : x >> 24);
    tokenizer *t = open_tokenizer(*state, merges);
    assert_round_trip(t, all, sizeof all);
    const size_t n = make_prose(all, sizeof all);
    assert_round_trip(t, all, n);
    TOKENS(t, "\xc3\xa9", 260);
    tokenizer_free(t);
    assert_true(tokenizer_open(&t, NULL, NULL, why));
    assert_int_equal(tokenizer_size(t), 256);
    assert_round_trip(t, all, sizeof all);
    tokenizer_free(t);
}

static void test_wrong_tokenizer_files_get_a_sentence(void **state)
{
    static const struct {
        const char *vocab, *merges, *says;
    } cases[] = {
        {"[1, 2", NULL, "cannot read "},
        {"{\"a\": 0}", NULL, "holds 1 tokens; 256 to 65536 are possible"},
        {NULL, "#version: 0.2\na b c\n", "merge 1 names tokens that the vocabulary does not have"},
        {NULL, "#version: 0.2\nab\n", "merge 1 is not two tokens"},
        {NULL, "h q\n", "merge 1 names tokens that the vocabulary does not have"},
    };
    static const char *const merges[] = {"h e", NULL};
    char vocab[128], lines[128], why[TOKENIZER_WHY_BYTES];
    tokenizer *t;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_files(*state, merges, vocab, lines);
        if (cases[i].vocab) put(*state, "vocab.json", cases[i].vocab, strlen(cases[i].vocab));
        if (cases[i].merges) put(*state, "merges.txt", cases[i].merges, strlen(cases[i].merges));
        assert_false(tokenizer_open(&t, vocab, lines, why));
        if (!strstr(why, cases[i].says)) fail_msg("case %zu: %s", i, why);
    }
    assert_false(tokenizer_open(&t, vocab, NULL, why));
    assert_string_equal(why, "a tokenizer is two files: --merges is missing");
}

/* ---- order ----------------------------------------------------------------------------------- */
static void test_ranks_together_read_what_one_rank_reads(void **state)
{
    enum { T = 8, BATCH = 12, STEPS = 9 };
    static const int worlds[][2] = {
        {1, 1}, {2, 1}, {3, 2}, {4, 3}, {1, 4}}; /* ranks, micro-batches */
    reader_order o;
    (void)state;
    for (int shuffled = 0; shuffled < 2; shuffled++) {
        assert_true(reader_order_init(&o, 700, T, shuffled, 3));
        for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
            const int ranks = worlds[w][0], accum = worlds[w][1], batch = BATCH / ranks / accum;
            for (int64_t step = 0, s = 0; step < STEPS; step++)
                for (int m = 0; m < accum; m++)
                    for (int r = 0; r < ranks; r++, s += batch)
                        assert_int_equal(reader_first(step, m, accum, r, ranks, batch), s);
        }
        reader_order_fini(&o);
    }
}

static void test_a_pass_reads_every_sequence_once_and_the_next_in_another_order(void **state)
{
    enum { T = 8, TOKENS_N = 8 * 50 + 3 };
    reader_order o;
    int differ = 0;
    (void)state;
    assert_true(reader_order_init(&o, TOKENS_N, T, true, 3));
    assert_int_equal(o.sequences, 49);
    size_t first[49];
    for (int64_t pass = 0; pass < 4; pass++) {
        bool seen[49] = {false};
        for (int64_t s = 0; s < o.sequences; s++) {
            const size_t at    = reader_start(&o, pass * o.sequences + s),
                         phase = reader_start(&o, pass * o.sequences) % T;
            assert_true(at + T < TOKENS_N);
            assert_int_equal(at % T, phase);
            assert_false(seen[at / T]);
            seen[at / T] = true;
            if (pass == 0) first[s] = at;
            differ += at != first[s];
        }
    }
    assert_true(differ > 3 * 40);
    assert_int_equal(reader_start(&o, 5), first[5]); /* independent of earlier calls */
    reader_order_fini(&o);

    assert_true(reader_order_init(&o, TOKENS_N, T, false, 0));
    for (int64_t s = 0; s < 100; s++) assert_int_equal(reader_start(&o, s), (size_t)(s % 50) * T);
    reader_order_fini(&o);
    assert_false(reader_order_init(&o, T, T, true, 0));
}

/* ---- token files ----------------------------------------------------------------------------- */
static size_t make_token_file(uint8_t *file, uint32_t magic, uint32_t version, uint32_t n)
{
    const uint32_t head[3] = {magic, version, n};
    memset(file, 0, 1024);
    for (int i = 0; i < 12; i++) file[i] = (uint8_t)(head[i / 4] >> 8 * (i % 4));
    for (uint32_t i = 0; i < n; i++) {
        file[1024 + 2 * i]     = (uint8_t)(300 + i);
        file[1024 + 2 * i + 1] = (uint8_t)((300 + i) >> 8);
    }
    return 1024 + 2 * (size_t)n;
}

static void test_token_files_of_llm_c_are_mapped(void **state)
{
    uint8_t file[1024 + 2 * 200];
    char why[READER_WHY_BYTES], train[128];
    reader_data d;
    int32_t in[10], target[10];
    const size_t n = make_token_file(file, 20240520, 1, 200);
    strcpy(train, put(*state, "a.bin", file, n));
    assert_true(reader_map(&d, train, NULL, why));
    assert_int_equal(d.train.n, 180);
    assert_int_equal(d.held.n, 20);
    assert_int_equal(reader_copy(&d.train, 40, 10, 1000, in, target), -1);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(in[i], 340 + i);
        assert_int_equal(target[i], 341 + i);
    }
    assert_int_equal(reader_copy(&d.train, 40, 10, 345, in, target), 45); /* 345 is not a token */
    reader_free(&d);

    assert_true(reader_map(
        &d, train, put(*state, "b.bin", file, make_token_file(file, 20240520, 1, 30)), why));
    assert_int_equal(d.train.n, 200);
    assert_int_equal(d.held.n, 30);
    reader_free(&d);
}

static void test_wrong_token_files_get_a_sentence(void **state)
{
    static const struct {
        uint32_t magic, version, n, cut;
        const char *says;
    } cases[] = {
        {20240520, 1, 100, 2, "should hold 100 tokens and has room for 99"},
        {20240520, 1, 100, 1, "should hold 100 tokens and has room for 99"},
        {20240801, 7, 100, 0, "is not a token file: it does not begin with 20240520"},
        {20240520, 2, 100, 0,
         "is a token file of version 2; version 1, 16 bits a token, can be read"},
        {20240520, 1, 0, 4, "is too short for a token file"},
    };
    uint8_t file[1024 + 2 * 100];
    char why[READER_WHY_BYTES];
    reader_data d;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t n =
            make_token_file(file, cases[i].magic, cases[i].version, cases[i].n) - cases[i].cut;
        assert_false(reader_map(&d, put(*state, "a.bin", file, n), NULL, why));
        if (!strstr(why, cases[i].says)) fail_msg("case %zu: %s", i, why);
    }
}

/* ---- sampling -------------------------------------------------------------------------------- */
static void test_draws_follow_temperature_and_top_k(void **state)
{
    enum { N = 5, DRAWS = 20000 };
    static const float logits[N]     = {0.5f, -1, 2, 1.5f, -3};
    static const sample_rule rules[] = {{1, 0}, {0.5, 0}, {2, 3}, {1, 1}, {0, 0}};
    float scratch[N];
    double worst = 0;
    (void)state;
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        double chance[N], sum = 0;
        int count[N] = {0};
        for (int i = 0; i < N; i++) { /* by size: 2 3 0 1 4 */
            const int place = (const int[N]){2, 3, 0, 1, 4}[i];
            const bool may  = (rules[r].top_k == 0 || place < rules[r].top_k) &&
                             (rules[r].temperature > 0 || place == 0);
            chance[i] =
                may ? exp(logits[i] / (rules[r].temperature > 0 ? rules[r].temperature : 1)) : 0;
            sum += chance[i];
        }
        for (int i = 0; i < DRAWS; i++)
            count[sample_draw(logits, N, &rules[r], (i + 0.5) / DRAWS, scratch)]++;
        for (int i = 0; i < N; i++)
            worst = fmax(worst, fabs((double)count[i] / DRAWS - chance[i] / sum));
    }
    print_message("largest difference of a frequency %.1e, tolerance 1e-4\n", worst);
    assert_true(worst < 1e-4);
}

static void test_logits_that_are_no_numbers_still_give_a_token(void **state)
{
    const float logits[3] = {NAN, NAN, NAN};
    float scratch[3];
    (void)state;
    assert_in_range(sample_draw(logits, 3, &(sample_rule){1, 2}, 0.7, scratch), 0, 2);
}

/* ---- the counting model ---------------------------------------------------------------------- */
static void test_chances_of_the_counting_model_sum_to_one(void **state)
{
    uint8_t prose[3000] = {0};
    const size_t n      = make_prose(prose, sizeof prose);
    double worst        = 0;
    (void)state;
    for (int order = 0; order <= ORDER3_MOST; order++) {
        order3 *m = order3_new(order);
        assert_true(order3_learn(m, prose, n));
        for (size_t at = 3; at < 400; at += 7) {
            double sum = 0;
            for (int b = 0; b < 256; b++) sum += order3_chance(m, prose + at, 3, (uint8_t)b);
            worst = fmax(worst, fabs(sum - 1));
        }
        order3_free(m);
    }
    print_message("largest difference from 1: %.1e, tolerance 1e-12\n", worst);
    assert_true(worst < 1e-12);
}

/* "abab": by hand.  P0(a) = (2 + 2/256) / (4 + 2); after 'a' came 'b' twice, one kind. */
static void test_the_counting_model_is_that_of_witten_and_bell(void **state)
{
    const uint8_t bytes[] = "abab";
    order3 *m             = order3_new(1);
    (void)state;
    assert_true(order3_learn(m, bytes, 4));
    const double b0 = (2 + 2.0 / 256) / 6, b1 = (2 + 1 * b0) / (2 + 1), a1 = (0 + 1 * b0) / 3;
    assert_true(fabs(order3_chance(m, bytes + 1, 0, 'b') - b0) < 1e-15);
    assert_true(fabs(order3_chance(m, bytes + 1, 1, 'b') - b1) < 1e-15);
    assert_true(fabs(order3_chance(m, bytes + 1, 1, 'a') - a1) < 1e-15);
    const double bits =
        -(log2(b0) + 2 * log2(b1) + log2((1 + b0) / 2)) / 4; /* a b a b: 'a' once after 'b' */
    assert_true(fabs(order3_bits(m, bytes, 4) - bits) < 1e-12);
    order3_free(m);
}

#define FILES(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FILES(test_a_damaged_packed_text_is_refused_or_another_text),
        FILES(test_a_text_is_read_plain_gzipped_and_compressed),
        FILES(test_the_book_of_bible_kjv_text_gives_its_verses_without_numbers),
        FILES(test_texts_that_are_not_there_or_empty_get_a_sentence),
        cmocka_unit_test(test_pieces_are_those_of_gpt2s_pattern),
        FILES(test_merges_go_by_the_order_of_their_lines),
        FILES(test_any_bytes_come_back),
        FILES(test_wrong_tokenizer_files_get_a_sentence),
        cmocka_unit_test(test_ranks_together_read_what_one_rank_reads),
        cmocka_unit_test(test_a_pass_reads_every_sequence_once_and_the_next_in_another_order),
        FILES(test_token_files_of_llm_c_are_mapped),
        FILES(test_wrong_token_files_get_a_sentence),
        cmocka_unit_test(test_draws_follow_temperature_and_top_k),
        cmocka_unit_test(test_logits_that_are_no_numbers_still_give_a_token),
        cmocka_unit_test(test_chances_of_the_counting_model_sum_to_one),
        cmocka_unit_test(test_the_counting_model_is_that_of_witten_and_bell),
    };
    return cmocka_run_group_tests_name("gpt2_text", tests, NULL, NULL);
}
