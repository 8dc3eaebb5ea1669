/* pieces.c - GPT-2's pattern by hand: classifies characters into four kinds; a piece is a run of one kind. */
#include "pieces.h"

#include <stdbool.h>
#include <string.h>

#include "text/unicode_ranges.inc"

typedef enum { LETTER, NUMBER, SPACE, OTHER, NOTHING } kind;

static bool is_in(const uint32_t (*range)[2], size_t n, uint32_t code)
{
    size_t low = 0;
    while (low < n) {
        const size_t middle = (low + n) / 2;
        if (range[middle][1] < code)
            low = middle + 1;
        else
            n = middle;
    }
    return range[low][0] <= code && code <= range[low][1];
}

/* The property White_Space of the Unicode Character Database. */
static bool is_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

static kind kind_of(uint32_t code)
{
    if (is_space(code)) return SPACE;
    if (is_in(letters, sizeof letters / sizeof *letters - 1, code)) return LETTER;
    if (is_in(numbers, sizeof numbers / sizeof *numbers - 1, code)) return NUMBER;
    return OTHER;
}

/* Bytes of the UTF-8 character at p, 1 if invalid; *code is then beyond Unicode. */
static size_t read_character(const uint8_t *p, size_t n, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t bytes            = p[0] < 0x80                   ? 1
                                    : p[0] >= 0xf0 && p[0] < 0xf8 ? 4
                                    : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
                                    : p[0] >= 0xc0 && p[0] < 0xe0 ? 2
                                                                  : 0;
    *code                         = 0x110000;
    if (bytes == 0 || bytes > n) return 1;
    uint32_t x = bytes == 1 ? p[0] : p[0] & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((p[i] & 0xc0) != 0x80) return 1;
        x = x << 6 | (p[i] & 0x3f);
    }
    if (x < least[bytes] || x > 0x10ffff || (x >= 0xd800 && x < 0xe000)) return 1;
    *code = x;
    return bytes;
}

/* The kind of the character at `at` and where the next begins. */
static kind look(const uint8_t *text, size_t at, size_t n, size_t *next)
{
    if (at >= n) return NOTHING;
    uint32_t code;
    *next = at + read_character(text + at, n - at, &code);
    return kind_of(code);
}

static size_t contraction(const uint8_t *p, size_t n)
{
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; p[0] == '\'' && i < sizeof endings / sizeof *endings; i++) {
        const size_t bytes = strlen(endings[i]);
        if (bytes <= n && memcmp(p, endings[i], bytes) == 0) return bytes;
    }
    return 0;
}

/* The end of the run of this kind that begins at `at`; *last: the start of its last character. */
static size_t end_of_run(const uint8_t *text, size_t at, size_t n, kind of, size_t *last)
{
    size_t next = at;
    while (look(text, at, n, &next) == of) {
        *last = at;
        at    = next;
    }
    return at;
}

size_t pieces_next(const uint8_t *text, size_t at, size_t n)
{
    const size_t short_form = contraction(text + at, n - at);
    if (short_form) return short_form;

    size_t next, last = at, from = at;
    kind here = look(text, at, n, &next);
    if (text[at] == ' ') { /* a single blank joins the next run */
        size_t after;
        const kind follower = look(text, next, n, &after);
        if (follower != SPACE && follower != NOTHING) {
            here = follower;
            from = next;
        }
    }
    const size_t end = end_of_run(text, from, n, here, &last);
    if (here == SPACE && end < n && last > at)
        return last - at; /* the last one joins the next run */
    return end - at;
}
