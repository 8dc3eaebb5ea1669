/* why.h - one failure: a sentence and a machine-readable culprit; and the last one of each thread.
 *
 * Every function of ours that can fail for a reportable reason takes a `pen_error *why` as its last argument and
 * returns the status it wrote there.  The first function that recognises a failure writes it; callers pass it on
 * unchanged.
 */
#ifndef COMMON_WHY_H
#define COMMON_WHY_H

#include "penstock.h"

#include <stdarg.h>
#include <stdbool.h>

/* Fills *why with `status` and the formatted sentence, and no culprit (role 0, rank -1, step -1).
 * why may be NULL; the arguments may point into *why.  Returns status, so that a caller may write
 * `return why_set(why, ...)`.
 * Thread   any.  Cost  one vsnprintf; never allocates. */
pen_status why_set(pen_error *why, pen_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
pen_status why_setv(pen_error *why, pen_status status, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

/* Names the culprit of a failure already set.  tensor may be NULL.  why may be NULL. */
void why_culprit(pen_error *why, int32_t role, int32_t rank, int64_t step, const char *tensor);

/* Whether a number from a peer or a program is the status of a failure, one that this version knows. */
bool why_is_failure(int32_t status);

/* ---- the error of pen_last_error(): one per thread ----------------------------------------- */
/* Keeps a copy for this thread and returns its status. */
pen_status last_error_set(const pen_error *why);

/* why_set() and last_error_set() in one. */
pen_status last_error_report(pen_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
