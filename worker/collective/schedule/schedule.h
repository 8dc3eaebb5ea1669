/* schedule.h - algorithms as data: which member sends what to which, in which step.  Pure.
 *
 * A schedule is one member's work: steps, each a list of moves.  All moves of a step may run at
 * once; a step begins when the previous one has ended on this member.  Moves use units: the n
 * elements of a call are split into `units` equal parts (schedule_unit() is where each begins), or,
 * with `by_counts`, a unit is a member's part.
 *
 * Memory: IN is the caller's input, OUT its output, TEMP a scratch of schedule_temp_elements().  A
 * RECV fills its range.  A FOLD computes from IN, OUT or TEMP, in the order listed (rank order with
 * `keeps_order`).  A COPY copies.  Local moves of a step run after its RECVs are complete, in the
 * order listed.
 *
 * What a runner can rely on, and what it must do:
 * Where      schedule_where() is the place of every range, in elements, also if IN or OUT is only a
 *            member's own part (unit numbers stay those of the whole).  A range is always one
 *            contiguous piece.
 * Matching   The k-th SEND of i to j in the whole schedule fills the k-th RECV of j from i, of the
 *            same length.  Several moves of one step may have the same peer.  Every SEND is one
 *            message, even without elements.
 * Sends      No move of a step writes what a SEND of that step reads, no two RECVs of a step
 *            overlap, and a SEND reads only data from before its step.  Sends may therefore be by
 *            reference until the step ends.  A step may have only local moves, and a schedule may
 *            have no moves at all on some members.
 * Chunks     A FOLD or COPY is elementwise: elements [a, b) can be computed once those of its
 *            operands have arrived and earlier local moves that write them are done.
 * In place   IN and OUT must not overlap.  If the caller's do, or a failed call must leave IN
 *            unchanged, the runner uses another OUT and copies at the end.  Only broadcast has one
 *            buffer: the root sends from IN, the others receive to and forward from OUT.  OUT is
 *            never used on members without a result (reduce, gather: all but the root), nor IN on
 *            members without an input (scatter: all but the root).
 * Scales     An operand of a FOLD with `of` >= 0 is that member's input, not yet scaled.  With
 *            `of` == -1 it is a fold already.  A schedule that keeps the order folds only inputs,
 *            all at once, so 16-bit floats are rounded once.  Others send partial folds; an AVG is
 *            a sum until `is_last`.  With `scales_first` every member scales its own input before
 *            it is sent, so no member needs the scale of another.
 * Passes     With `split`, a call of several segments runs the steps before it for all segments,
 *            then the others for all.
 * Choice     All members must choose alike, so schedule_for_call() uses only what all have in
 *            common.  Members with different calls may choose differently; the headers of the calls
 *            reveal that, not the schedules.
 */
#ifndef WORKER_COLL_SCHEDULE_H
#define WORKER_COLL_SCHEDULE_H

#include "worker/collective/coll.h"

typedef enum { MOVE_SEND, MOVE_RECV, MOVE_FOLD, MOVE_COPY } move_verb;
typedef enum { MOVE_IN, MOVE_OUT, MOVE_TEMP } move_place;

/* Units `unit` .. `unit` + `units` - 1, contiguous.  Each slot of TEMP has room for the longest
 * unit: unit `base` is at the start of slot `slot`, the next units follow without gaps. */
typedef struct {
    move_place place;
    uint32_t unit, units;
    uint32_t slot, base; /* TEMP only */
    int of;              /* operand of a FOLD: position whose input it is; else -1 */
} move_range;

typedef struct {
    move_verb verb;
    int peer;         /* SEND, RECV: position, never this member's own; else -1 */
    move_range range; /* what is sent, filled or computed */
    /* FOLD, COPY (one): operands, in schedule.operand[from ...], of the same units. */
    uint32_t from, n_from;
    /* FOLD: the final one of its elements; only here does AVG divide, by the size of the group. */
    bool is_last;
} move;

typedef struct {
    uint32_t units, temp_units; /* temp_units: slots of TEMP */
    bool by_counts;             /* units are members' parts */
    bool keeps_order; /* folds are in rank order, with the bits of one fold of all inputs */
    bool scales_first;
    uint32_t split; /* the first step of the second pass; 0: one pass */
    uint32_t n_steps, n_moves, n_operands;
    const uint32_t *step; /* [n_steps + 1] the first move of each */
    const move *moves;
    const move_range *operand;
} schedule;

