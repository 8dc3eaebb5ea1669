/* last_error.c - the last failure seen by each thread. */
#include "common/base/last_error.h"

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
