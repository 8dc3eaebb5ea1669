/* schedule_draft.h - builds a schedule move by move; small arithmetic that algorithms share.
 *
 * DESIGN
 * A draft without memory ignores further moves, and schedule_draft_end() returns the error:
 * algorithms need no check on every line.  A step without moves is dropped.
 */
#ifndef WORKER_COLL_SCHEDULE_DRAFT_H
#define WORKER_COLL_SCHEDULE_DRAFT_H

#include "worker/collective/schedule/schedule.h"

typedef struct {
    schedule *s; /* NULL: memory ran out */
    uint32_t *step;
    move *moves;
    move_range *operands;
    size_t step_cap, move_cap, operand_cap;
} schedule_draft;

schedule_draft schedule_draft_begin(coll_kind kind, uint32_t units, uint32_t temp_units,
                                    bool keeps_order);
void draft_step(schedule_draft *d);
void draft_split(schedule_draft *d); /* ends the step, and the first pass */
void draft_scale_first(schedule_draft *d);
void draft_send(schedule_draft *d, int peer, move_range range);
void draft_recv(schedule_draft *d, int peer, move_range range);
void draft_copy(schedule_draft *d, move_range to, move_range from);
void draft_fold(schedule_draft *d, move_range to, bool is_last); /* operands follow, in order */
void draft_operand(schedule_draft *d, move_range range, int of);
/* A fold of two operands, the lower position's first. */
void draft_fold_pair(schedule_draft *d, move_range to, bool is_last, move_range mine, int mine_of,
                     bool mine_first, move_range other, int other_of);
pen_status schedule_draft_end(schedule_draft *d, schedule **out);

/* The schedule of a group of one, for any algorithm. */
pen_status schedule_build_alone(coll_kind kind, schedule **out);
schedule_cost schedule_cost_alone(coll_kind kind, double S);

move_range range_in(uint32_t unit, uint32_t units);
move_range range_out(uint32_t unit, uint32_t units);
move_range range_temp(uint32_t slot, uint32_t base, uint32_t unit, uint32_t units);

bool schedule_kind_by_counts(coll_kind kind);
int power_of_two_below(int size); /* the largest that is <= size */
int log2_floor(int size);
int log2_ceil(int size);

extern const schedule_algorithm schedule_direct, schedule_one_shot, schedule_ring,
    schedule_recursive_doubling, schedule_halving_doubling, schedule_tree, schedule_pairwise,
    schedule_bruck, schedule_pipeline, schedule_funnel, schedule_chain;

#endif
