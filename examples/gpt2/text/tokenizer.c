/* tokenizer.c - byte pair encoding as in GPT-2, with its files.
 *
 * The files write each byte as a printable Unicode character: the printable ones of Latin-1 as themselves, the others
 * as U+0100 and up, in order.  A line of merges.txt is a pair of tokens to merge; earlier lines have priority.
 */
#include "tokenizer.h"
#include "pieces.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 256, LINE_BYTES = 4096, CODES = 0x144 };

typedef struct {
    uint32_t pair; /* left << 16 | right */
    uint32_t rank; /* 0: empty slot; else the line, from 1 */
    uint16_t both;
} merge;

struct tokenizer {
    int size;
    uint8_t *pool;      /* the bytes of all tokens */
    uint32_t *start;    /* [size + 1] start of each in pool; token i ends at start[i + 1] */
    uint16_t of[BYTES]; /* the token of this single byte */
    merge *table;       /* [places] open addressing; NULL: no merges */
    uint32_t places;    /* a power of two, at most half full */
};

static bool refuse(char *why, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(char *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, TOKENIZER_WHY_BYTES, format, args);
    va_end(args);
    return false;
}

/* ---- bytes as characters --------------------------------------------------------------------- */
static bool is_itself(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* byte_of[code point]: the byte, or -1. */
static void make_alphabet(int16_t byte_of[CODES])
{
    for (int i = 0; i < CODES; i++) byte_of[i] = -1;
    int next = BYTES;
    for (int b = 0; b < BYTES; b++) byte_of[is_itself(b) ? b : next++] = (int16_t)b;
}

/* Converts characters to bytes, in place; -1: a character without a byte. */
static int to_bytes(const int16_t byte_of[CODES], const char *in, size_t n, uint8_t *out)
{
    int count = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned code = (uint8_t)in[i];
        if (code >= 0x80) {
            if ((code & 0xe0) != 0xc0 || i + 1 == n) return -1;
            code = (code & 0x1f) << 6 | ((uint8_t)in[++i] & 0x3f);
        }
        if (code >= CODES || byte_of[code] < 0) return -1;
        out[count++] = (uint8_t)byte_of[code];
    }
    return count;
}

/* ---- vocab.json ------------------------------------------------------------------------------ */
/* Names by number; each number below the size of the object appears once. */
static const char **list_names(json_t *object, const char *path, char *why)
{
    const size_t n     = json_object_size(object);
    const char **names = calloc(n, sizeof *names), *name;
    json_t *value;
    if (!names) {
        refuse(why, "no memory for the %zu tokens of %.300s", n, path);
        return NULL;
    }
    json_object_foreach(object, name, value)
    {
        const json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || (size_t)id >= n || names[id]) {
            refuse(why, "%.200s: token \"%.60s\" has no number of its own below %zu", path, name,
                   n);
            free(names);
            return NULL;
        }
        names[id] = name;
    }
    return names;
}

static bool store_tokens(tokenizer *t, const char **names, const char *path, char *why)
{
    int16_t byte_of[CODES];
    size_t room = 0;
    make_alphabet(byte_of);
    for (int i = 0; i < t->size; i++) room += strlen(names[i]);
    t->pool  = malloc(room + 1);
    t->start = malloc(((size_t)t->size + 1) * sizeof *t->start);
    if (!t->pool || !t->start || room > UINT32_MAX)
        return refuse(why, "no memory for the tokens of %.300s", path);
    uint32_t at = 0;
    for (int i = 0; i < t->size; i++) {
        t->start[i] = at;
        const int n = to_bytes(byte_of, names[i], strlen(names[i]), t->pool + at);
        if (n < 0)
            return refuse(why, "%.200s: token \"%.60s\" is not written in GPT-2's characters", path,
                          names[i]);
        at += (uint32_t)n;
    }
    t->start[t->size] = at;
    return true;
}

static bool find_single_bytes(tokenizer *t, const char *path, char *why)
{
    bool has[BYTES] = {false};
    for (int i = t->size - 1; i >= 0; i--) {
        if (t->start[i + 1] - t->start[i] != 1) continue;
        const uint8_t byte = t->pool[t->start[i]];
        t->of[byte]        = (uint16_t)i;
        has[byte]          = true;
    }
    for (int b = 0; b < BYTES; b++)
        if (!has[b]) return refuse(why, "%.300s has no token for the byte 0x%02x alone", path, b);
    return true;
}

