/* why.c - how a failure is written down. */
#include "common/base/why.h"

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
