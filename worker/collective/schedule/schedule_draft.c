/* schedule_draft.c - building a schedule, and the schedule of a group of one. */
#include "worker/collective/schedule/schedule_draft.h"

#include "common/containers/arrays.h"

#include <stdlib.h>

static void give_up(schedule_draft *d)
{
    free(d->step);
    free(d->moves);
    free(d->operands);
    free(d->s);
    *d = (schedule_draft){0};
}

/* Gives the draft up if it has no room. */
static bool is_fine(schedule_draft *d, bool has_room)
{
    if (!has_room) give_up(d);
    return has_room;
}

schedule_draft schedule_draft_begin(coll_kind kind, uint32_t units, uint32_t temp_units,
                                    bool keeps_order)
{
    schedule_draft d = {.s = calloc(1, sizeof(schedule))};
    if (!d.s) return d;
    d.s->units       = units;
    d.s->temp_units  = temp_units;
    d.s->by_counts   = schedule_kind_by_counts(kind);
    d.s->keeps_order = keeps_order || !coll_reduces(kind);
    draft_step(&d);
    return d;
}

void draft_step(schedule_draft *d)
{
    if (!d->s) return;
    schedule *s = d->s;
    if (s->n_steps && d->step[s->n_steps - 1] == s->n_moves)
        return; /* the last step is still empty */
    /* One more, because schedule_draft_end() writes the end of the last step. */
    if (!is_fine(d, VEC_ROOM(d->step, d->step_cap, s->n_steps + 2))) return;
    d->step[s->n_steps++] = s->n_moves;
}

void draft_split(schedule_draft *d)
{
    draft_step(d);
    if (d->s) d->s->split = d->s->n_steps - 1;
}

void draft_scale_first(schedule_draft *d)
{
    if (d->s) d->s->scales_first = true;
}

static move *add(schedule_draft *d, move_verb verb, int peer, move_range range)
{
    if (!d->s) return NULL;
    if (!is_fine(d, VEC_ROOM(d->moves, d->move_cap, d->s->n_moves + 1))) return NULL;
    move *m = &d->moves[d->s->n_moves++];
    *m      = (move){.verb = verb, .peer = peer, .range = range, .from = d->s->n_operands};
    return m;
}

void draft_send(schedule_draft *d, int peer, move_range range)
{
    (void)add(d, MOVE_SEND, peer, range);
}

void draft_recv(schedule_draft *d, int peer, move_range range)
{
    (void)add(d, MOVE_RECV, peer, range);
}

void draft_copy(schedule_draft *d, move_range to, move_range from)
{
    (void)add(d, MOVE_COPY, -1, to);
    draft_operand(d, from, -1);
}

void draft_fold(schedule_draft *d, move_range to, bool is_last)
{
    move *m = add(d, MOVE_FOLD, -1, to);
    if (m) m->is_last = is_last;
}

void draft_operand(schedule_draft *d, move_range range, int of)
{
    if (!d->s) return;
    if (!is_fine(d, VEC_ROOM(d->operands, d->operand_cap, d->s->n_operands + 1))) return;
    range.of                        = of;
    d->operands[d->s->n_operands++] = range;
    d->moves[d->s->n_moves - 1].n_from++;
}

void draft_fold_pair(schedule_draft *d, move_range to, bool is_last, move_range mine, int mine_of,
                     bool mine_first, move_range other, int other_of)
{
    draft_fold(d, to, is_last);
    if (mine_first) draft_operand(d, mine, mine_of);
    draft_operand(d, other, other_of);
    if (!mine_first) draft_operand(d, mine, mine_of);
}

pen_status schedule_draft_end(schedule_draft *d, schedule **out)
{
    *out = NULL;
    if (!d->s) return PEN_NO_MEMORY;
    schedule *s = d->s;
    if (d->step[s->n_steps - 1] == s->n_moves) s->n_steps--;
    d->step[s->n_steps] = s->n_moves;
    s->step             = d->step;
    s->moves            = d->moves;
    s->operand          = d->operands;
    *d                  = (schedule_draft){0};
    *out                = s;
    return PEN_OK;
}

pen_status schedule_build_alone(coll_kind kind, schedule **out)
{
    schedule_draft d = schedule_draft_begin(kind, 1, 0, true);
    if (coll_reduces(kind)) {
        draft_fold(&d, range_out(0, 1), true);
        draft_operand(&d, range_in(0, 1), 0);
    } else if (kind != COLL_BARRIER && kind != COLL_BROADCAST) {
        draft_copy(&d, range_out(0, 1), range_in(0, 1));
    }
    return schedule_draft_end(&d, out);
}

schedule_cost schedule_cost_alone(coll_kind kind, double S)
{
    return (schedule_cost){.folded = coll_reduces(kind) ? S : 0};
}

move_range range_in(uint32_t unit, uint32_t units)
{
    return (move_range){.place = MOVE_IN, .unit = unit, .units = units, .of = -1};
}

move_range range_out(uint32_t unit, uint32_t units)
{
    return (move_range){.place = MOVE_OUT, .unit = unit, .units = units, .of = -1};
}

move_range range_temp(uint32_t slot, uint32_t base, uint32_t unit, uint32_t units)
{
    return (move_range){
        .place = MOVE_TEMP, .unit = unit, .units = units, .slot = slot, .base = base, .of = -1};
}

bool schedule_kind_by_counts(coll_kind kind)
{
    switch (kind) {
    case COLL_GATHER:
    case COLL_ALL_GATHER:
    case COLL_SCATTER:
    case COLL_REDUCE_SCATTER:
    case COLL_ALL_TO_ALL: return true;
    default: return false;
    }
}

int schedule_tree_span(int v, int n)
{
    int span = 1;
    while (span < n && (v & span) == 0) span *= 2;
    return span;
}

int schedule_tree_members(int v, int span, int n)
{
    return v + span < n ? span : n - v;
}

int log2_floor(int size)
{
    int log = 0;
    while (size > 1) {
        size /= 2;
        log++;
    }
    return log;
}

int log2_ceil(int size)
{
    return size > 1 ? log2_floor(size - 1) + 1 : 0;
}

int power_of_two_below(int size)
{
    return 1 << log2_floor(size);
}
