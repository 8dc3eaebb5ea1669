/* stat.c - the counters, all relaxed: each is true by itself, and none orders other memory. */
#include "common/stat.h"

#include <string.h>

const stat_row stat_rows[STAT_COUNT] = {
#define X(id, name, unit, doc) {name, unit, doc},
    STAT_LIST(X)
#undef X
};

void stat_add(stat_set *set, stat_id id, uint64_t n)
{
    atomic_fetch_add_explicit(&set->value[id], n, memory_order_relaxed);
}

void stat_max(stat_set *set, stat_id id, uint64_t n)
{
    uint_fast64_t seen = atomic_load_explicit(&set->value[id], memory_order_relaxed);
    while (seen < n && !atomic_compare_exchange_weak_explicit(
                           &set->value[id], &seen, n, memory_order_relaxed, memory_order_relaxed))
        continue;
}

void stat_store(stat_set *set, stat_id id, uint64_t n)
{
    atomic_store_explicit(&set->value[id], n, memory_order_relaxed);
}

void stat_hold(stat_set *set, stat_id level, int64_t bytes)
{
    stat_add(set, level, (uint64_t)bytes); /* less is added modulo 2^64 */
    if (bytes <= 0) return;
    stat_max(set,
             level == STAT_PARAM_BYTES  ? STAT_PARAM_PEAK
             : level == STAT_GRAD_BYTES ? STAT_GRAD_PEAK
                                        : STAT_SLOT_PEAK,
             stat_get(set, level));
    stat_max(set, STAT_MEMORY_PEAK,
             stat_get(set, STAT_PARAM_BYTES) + stat_get(set, STAT_GRAD_BYTES) +
                 stat_get(set, STAT_SLOT_BYTES));
}

uint64_t stat_get(const stat_set *set, stat_id id)
{
    return atomic_load_explicit(&set->value[id], memory_order_relaxed);
}

int stat_find(const char *name)
{
    for (int i = 0; i < STAT_COUNT; i++)
        if (strcmp(stat_rows[i].name, name) == 0) return i;
    return -1;
}
