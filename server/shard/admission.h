/* admission.h - which gradients a server accepts: the setting `admission`, and the check of one chunk.
 *
 * The check follows the checksum and precedes all bookkeeping, so a refused gradient leaves no trace: its push may be
 * repeated and counts once when accepted.  It checks what the rank sent, divided by its loss scale, for one chunk,
 * which is at most a tensor and at most 4 MiB.  Pure; any thread.
 */
#ifndef SERVER_ADMISSION_H
#define SERVER_ADMISSION_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    bool finite;     /* refuse infinities and NaN */
    double norm_max; /* and chunks whose L2 norm is larger; 0: any norm */
} admission;

/* "off", "finite" or "norm:BOUND".  Errors  BAD_SETTING  anything else. */
pen_status admission_parse(const char *text, admission *a, pen_error *why);

typedef struct {
    int32_t rank;
    uint64_t step;
    const char *tensor;
    const void *data; /* [count] in dtype */
    size_t count;
    pen_dtype dtype;
    double loss_scale; /* above 0 */
} admission_gradient;

/* Errors  INVALID_ARGUMENT  names rank, tensor, step and fault.   NO_MEMORY
 * Cost    off: none; finite: one pass; norm: one more in float32, through 16 KiB of stack. */
pen_status admission_check(const admission *a, const admission_gradient *g, pen_error *why);

#endif