static bool read_vocab(tokenizer *t, const char *path, char *why)
{
    json_error_t error;
    json_t *object = json_load_file(path, 0, &error);
    if (!object)
        return refuse(why, "cannot read %.200s: line %d: %.160s", path, error.line, error.text);
    const size_t n = json_object_size(object);
    bool ok        = n >= BYTES && n <= TOKENIZER_SIZE_MAX;
    if (!ok)
        refuse(why, "%.300s holds %zu tokens; %d to %d are possible", path, n, BYTES,
               TOKENIZER_SIZE_MAX);
    const char **names = ok ? list_names(object, path, why) : NULL;
    t->size            = (int)n;
    ok = names && store_tokens(t, names, path, why) && find_single_bytes(t, path, why);
    free(names);
    json_decref(object);
    return ok;
}

/* ---- merges.txt ------------------------------------------------------------------------------ */
typedef struct {
    const tokenizer *t;
    uint16_t *order; /* all tokens, sorted by their bytes */
    int16_t byte_of[CODES];
    const char *path;
    char *why;
} merge_reader;

static int compare_bytes(const uint8_t *a, size_t n, const uint8_t *b, size_t m)
{
    const int first = memcmp(a, b, n < m ? n : m);
    return first ? first : (n > m) - (n < m);
}

static int by_bytes(const void *a, const void *b, void *user)
{
    size_t n, m;
    const tokenizer *t = user;
    const uint8_t *x   = tokenizer_bytes(t, *(const uint16_t *)a, &n),
                  *y   = tokenizer_bytes(t, *(const uint16_t *)b, &m);
    return compare_bytes(x, n, y, m);
}

