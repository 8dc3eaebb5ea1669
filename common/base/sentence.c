/* sentence.c - see sentence.h. */
#include "common/base/sentence.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

size_t sentence_room(const sentence *s)
{
    return sizeof s->text - 1 - s->used;
}

void sentence_add(sentence *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(s->text + s->used, sizeof s->text - s->used, format, args);
    va_end(args);
    if (n < 0) return;
    s->used += (size_t)n < sentence_room(s) ? (size_t)n : sentence_room(s);
}

const char *sentence_count(char text[SENTENCE_COUNT_BYTES], uint64_t n)
{
    char plain[24];
    const int digits = snprintf(plain, sizeof plain, "%" PRIu64, n);
    char *out        = text;
    for (int i = 0; i < digits; i++) {
        if (i && (digits - i) % 3 == 0) *out++ = ',';
        *out++ = plain[i];
    }
    *out = 0;
    return text;
}

const char *sentence_span(char text[SENTENCE_SPAN_BYTES], uint64_t ms)
{
    if (ms < 1000)
        snprintf(text, SENTENCE_SPAN_BYTES, "%.1f s", (double)ms / 1e3);
    else
        snprintf(text, SENTENCE_SPAN_BYTES, "%" PRIu64 " s", ms / 1000);
    return text;
}

const char *sentence_many(char text[SENTENCE_COUNT_BYTES], uint64_t n, const char *noun)
{
    snprintf(text, SENTENCE_COUNT_BYTES, "%" PRIu64 " %s%s", n, noun, n == 1 ? "" : "s");
    return text;
}
