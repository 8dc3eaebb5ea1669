/* why.c - how a failure is written down, and where its last one stands for each thread. */
#include "common/base/why.h"

#include "common/base/sentence.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

pen_status why_setv(pen_error *why, pen_status status, const char *format, va_list args)
{
    if (why == NULL) return status;

    /* Formats into a copy: the arguments may point into *why, when a sentence wraps another. */
    char text[sizeof why->text];
    int length = vsnprintf(text, sizeof text, format, args);
    if (length < 0) text[0] = '\0';
    if (length >= (int)sizeof text) memcpy(text + sizeof text - 4, "...", 4);

    *why = (pen_error){.status = status, .rank = -1, .step = -1};
    memcpy(why->text, text, sizeof text);
    return status;
}

pen_status why_set(pen_error *why, pen_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    why_setv(why, status, format, args);
    va_end(args);
    return status;
}

void why_culprit(pen_error *why, int32_t role, int32_t rank, int64_t step, const char *tensor)
{
    if (why == NULL) return;
    why->role = role;
    why->rank = rank;
    why->step = step;
    snprintf(why->tensor, sizeof why->tensor, "%s", tensor != NULL ? tensor : "");
}

/* ---- the last failure of each thread ------------------------------------------------------- */
static _Thread_local pen_error last = {.rank = -1, .step = -1};

pen_status last_error_set(const pen_error *why)
{
    last = *why;
    return why->status;
}

pen_status last_error_report(pen_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    why_setv(&last, status, format, args);
    va_end(args);
    return status;
}

const char *pen_last_error(pen_error *detail)
{
    if (detail != NULL) *detail = last;
    return last.text;
}

/* ---- names, texts and remedies, made from the list in penstock.h --------------------------- */
static const pen_status_row rows[] = {
#define X(name, value, remedy, text) {PEN_##name, PEN_ACT_##remedy, #name, text},
    PEN_STATUS_LIST(X)
#undef X
};

static const pen_status_row unknown = {PEN_STATUS_MAX_, PEN_ACT_STOP, "UNKNOWN",
                                       "a status this version of Penstock does not know"};

const pen_status_row *pen_status_info(pen_status status)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].status == status) return &rows[i];
    return &unknown;
}

bool why_is_failure(int32_t status)
{
    return status < PEN_OK && pen_status_info((pen_status)status) != &unknown;
}

/* ---- sentences in parts ---------------------------------------------------------------------- */
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
