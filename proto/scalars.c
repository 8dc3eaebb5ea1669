/* scalars.c - names, adds and compares the scalars of a step. */
#include "proto/scalars.h"

#include "common/base/why.h"

#include <math.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t scalars_name(const char *name)
{
    return XXH3_64bits(name, strlen(name));
}

/* The index of a name, or a new one; WIRE_SCALARS_MAX: no room. */
static uint32_t place(wire_scalars *s, uint64_t name)
{
    uint32_t i = 0;
    while (i < s->n && s->name[i] != name) i++;
    if (i < s->n || i == WIRE_SCALARS_MAX) return i;
    s->name[i]  = name;
    s->sum[i]   = 0;
    s->ranks[i] = 0;
    return s->n++;
}

/* The same NaN on all processors. */
static double canonical(double value)
{
    return isnan(value) ? NAN : value;
}

bool scalars_set(wire_scalars *s, uint64_t name, double value)
{
    const uint32_t i = place(s, name);
    if (i == WIRE_SCALARS_MAX) return false;
    s->sum[i]   = canonical(value);
    s->ranks[i] = 1;
    return true;
}

pen_status scalars_check(const wire_scalars *s, int32_t rank, pen_error *why)
{
    bool is_own = s->n <= WIRE_SCALARS_MAX;
    for (uint32_t i = 0; i < s->n && is_own; i++) is_own = s->ranks[i] == 1;
    if (is_own) return PEN_OK;
    if (s->n > WIRE_SCALARS_MAX)
        why_set(why, PEN_CORRUPT, "rank %d has %u scalars in a step, where %d are the most", rank,
                s->n, WIRE_SCALARS_MAX);
    else
        why_set(why, PEN_CORRUPT, "rank %d gives a scalar as that of several ranks", rank);
    why_culprit(why, PEN_WORKER, rank, -1, NULL);
    return why->status;
}

void scalars_add(wire_scalars *sum, const wire_scalars *more)
{
    for (uint32_t k = 0; k < more->n; k++) {
        const uint32_t i = place(sum, more->name[k]);
        if (i == WIRE_SCALARS_MAX) continue;
        sum->sum[i] = canonical(sum->sum[i] + more->sum[k]);
        sum->ranks[i] += more->ranks[k];
    }
}

bool scalars_find(const wire_scalars *s, uint64_t name, double *sum, uint32_t *ranks)
{
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->name[i] != name) continue;
        *sum   = s->sum[i];
        *ranks = s->ranks[i];
        return true;
    }
    return false;
}

bool scalars_chunk(const plan *p, uint32_t *chunk)
{
    bool found = false;
    for (uint32_t c = 0; c < p->n_chunks; c++) {
        const bool is_decided = p->chunk[c].blocks > 0;
        if (!is_decided && (found || !p->chunk[c].trained)) continue;
        *chunk = c;
        found  = true;
        if (is_decided) break;
    }
    return found;
}
