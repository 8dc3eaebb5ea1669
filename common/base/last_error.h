/* last_error.h - the error of pen_last_error(): one per thread. */
#ifndef COMMON_LAST_ERROR_H
#define COMMON_LAST_ERROR_H

#include "common/base/why.h"

/* Keeps a copy for this thread and returns its status. */
pen_status last_error_set(const pen_error *why);

/* why_set() and last_error_set() in one. */
pen_status last_error_report(pen_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