static int find_token(const merge_reader *r, const uint8_t *bytes, size_t n)
{
    int low = 0, high = r->t->size;
    while (low < high) {
        size_t m;
        const int middle     = (low + high) / 2;
        const uint8_t *there = tokenizer_bytes(r->t, r->order[middle], &m);
        const int side       = compare_bytes(there, m, bytes, n);
        if (side == 0) return r->order[middle];
        if (side < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

static merge *place_of(const tokenizer *t, uint32_t pair)
{
    uint32_t at = (uint32_t)((pair * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (t->places - 1);
    while (t->table[at].rank && t->table[at].pair != pair) at = (at + 1) & (t->places - 1);
    return &t->table[at];
}

/* "Ġ t" -> the tokens " ", "t" and " t". */
static bool add_merge(merge_reader *r, tokenizer *t, const char *line, size_t n, uint32_t rank)
{
    uint8_t bytes[LINE_BYTES];
    const char *space = memchr(line, ' ', n);
    if (!space) return refuse(r->why, "%.300s: merge %u is not two tokens", r->path, rank);
    const int left = to_bytes(r->byte_of, line, (size_t)(space - line), bytes);
    const int right =
        left < 0 ? -1
                 : to_bytes(r->byte_of, space + 1, n - (size_t)(space - line) - 1, bytes + left);
    const int a    = left < 1 || right < 1 ? -1 : find_token(r, bytes, (size_t)left);
    const int b    = a < 0 ? -1 : find_token(r, bytes + left, (size_t)right);
    const int both = b < 0 ? -1 : find_token(r, bytes, (size_t)(left + right));
    if (both < 0)
        return refuse(r->why, "%.300s: merge %u names tokens that the vocabulary does not have",
                      r->path, rank);
    const uint32_t pair = (uint32_t)a << 16 | (uint32_t)b;
    merge *m            = place_of(t, pair);
    if (!m->rank) *m = (merge){pair, rank, (uint16_t)both};
    return true;
}

static bool read_lines(merge_reader *r, tokenizer *t, FILE *file)
{
    char line[LINE_BYTES];
    uint32_t rank = 0;
    while (fgets(line, sizeof line, file)) {
        size_t n = strlen(line);
        if (n + 1 == sizeof line)
            return refuse(r->why, "%.300s has a line of more than %d bytes", r->path,
                          LINE_BYTES - 2);
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        if (n == 0 || (rank == 0 && strncmp(line, "#version", 8) == 0)) continue;
        if (rank == t->places / 2)
            return refuse(r->why, "%.300s has more merges than there are tokens", r->path);
        if (!add_merge(r, t, line, n, ++rank)) return false;
    }
    return !ferror(file) || refuse(r->why, "cannot read %.300s: %s", r->path, strerror(errno));
}

static bool read_merges(tokenizer *t, const char *path, char *why)
{
    FILE *file     = fopen(path, "r");
    merge_reader r = {.t = t, .path = path, .why = why};
    if (!file) return refuse(why, "cannot open %.300s: %s", path, strerror(errno));
    make_alphabet(r.byte_of);
    for (t->places = 1024; t->places < (uint32_t)t->size * 2; t->places *= 2) {}
    t->table = calloc(t->places, sizeof *t->table);
    r.order  = malloc((size_t)t->size * sizeof *r.order);
    bool ok  = t->table && r.order;
    if (!ok) refuse(why, "no memory for the merges of %.300s", path);
    for (int i = 0; ok && i < t->size; i++) r.order[i] = (uint16_t)i;
    if (ok) qsort_r(r.order, (size_t)t->size, sizeof *r.order, by_bytes, t);
    ok = ok && read_lines(&r, t, file);
    free(r.order);
    fclose(file);
    return ok;
}

/* ---- encoding -------------------------------------------------------------------------------- */
/* As in GPT-2: merges the pair of the earliest line everywhere, then the next, until none is left. */
static size_t merge_piece(const tokenizer *t, uint16_t *token, size_t n)
{
    for (;;) {
        const merge *best = NULL;
        for (size_t i = 0; i + 1 < n; i++) {
            const merge *m = place_of(t, (uint32_t)token[i] << 16 | token[i + 1]);
            if (m->rank && (!best || m->rank < best->rank)) best = m;
        }
        if (!best) return n;
        size_t kept = 0;
        for (size_t i = 0; i < n; i++) {
            const bool is_pair =
                i + 1 < n && ((uint32_t)token[i] << 16 | token[i + 1]) == best->pair;
            token[kept++] = is_pair ? best->both : token[i];
            i += is_pair;
        }
        n = kept;
    }
}

bool tokenizer_encode(const tokenizer *t, const uint8_t *bytes, size_t n, uint16_t **tokens,
                      size_t *count)
{
    uint16_t *out = malloc((n + 1) * sizeof *out);
    if (!out) return false;
    size_t made = 0;
    for (size_t at = 0, length; at < n; at += length) {
        length = t->table ? pieces_next(bytes, at, n) : n;
        for (size_t i = 0; i < length; i++) out[made + i] = t->of[bytes[at + i]];
        made += t->table ? merge_piece(t, out + made, length) : length;
    }
    *tokens = out;
    *count  = made;
    return true;
}

/* ---- opening --------------------------------------------------------------------------------- */
static bool list_bytes(tokenizer *t)
{
    t->size  = BYTES;
    t->pool  = malloc(BYTES);
    t->start = malloc((BYTES + 1) * sizeof *t->start);
    if (!t->pool || !t->start) return false;
    for (int b = 0; b < BYTES; b++) {
        t->pool[b]  = (uint8_t)b;
        t->start[b] = (uint32_t)b;
        t->of[b]    = (uint16_t)b;
    }
    t->start[BYTES] = BYTES;
    return true;
}

bool tokenizer_open(tokenizer **out, const char *vocab, const char *merges,
                    char why[TOKENIZER_WHY_BYTES])
{
    if (!vocab != !merges)
        return refuse(why, "a tokenizer is two files: --%s is missing", vocab ? "merges" : "vocab");
    tokenizer *t = calloc(1, sizeof *t);
    bool ok      = t != NULL;
    if (!ok) refuse(why, "no memory for a tokenizer");
    if (ok && vocab)
        ok = read_vocab(t, vocab, why) && read_merges(t, merges, why);
    else if (ok)
        ok = list_bytes(t) || refuse(why, "no memory for a tokenizer");
    if (ok)
        *out = t;
    else
        tokenizer_free(t);
    return ok;
}

void tokenizer_free(tokenizer *t)
{
    if (!t) return;
    free(t->pool);
    free(t->start);
    free(t->table);
    free(t);
}

int tokenizer_size(const tokenizer *t)
{
    return t->size;
}

const uint8_t *tokenizer_bytes(const tokenizer *t, int token, size_t *n)
{
    const bool is_one = token >= 0 && token < t->size;
    *n                = is_one ? t->start[token + 1] - t->start[token] : 0;
    return is_one ? t->pool + t->start[token] : t->pool;
}
