/* sentence.h - builds a sentence for people, of at most the length of an error's text.  Texts that do not fit are truncated. */
#ifndef COMMON_SENTENCE_H
#define COMMON_SENTENCE_H

#include "penstock.h"

typedef struct {
    char text[sizeof((pen_error *)0)->text];
    size_t used;
} sentence; /* zero: empty */

void sentence_add(sentence *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
size_t sentence_room(const sentence *s);

enum { SENTENCE_COUNT_BYTES = 32, SENTENCE_SPAN_BYTES = 32 };
const char *sentence_count(char text[SENTENCE_COUNT_BYTES], uint64_t n); /* "1,001" */
const char *sentence_span(char text[SENTENCE_SPAN_BYTES], uint64_t ms);  /* "30 s", "0.2 s" */
const char *sentence_many(char text[SENTENCE_COUNT_BYTES], uint64_t n,
                          const char *noun); /* "3 workers" */

/* The same, in memory of the enclosing block. */
#define SPAN_NAME(ms) sentence_span((char[SENTENCE_SPAN_BYTES]){0}, ms)
#define MANY(n, noun) sentence_many((char[SENTENCE_COUNT_BYTES]){0}, n, noun)

#endif