/* Cost of an algorithm, for selection.  rounds: messages in sequence; bytes: sent by the busiest
 * member; folded: bytes of operands that the busiest member reads for arithmetic. */
typedef struct {
    double rounds, bytes, folded;
} schedule_cost;

/* direct, one_shot, ring, recursive_doubling, halving_doubling, tree, pairwise, bruck, pipeline, funnel, chain */
typedef struct {
    const char *name;
    const char *doc;
    bool (*fits)(coll_kind kind, int size); /* whether it supports this kind and size */
    bool keeps_order;
    /* Its folds have those bits too, if partial ones are wide enough (runner.h). */
    bool in_rank_order;
    bool any_order;       /* and those of any other order (reduce_order) */
    bool even_all_to_all; /* its all_to_all needs equal parts: not for calls with counts */
    /* NO_MEMORY is the only error; fits() must be true.  Freed by schedule_free(). */
    pen_status (*build)(coll_kind kind, int size, int rank, int root, schedule **out);
    /* The formulas of the literature, S = bytes of the call's n elements (of one part, where a call
     * has parts). */
    schedule_cost (*cost)(coll_kind kind, int size, double S);
} schedule_algorithm;

extern const schedule_algorithm *const schedule_all[]; /* NULL-terminated */
const schedule_algorithm *schedule_find(const char *name);
void schedule_free(schedule *s);

/* First element of unit `u` of n elements: equal parts, the first n % units are one longer. */
size_t schedule_unit(const schedule *s, size_t n, uint32_t u);

/* The binomial tree of n positions whose root is 0: the parent of v > 0 is v minus its lowest bit, which is the size of
 * v's subtree if the tree is full.  schedule_tree_span(): that size; of the root, the power of two that is >= n. */
int schedule_tree_span(int v, int n);
int schedule_tree_members(int v, int span, int n); /* those of n in a subtree at v of that size */

/* The place of a range in IN, OUT or TEMP, in elements.  `call` is this member's, `rank` its position. */
typedef struct {
    size_t at, elements;
} schedule_span;
schedule_span schedule_where(const schedule *s, const coll_call *call, int size, int rank,
                             const move_range *range);
size_t schedule_temp_elements(const schedule *s, const coll_call *call, int size);

/* ---- selection ------------------------------------------------------------------------------- */
/* A table is text: rules separated by ';'.  The first rule that fits wins; the built-in ones follow:
 * all_reduce ranks=2-4 bytes=0-16k : one_shot ; broadcast bytes=64k- : pipeline ...
 * bytes are those of cost()'s S, with k, m or g for 2^10, 2^20, 2^30; "A-B" includes both, "A-" has
 * no end, "A" is A.  Folds of floats use only algorithms that keep their order.
 * A rule with memory=device is for device memory inside a host, where there are two ways instead of
 * algorithms: "all_reduce memory=device bytes=1m- : nccl", or "... : kernels". */
typedef struct schedule_table schedule_table;
/* BAD_SETTING names the rule. */
pen_status schedule_table_parse(const char *text, schedule_table **table, pen_error *why);
void schedule_table_swap(schedule_table *a, schedule_table *b); /* their rules */
void schedule_table_free(schedule_table *table);

/* The order in which floats are folded: any; of the ranks; that of a reduce_order. */
typedef enum { SCHEDULE_ANY_ORDER, SCHEDULE_RANK_ORDER, SCHEDULE_OTHER_ORDER } schedule_order;

/* Never NULL; table may be NULL.  on_one_host: all members are.  Ignores what may differ between members (counts of
 * all_to_all, scales). */
const schedule_algorithm *schedule_for_call(const schedule_table *table, const coll_call *call,
                                            int size, schedule_order order, bool on_one_host);

/* The way of a call on device memory; the same call may use the other if this one cannot carry it. */
typedef enum {
    SCHEDULE_DEVICE_MEASURED, /* no rule: as the team measured */
    SCHEDULE_DEVICE_KERNELS,
    SCHEDULE_DEVICE_NCCL
} schedule_device;
schedule_device schedule_for_device(const schedule_table *table, const coll_call *call, int size);
bool schedule_wants_nccl(const schedule_table *table); /* a rule names it */
bool schedule_nccl_has(coll_kind kind);                /* a rule may name it for this kind */

#endif
