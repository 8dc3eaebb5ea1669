/* runner_plan.c - what follows from a schedule alone: which move fills what, and which must wait. */
#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "worker/collective/schedule/runner.h"

#include <stdlib.h>

/* ---- reads and writes of a step -------------------------------------------------------------- */
static bool overlap(const move_range *a, const move_range *b)
{
    if (a->place != b->place) return false;
    if (a->place != MOVE_TEMP) return a->unit < b->unit + b->units && b->unit < a->unit + a->units;
    if (a->slot == b->slot && a->base == b->base)
        return a->unit < b->unit + b->units && b->unit < a->unit + a->units;
    /* Units may be shorter than slots: a range begins at its first slot and covers at most as many slots as units. */
    return a->slot < b->slot + (b->unit - b->base) + b->units &&
           b->slot < a->slot + (a->unit - a->base) + a->units;
}

static bool writes(const move *m)
{
    return m->verb != MOVE_SEND;
}

/* Whether move m uses `range` at all. */
static bool touches(const schedule *s, const move *m, const move_range *range)
{
    if (overlap(&m->range, range)) return true;
    for (uint32_t i = 0; i < m->n_from; i++)
        if (overlap(&s->operand[m->from + i], range)) return true;
    return false;
}

static bool is_free(const schedule *s, uint32_t step, const move_range *range)
{
    for (uint32_t m = 0; m < s->step[step]; m++)
        if (touches(s, &s->moves[m], range)) return false;
    return true;
}

static bool writes_what_was_sent(const schedule *s, uint32_t step)
{
    for (uint32_t m = s->step[step]; m < s->step[step + 1]; m++)
        for (uint32_t i = 0; writes(&s->moves[m]) && i < s->step[step]; i++)
            if (s->moves[i].verb == MOVE_SEND && overlap(&s->moves[i].range, &s->moves[m].range))
                return true;
    return false;
}

static bool is_same(const move_range *a, const move_range *b)
{
    return a->place == b->place && a->unit == b->unit && a->units == b->units &&
           a->slot == b->slot && a->base == b->base;
}

/* The RECV of that step that fills exactly this range; n_moves: none. */
static uint32_t filler(const schedule *s, uint32_t step, const move_range *range)
{
    for (uint32_t m = s->step[step]; m < s->step[step + 1]; m++)
        if (s->moves[m].verb == MOVE_RECV && is_same(&s->moves[m].range, range)) return m;
    return s->n_moves;
}

/* Whether move `reader` of `step` works without the data that RECV m would put in its place. */
static bool spares(const schedule *s, uint32_t step, uint32_t reader, uint32_t m)
{
    const move *one         = &s->moves[reader];
    const move_range *place = &s->moves[m].range;
    if (reader == m) return true;
    if (one->verb == MOVE_SEND && overlap(&one->range, place)) return false;
    for (uint32_t i = 0; i < one->n_from; i++) {
        const move_range *operand = &s->operand[one->from + i];
        if (!overlap(operand, place)) continue;
        const uint32_t from = filler(s, step, operand);
        if (from == s->n_moves || (one->verb == MOVE_COPY && from == m)) return false;
    }
    return true;
}

static bool may_stay(const schedule *s, uint32_t step, uint32_t m)
{
    if (s->moves[m].range.place != MOVE_TEMP) return false;
    for (uint32_t k = step; k < s->n_steps; k++)
        for (uint32_t i = s->step[k]; i < s->step[k + 1]; i++)
            if (!spares(s, k, i, m)) return false;
    return true;
}

static void name_sources(runner_plan *p)
{
    const schedule *s = p->s;
    for (uint32_t step = 0; step < s->n_steps; step++)
        for (uint32_t m = s->step[step]; m < s->step[step + 1]; m++)
            for (uint32_t i = 0; i < s->moves[m].n_from; i++) {
                const uint32_t o = s->moves[m].from + i;
                p->source[o]     = filler(s, step, &s->operand[o]);
            }
}

/* ---- numbers --------------------------------------------------------------------------------- */
static void number_slots(runner_plan *p, int size, uint32_t *sent)
{
    const schedule *s = p->s;
    for (uint32_t m = 0; m < s->n_moves; m++) {
        if (s->moves[m].verb == MOVE_SEND) p->slot[m] = sent[s->moves[m].peer]++;
        if (s->moves[m].verb == MOVE_RECV) p->first[s->moves[m].peer + 1]++;
    }
    for (int i = 0; i < size; i++) p->first[i + 1] += p->first[i];
    for (int i = 0; i < size; i++) sent[i] = 0;
    for (uint32_t m = 0; m < s->n_moves; m++) {
        if (s->moves[m].verb != MOVE_RECV) continue;
        const int peer                       = s->moves[m].peer;
        p->slot[m]                           = sent[peer]++;
        p->recv[p->first[peer] + p->slot[m]] = m;
    }
}

static void judge_steps(runner_plan *p)
{
    const schedule *s = p->s;
    for (uint32_t step = 0; step < s->n_steps; step++) {
        p->waits[step] = writes_what_was_sent(s, step);
        for (uint32_t m = s->step[step]; m < s->step[step + 1]; m++) {
            const move *one = &s->moves[m];
            p->step_of[m]   = step;
            if (one->verb == MOVE_RECV) p->is_free[m] = is_free(s, step, &one->range);
            if (one->verb == MOVE_RECV) p->may_stay[m] = may_stay(s, step, m);
            if (one->n_from > p->operands_max) p->operands_max = one->n_from;
        }
    }
}

pen_status runner_plan_init(runner_plan *p, schedule *s, int size, pen_error *why)
{
    const size_t moves = (size_t)s->n_moves + 1, steps = (size_t)s->n_steps + 1;
    uint32_t *sent = calloc((size_t)size, sizeof *sent);
    *p             = (runner_plan){.s = s};
    p->arrays      = ARRAYS_NEW(ARRAY(p->step_of, moves), ARRAY(p->slot, moves),
                                ARRAY(p->first, (size_t)size + 1), ARRAY(p->recv, moves),
                                ARRAY(p->is_free, moves), ARRAY(p->may_stay, moves),
                                ARRAY(p->source, (size_t)s->n_operands + 1), ARRAY(p->waits, steps));
    if (sent == NULL || p->arrays == NULL) {
        why_set(why, PEN_NO_MEMORY, "no memory for a schedule of %u moves", s->n_moves);
        free(sent);
        runner_plan_fini(p); /* and s */
        return PEN_NO_MEMORY;
    }
    number_slots(p, size, sent);
    judge_steps(p);
    name_sources(p);
    free(sent);
    return PEN_OK;
}

void runner_plan_fini(runner_plan *p)
{
    free(p->arrays);
    if (p->s != NULL) schedule_free(p->s);
    *p = (runner_plan){0};
}
