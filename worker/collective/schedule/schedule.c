/* schedule.c - the list of algorithms, and the places of units. */
#include "worker/collective/schedule/schedule_draft.h"

#include <stdlib.h>
#include <string.h>

const schedule_algorithm *const schedule_all[] = {
    &schedule_direct,
    &schedule_one_shot,
    &schedule_ring,
    &schedule_recursive_doubling,
    &schedule_halving_doubling,
    &schedule_tree,
    &schedule_pairwise,
    &schedule_bruck,
    &schedule_pipeline,
    &schedule_funnel,
    &schedule_chain,
    NULL,
};

const schedule_algorithm *schedule_find(const char *name)
{
    for (int i = 0; schedule_all[i]; i++)
        if (strcmp(schedule_all[i]->name, name) == 0) return schedule_all[i];
    return NULL;
}

void schedule_free(schedule *s)
{
    if (!s) return;
    free((void *)s->step);
    free((void *)s->moves);
    free((void *)s->operand);
    free(s);
}

size_t schedule_unit(const schedule *s, size_t n, uint32_t u)
{
    size_t longer = n % s->units;
    return n / s->units * u + (u < longer ? u : longer);
}

static size_t begin_of(const schedule *s, const coll_call *call, move_place place, uint32_t unit)
{
    if (!s->by_counts) return schedule_unit(s, call->n, unit);
    /* The counts of the units of a place; NULL: all equal. */
    const size_t *counts =
        call->kind == COLL_ALL_TO_ALL && place == MOVE_OUT ? call->out_counts : call->counts;
    return counts ? coll_part_offset(counts, call->n, (int)unit) : call->n * unit;
}

/* Whether a place has room for this member's own part only. */
static bool is_own_part(const coll_call *call, move_place place)
{
    if (place == MOVE_IN) return call->kind == COLL_GATHER || call->kind == COLL_ALL_GATHER;
    return call->kind == COLL_SCATTER || call->kind == COLL_REDUCE_SCATTER;
}

static size_t longest_unit(const schedule *s, const coll_call *call, int size)
{
    if (!s->by_counts) return call->n / s->units + (call->n % s->units != 0);
    if (!call->counts) return call->n;
    size_t longest = 0;
    for (int i = 0; i < size; i++)
        if (call->counts[i] > longest) longest = call->counts[i];
    return longest;
}

schedule_span schedule_where(const schedule *s, const coll_call *call, int size, int rank,
                             const move_range *range)
{
    move_place place   = range->place;
    size_t begin       = begin_of(s, call, place, range->unit);
    size_t end         = begin_of(s, call, place, range->unit + range->units);
    schedule_span span = {.at = begin, .elements = end - begin};
    if (place == MOVE_TEMP)
        span.at = range->slot * longest_unit(s, call, size) + begin -
                  begin_of(s, call, place, range->base);
    else if (is_own_part(call, place))
        span.at -= begin_of(s, call, place, (uint32_t)rank);
    return span;
}

size_t schedule_temp_elements(const schedule *s, const coll_call *call, int size)
{
    return s->temp_units ? s->temp_units * longest_unit(s, call, size) : 0;
}
