/* stat.c - the counters, all relaxed: each is exact, none orders other memory. */
#include "common/base/stat.h"

#include "common/base/clock.h"

#include <math.h>
#include <string.h>

const stat_row stat_rows[STAT_COUNT] = {
#define X(id, name, unit, kind, doc) {name, unit, doc, STAT_##kind},
    STAT_LIST(X)
#undef X
};

const stat_row stat_spread_rows[STAT_SPREADS] = {
#define X(id, name, unit, doc) {name, unit, doc, STAT_COUNTER},
    STAT_SPREAD_LIST(X)
#undef X
};

enum {
    FIRST_BOUND_LOG = 14
}; /* of times: 2^14 ns, 16 microseconds; of whole numbers: 0, 1, 2, 4 */

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
    stat_add(set, level, (uint64_t)bytes); /* negative: added modulo 2^64 */
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

void stat_crossed(stat_set *set, stat_traffic what, bool is_up, uint64_t bytes)
{
    static const stat_id down[] = {[TRAFFIC_OTHER] = STAT_DEVICE_DOWN_OTHER,
                                   [TRAFFIC_GRAD]  = STAT_DEVICE_DOWN_GRAD,
                                   [TRAFFIC_VALUE] = STAT_DEVICE_DOWN_VALUE};
    static const stat_id up[]   = {[TRAFFIC_OTHER] = STAT_DEVICE_UP_OTHER,
                                   [TRAFFIC_GRAD]  = STAT_DEVICE_UP_GRAD,
                                   [TRAFFIC_VALUE] = STAT_DEVICE_UP_VALUE};
    stat_add(set, is_up ? up[what] : down[what], bytes);
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

/* ---- distributions --------------------------------------------------------------------------- */
static bool is_time(stat_spread_id id)
{
    return strcmp(stat_spread_rows[id].unit, "seconds") == 0;
}

/* The first bucket whose bound is not below the value. */
static int bucket_of(stat_spread_id id, uint64_t value)
{
    const int log = value <= 1 ? 0 : 64 - __builtin_clzll(value - 1); /* value <= 2^log */
    int i         = is_time(id) ? log - FIRST_BOUND_LOG : log + (value > 0);
    if (i < 0) i = 0;
    return i < STAT_BUCKETS ? i : STAT_BUCKETS - 1;
}

uint64_t stat_begin(const stat_set *set)
{
    return atomic_load_explicit(&set->is_watched, memory_order_relaxed) ? clock_ns(&clock_real) : 0;
}

void stat_observe(stat_set *set, stat_spread_id id, uint64_t value)
{
    if (!atomic_load_explicit(&set->is_watched, memory_order_relaxed)) return;
    stat_spread *s = &set->spread[id];
    atomic_fetch_add_explicit(&s->bucket[bucket_of(id, value)], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->sum, value, memory_order_relaxed);
}

void stat_took(stat_set *set, stat_spread_id id, uint64_t begun)
{
    if (begun != 0) stat_observe(set, id, clock_ns(&clock_real) - begun);
}

double stat_bound(stat_spread_id id, int i)
{
    if (i >= STAT_BUCKETS - 1) return INFINITY;
    if (is_time(id)) return ldexp(1e-9, i + FIRST_BOUND_LOG);
    return i == 0 ? 0 : ldexp(1, i - 1);
}

double stat_sum(const stat_set *set, stat_spread_id id)
{
    const double sum = (double)atomic_load_explicit(&set->spread[id].sum, memory_order_relaxed);
    return is_time(id) ? sum / 1e9 : sum;
}
