/* admission.c - off, finite, norm:BOUND. */
#include "server/shard/admission.h"

#include "common/base/why.h"
#include "common/compute/simd/simd.h"
#include "proto/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

pen_status admission_parse(const char *text, admission *a, pen_error *why)
{
    static const char norm[] = "norm:";
    char *end;
    admission found = {.finite = true};
    if (strcmp(text, "off") == 0) {
        *a = (admission){0};
        return PEN_OK;
    }
    if (strncmp(text, norm, strlen(norm)) == 0) {
        found.norm_max       = strtod(text + strlen(norm), &end);
        const bool is_number = end != text + strlen(norm) && *end == '\0';
        if (!is_number || !(found.norm_max > 0) || !isfinite(found.norm_max))
            return why_set(why, PEN_BAD_SETTING,
                           "admission is '%.64s'; expected a number above 0 after norm:", text);
    } else if (strcmp(text, "finite") != 0) {
        return why_set(why, PEN_BAD_SETTING,
                       "admission is '%.64s'; expected off, finite or norm:BOUND", text);
    }
    *a = found;
    return PEN_OK;
}

static double norm_of(const admission_gradient *g)
{
    float block[SIMD_BLOCK];
    const uint8_t *at = g->data;
    double squares    = 0;
    for (size_t done = 0; done < g->count; done += SIMD_BLOCK) {
        const size_t n = g->count - done < SIMD_BLOCK ? g->count - done : SIMD_BLOCK;
        double sum     = 0;
        simd()->decode(block, at, g->dtype, n);
        simd()->norm(block, n, &sum);
        squares += sum;
        at += n * plan_dtype_bytes(g->dtype);
    }
    return sqrt(squares) / g->loss_scale;
}

pen_status admission_check(const admission *a, const admission_gradient *g, pen_error *why)
{
    if (!a->finite) return PEN_OK;
    if (!simd()->finite(g->data, g->dtype, g->count))
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "the gradient of '%s' from worker %d for step %" PRIu64
                       " is not finite; admission accepts finite ones only",
                       g->tensor, g->rank, g->step);
    if (a->norm_max == 0) return PEN_OK;
    const double norm = norm_of(g);
    if (norm <= a->norm_max) return PEN_OK;
    return why_set(why, PEN_INVALID_ARGUMENT,
                   "a piece of the gradient of '%s' from worker %d for step %" PRIu64
                   " has norm %.6g; admission accepts norms up to %.6g",
                   g->tensor, g->rank, g->step, norm, a->norm_max);
}
