/* reader.c - token files, texts as tokens, and the reading order. */
#include "reader.h"
#include "rng.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD_NUMBERS = 256, HEAD_BYTES = HEAD_NUMBERS * 4, HEAD_MAGIC = 20240520, HEAD_VERSION = 1 };
#define ORDER_STREAM UINT64_C(0x6f72646572) /* separates this stream from others of the same seed */

static bool refuse(char *why, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(char *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, READER_WHY_BYTES, format, args);
    va_end(args);
    return false;
}

/* ---- a text ---------------------------------------------------------------------------------- */
static bool encode(reader_tokens *out, const tokenizer *by, const uint8_t *bytes, size_t n)
{
    if (!tokenizer_encode(by, bytes, n, &out->own, &out->n)) return false;
    out->token = out->own;
    return true;
}

bool reader_encode(reader_data *d, const text *t, const tokenizer *by, char why[READER_WHY_BYTES])
{
    const size_t cut = text_train_bytes(t);
    *d               = (reader_data){.held_bytes = (double)(t->n - cut)};
    snprintf(d->from, sizeof d->from, "%zu bytes of text", t->n);
    if (encode(&d->train, by, t->bytes, cut) && encode(&d->held, by, t->bytes + cut, t->n - cut))
        return true;
    reader_free(d);
    return refuse(why, "no memory for the tokens of %zu bytes of text", t->n);
}

/* ---- token files ----------------------------------------------------------------------------- */
static uint32_t little_endian(const uint8_t b[4])
{
    return (uint32_t)b[3] << 24 | (uint32_t)b[2] << 16 | (uint32_t)b[1] << 8 | b[0];
}

static bool check_head(reader_tokens *t, const char *path, char *why)
{
    const uint8_t *head = t->map;
    if (little_endian(head) != HEAD_MAGIC)
        return refuse(why, "%.300s is not a token file: it does not begin with %d", path,
                      HEAD_MAGIC);
    if (little_endian(head + 4) != HEAD_VERSION)
        return refuse(
            why, "%.300s is a token file of version %u; version %d, 16 bits a token, can be read",
            path, little_endian(head + 4), HEAD_VERSION);
    t->n = little_endian(head + 8);
    if ((t->map_bytes - HEAD_BYTES) / 2 != t->n || t->map_bytes % 2)
        return refuse(why, "%.300s should hold %zu tokens and has room for %zu", path, t->n,
                      (t->map_bytes - HEAD_BYTES) / 2);
    t->token = (const uint16_t *)(head + HEAD_BYTES);
    return true;
}

static bool map_file(reader_tokens *t, const char *path, char *why)
{
    struct stat about;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return refuse(why, "cannot open %.300s: %s", path, strerror(errno));
    bool ok =
        fstat(fd, &about) == 0 || refuse(why, "cannot read %.300s: %s", path, strerror(errno));
    if (ok && (!S_ISREG(about.st_mode) || about.st_size < HEAD_BYTES))
        ok = refuse(why, "%.300s is too short for a token file", path);
    if (ok) {
        t->map_bytes = (size_t)about.st_size;
        void *map    = mmap(NULL, t->map_bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
            ok = refuse(why, "cannot map %.300s: %s", path, strerror(errno));
        else
            t->map = map;
    }
    close(fd);
    return ok && check_head(t, path, why);
}

bool reader_map(reader_data *d, const char *train, const char *held, char why[READER_WHY_BYTES])
{
    *d      = (reader_data){0};
    bool ok = map_file(&d->train, train, why) && (!held || map_file(&d->held, held, why));
    if (ok && !held) {
        const size_t cut = d->train.n - d->train.n / 10;
        d->held.token    = d->train.token + cut;
        d->held.n        = d->train.n - cut;
        d->train.n       = cut;
    }
    snprintf(d->from, sizeof d->from, "%zu tokens", d->train.n + d->held.n);
    if (!ok) reader_free(d);
    return ok;
}

static void free_tokens(reader_tokens *t)
{
    free(t->own);
    if (t->map) munmap(t->map, t->map_bytes);
    *t = (reader_tokens){0};
}

void reader_free(reader_data *d)
{
    free_tokens(&d->train);
    free_tokens(&d->held);
}

int64_t reader_copy(const reader_tokens *t, size_t at, int length, int vocab, int32_t *in,
                    int32_t *target)
{
    for (int i = 0; i <= length; i++) {
        const int32_t token = t->token[at + (size_t)i];
        if (token >= vocab) return (int64_t)at + i;
        if (i < length) in[i] = token;
        if (i > 0) target[i - 1] = token;
    }
    return -1;
}

/* ---- order ----------------------------------------------------------------------------------- */
bool reader_order_init(reader_order *o, size_t tokens, int length, bool is_shuffled, uint64_t seed)
{
    *o = (reader_order){
        .tokens = tokens, .length = length, .is_shuffled = is_shuffled, .seed = seed, .pass = -1};
    o->sequences = tokens > (size_t)length ? (int64_t)((tokens - 1) / (size_t)length) : 0;
    if (is_shuffled && o->sequences > 1)
        o->sequences--; /* each pass starts at another token of the first sequence */
    if (o->sequences == 0 || (is_shuffled && o->sequences > UINT32_MAX)) return false;
    if (is_shuffled) o->shuffled = malloc((size_t)o->sequences * sizeof *o->shuffled);
    return !is_shuffled || o->shuffled;
}

void reader_order_fini(reader_order *o)
{
    free(o->shuffled);
    *o = (reader_order){0};
}

/* Fisher-Yates, restarted for each pass, so that no pass depends on an earlier one. */
static void shuffle(reader_order *o, int64_t pass, rng *r)
{
    for (int64_t i = 0; i < o->sequences; i++) o->shuffled[i] = (uint32_t)i;
    for (int64_t i = o->sequences - 1; i > 0; i--) {
        const uint32_t j = rng_below(r, (uint32_t)i + 1), kept = o->shuffled[i];
        o->shuffled[i] = o->shuffled[j];
        o->shuffled[j] = kept;
    }
    o->pass = pass;
}

size_t reader_start(reader_order *o, int64_t s)
{
    const int64_t pass = s / o->sequences, place = s % o->sequences;
    if (!o->is_shuffled) return (size_t)place * (size_t)o->length;
    rng r              = rng_seeded(o->seed ^ ORDER_STREAM, (uint64_t)pass);
    const size_t slack = o->tokens - (size_t)o->sequences * (size_t)o->length; /* at least 1 */
    const size_t phase =
        rng_below(&r, (uint32_t)(slack < (size_t)o->length ? slack : (size_t)o->length));
    if (o->pass != pass) shuffle(o, pass, &r);
    return phase + (size_t)o->shuffled[place] * (size_t)o->length;
}
