/* permutation.c - two shuffles, over indices of 4 or of 8 bytes. */
#include "worker/data/permutation.h"

#include "common/base/why.h"
#include "worker/data/mt19937.h"

#include <stdbool.h>
#include <stdlib.h>

static uint64_t get(const permutation *p, uint64_t i)
{
    return p->narrow != NULL ? p->narrow[i] : p->wide[i];
}

static void set(permutation *p, uint64_t i, uint64_t value)
{
    if (p->narrow != NULL)
        p->narrow[i] = (uint32_t)value;
    else
        p->wide[i] = value;
}

static pen_status make_room(permutation *p, uint64_t n, pen_error *why)
{
    const bool is_narrow = n - 1 <= UINT32_MAX;
    const size_t width   = is_narrow ? sizeof *p->narrow : sizeof *p->wide;
    if (p->n == n) return PEN_OK;
    void *room = n <= SIZE_MAX / width ? malloc((size_t)n * width) : NULL;
    if (room == NULL)
        return why_set(why, PEN_NO_MEMORY,
                       "no memory for the order of %llu samples: a shuffle needs %zu bytes for "
                       "each; keep_order=1 needs none",
                       (unsigned long long)n, width);
    permutation_free(p);
    *p = is_narrow ? (permutation){.n = n, .narrow = room} : (permutation){.n = n, .wide = room};
    return PEN_OK;
}

pen_status permutation_draw(permutation *p, uint64_t n, uint64_t seed, pen_error *why)
{
    mt19937 g;
    if (n >= PERMUTATION_LARGE) return permutation_draw_large(p, n, seed, why);
    if (n == 0) return PEN_OK;
    if (make_room(p, n, why) != PEN_OK) return why->status;
    mt19937_seed(&g, seed);
    for (uint64_t i = 0; i < n; i++) set(p, i, i);
    for (uint64_t i = 0; i + 1 < n; i++) {
        const uint64_t other = i + mt19937_next(&g) % (n - i);
        const uint64_t kept  = get(p, i);
        set(p, i, get(p, other));
        set(p, other, kept);
    }
    return PEN_OK;
}

pen_status permutation_draw_large(permutation *p, uint64_t n, uint64_t seed, pen_error *why)
{
    mt19937 g;
    if (n == 0) return PEN_OK;
    if (make_room(p, n, why) != PEN_OK) return why->status;
    mt19937_seed(&g, seed);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t other = mt19937_next64(&g) % (i + 1);
        set(p, i, i); /* get() needs it when `other` is i */
        set(p, i, get(p, other));
        set(p, other, i);
    }
    return PEN_OK;
}

uint64_t permutation_at(const permutation *p, uint64_t i)
{
    return get(p, i);
}

void permutation_free(permutation *p)
{
    free(p->narrow);
    free(p->wide);
    *p = (permutation){0};
}
