/* sharded_ranges.c - divides tensors into ranges and keeps each member's total near its share. */
#include "worker/train/sharded/sharded_ranges.h"

#include "common/base/why.h"
#include "proto/plan.h"

#include <stdlib.h>

typedef struct {
    uint64_t total; /* of all tensors so far */
    uint64_t *have; /* [size] of each member */
} account;

/* The block border nearest to a place between two elements; the lower one if two are as near. */
static uint64_t nearest_border(double place, uint64_t elements)
{
    const uint64_t below = (uint64_t)(place / PLAN_BLOCK) * PLAN_BLOCK;
    if (below >= elements) return elements;
    const uint64_t above = elements - below < PLAN_BLOCK ? elements : below + PLAN_BLOCK;
    return place - (double)below <= (double)above - place ? below : above;
}

/* How much a member is below its share of the total so far; in units of 1/size elements. */
static double lack(const account *a, int size, int member)
{
    const double share = (double)a->total, has = (double)a->have[member] * size;
    return share > has ? share - has : 0;
}

static void cut_tensor(account *a, uint64_t elements, int size, sharded_range *range)
{
    double all = 0, sum = 0;
    uint64_t at = 0;
    a->total += elements;
    for (int m = 0; m < size; m++) all += lack(a, size, m);
    for (int m = 0; m < size; m++) {
        sum += lack(a, size, m);
        uint64_t end =
            m == size - 1 ? elements : nearest_border((double)elements * (sum / all), elements);
        if (end < at) end = at;
        range[m] = (sharded_range){.start = at, .count = end - at};
        at       = end;
    }
    for (int m = 0; m < size; m++) a->have[m] += range[m].count;
}

pen_status sharded_ranges(uint32_t n_tensors, const uint64_t *elements, const bool *trained,
                          int size, sharded_range *range, pen_error *why)
{
    uint64_t *have = calloc((size_t)size * 2, sizeof *have);
    if (have == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to cut a model for %d", size);
    account frozen = {.have = have}, learns = {.have = have + size};
    for (uint32_t t = 0; t < n_tensors; t++)
        cut_tensor(trained[t] ? &learns : &frozen, elements[t], size,
                   range + (size_t)t * (size_t)size);
    free(have);
    return PEN_OK;
}
