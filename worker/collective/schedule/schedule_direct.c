/* schedule_direct.c - each member sends directly to the members that need its data.
 *
 * DESIGN
 * direct     Reductions give each element an owner: all members send it their inputs, it folds them
 *            at once in rank order, and the results are gathered.  Two rounds and, for all_reduce,
 *            the 2(n-1)/n S bytes of the ring.  Each member starts with the next position, so that
 *            position 0 is not the first target of all.
 * one_shot   Whole inputs go to all members that need the result; one round, n-1 times the bytes.
 */
#include "worker/collective/schedule/schedule_draft.h"

static bool direct_fits(coll_kind kind, int size)
{
    return kind >= 0 && kind < COLL_KINDS && size >= 1;
}

/* The k-th position after `rank`, and before it. */
static int after(int rank, int k, int size)
{
    return (rank + k) % size;
}

static int before(int rank, int k, int size)
{
    return (rank - k + size) % size;
}

/* Slot for the input of member `of`; the own input needs none. */
static uint32_t slot_of(int of, int rank)
{
    return (uint32_t)(of < rank ? of : of - 1);
}

/* Folds all members' inputs of a range: the own input is in IN, the others' in their slots. */
static void fold_inputs(schedule_draft *d, move_range to, int size, int rank)
{
    draft_fold(d, to, true);
    for (int of = 0; of < size; of++) {
        move_range input = of == rank ? range_in(to.unit, to.units)
                                      : range_temp(slot_of(of, rank), to.unit, to.unit, to.units);
        draft_operand(d, input, of);
    }
}

/* Each owner receives all inputs of its unit and folds them into `to`. */
static void reduce_to_owners(schedule_draft *d, int size, int rank, move_range to)
{
    uint32_t own = (uint32_t)rank;
    for (int k = 1; k < size; k++) {
        int peer = after(rank, k, size), source = before(rank, k, size);
        draft_send(d, peer, range_in((uint32_t)peer, 1));
        draft_recv(d, source, range_temp(slot_of(source, rank), own, own, 1));
    }
    fold_inputs(d, to, size, rank);
}

static void all_reduce(schedule_draft *d, int size, int rank)
{
    reduce_to_owners(d, size, rank, range_out((uint32_t)rank, 1));
    draft_step(d);
    for (int k = 1; k < size; k++) {
        int source = before(rank, k, size);
        draft_send(d, after(rank, k, size), range_out((uint32_t)rank, 1));
        draft_recv(d, source, range_out((uint32_t)source, 1));
    }
}

static void reduce_to_root(schedule_draft *d, int size, int rank, int root)
{
    uint32_t own = (uint32_t)rank;
    move_range mine =
        rank == root ? range_out(own, 1) : range_temp((uint32_t)size - 1, own, own, 1);
    reduce_to_owners(d, size, rank, mine);
    draft_step(d);
    if (rank != root) {
        draft_send(d, root, mine);
        return;
    }
    for (int k = 1; k < size; k++) {
        int source = before(rank, k, size);
        draft_recv(d, source, range_out((uint32_t)source, 1));
    }
}

static void all_to_all(schedule_draft *d, int size, int rank)
{
    for (int k = 1; k < size; k++) {
        int peer = after(rank, k, size), source = before(rank, k, size);
        draft_send(d, peer, range_in((uint32_t)peer, 1));
        draft_recv(d, source, range_out((uint32_t)source, 1));
    }
    draft_copy(d, range_out((uint32_t)rank, 1), range_in((uint32_t)rank, 1));
}

static void all_gather(schedule_draft *d, int size, int rank)
{
    for (int k = 1; k < size; k++) {
        int source = before(rank, k, size);
        draft_send(d, after(rank, k, size), range_in((uint32_t)rank, 1));
        draft_recv(d, source, range_out((uint32_t)source, 1));
    }
    draft_copy(d, range_out((uint32_t)rank, 1), range_in((uint32_t)rank, 1));
}

static void barrier(schedule_draft *d, int size, int rank)
{
    for (int k = 1; k < size; k++) {
        draft_send(d, after(rank, k, size), range_in(0, 0));
        draft_recv(d, before(rank, k, size), range_out(0, 0));
    }
}

static void broadcast(schedule_draft *d, int size, int rank, int root)
{
    if (rank != root) {
        draft_recv(d, root, range_out(0, 1));
        return;
    }
    for (int k = 1; k < size; k++) draft_send(d, after(rank, k, size), range_in(0, 1));
}

static void gather(schedule_draft *d, int size, int rank, int root)
{
    uint32_t own = (uint32_t)rank;
    if (rank != root) {
        draft_send(d, root, range_in(own, 1));
        return;
    }
    for (int k = 1; k < size; k++) {
        int source = after(rank, k, size);
        draft_recv(d, source, range_out((uint32_t)source, 1));
    }
    draft_copy(d, range_out(own, 1), range_in(own, 1));
}

static void scatter(schedule_draft *d, int size, int rank, int root)
{
    uint32_t own = (uint32_t)rank;
    if (rank != root) {
        draft_recv(d, root, range_out(own, 1));
        return;
    }
    for (int k = 1; k < size; k++) {
        int peer = after(rank, k, size);
        draft_send(d, peer, range_in((uint32_t)peer, 1));
    }
    draft_copy(d, range_out(own, 1), range_in(own, 1));
}

static uint32_t direct_units(coll_kind kind, int size)
{
    return kind == COLL_BARRIER || kind == COLL_BROADCAST ? 1 : (uint32_t)size;
}

static pen_status direct_build(coll_kind kind, int size, int rank, int root, schedule **out)
{
    if (size == 1) return schedule_build_alone(kind, out);
    uint32_t slots = coll_reduces(kind) ? (uint32_t)size - 1 : 0;
    if (kind == COLL_REDUCE && rank != root) slots++;
    schedule_draft d = schedule_draft_begin(kind, direct_units(kind, size), slots, true);
    switch (kind) {
    case COLL_BARRIER: barrier(&d, size, rank); break;
    case COLL_BROADCAST: broadcast(&d, size, rank, root); break;
    case COLL_REDUCE: reduce_to_root(&d, size, rank, root); break;
    case COLL_ALL_REDUCE: all_reduce(&d, size, rank); break;
    case COLL_GATHER: gather(&d, size, rank, root); break;
    case COLL_ALL_GATHER: all_gather(&d, size, rank); break;
    case COLL_SCATTER: scatter(&d, size, rank, root); break;
    case COLL_REDUCE_SCATTER: reduce_to_owners(&d, size, rank, range_out((uint32_t)rank, 1)); break;
    default: all_to_all(&d, size, rank); break;
    }
    return schedule_draft_end(&d, out);
}

static schedule_cost direct_cost(coll_kind kind, int size, double S)
{
    double n = size;
    if (size == 1) return schedule_cost_alone(kind, S);
    switch (kind) {
    case COLL_BARRIER: return (schedule_cost){.rounds = 1};
    case COLL_REDUCE: return (schedule_cost){.rounds = 2, .bytes = S, .folded = S};
    case COLL_ALL_REDUCE:
        return (schedule_cost){.rounds = 2, .bytes = 2 * (n - 1) / n * S, .folded = S};
    case COLL_GATHER: return (schedule_cost){.rounds = 1, .bytes = S};
    case COLL_REDUCE_SCATTER:
        return (schedule_cost){.rounds = 1, .bytes = (n - 1) * S, .folded = n * S};
    default: return (schedule_cost){.rounds = 1, .bytes = (n - 1) * S};
    }
}

const schedule_algorithm schedule_direct = {
    .name        = "direct",
    .doc         = "all members send each part to its owner, which folds in rank order",
    .fits        = direct_fits,
    .keeps_order = true,
    .build       = direct_build,
    .cost        = direct_cost,
};

/* ---- one_shot -------------------------------------------------------------------------------- */
static bool one_shot_fits(coll_kind kind, int size)
{
    return (kind == COLL_REDUCE || kind == COLL_ALL_REDUCE) && size >= 1;
}

static pen_status one_shot_build(coll_kind kind, int size, int rank, int root, schedule **out)
{
    if (size == 1) return schedule_build_alone(kind, out);
    bool to_all      = kind == COLL_ALL_REDUCE;
    bool gets        = to_all || rank == root;
    schedule_draft d = schedule_draft_begin(kind, 1, gets ? (uint32_t)size - 1 : 0, true);
    for (int k = 1; k < size; k++) {
        int peer = after(rank, k, size), source = before(rank, k, size);
        if (to_all || peer == root) draft_send(&d, peer, range_in(0, 1));
        if (gets) draft_recv(&d, source, range_temp(slot_of(source, rank), 0, 0, 1));
    }
    if (gets) fold_inputs(&d, range_out(0, 1), size, rank);
    return schedule_draft_end(&d, out);
}

static schedule_cost one_shot_cost(coll_kind kind, int size, double S)
{
    double n = size;
    if (size == 1) return schedule_cost_alone(kind, S);
    double bytes = kind == COLL_ALL_REDUCE ? (n - 1) * S : S;
    return (schedule_cost){.rounds = 1, .bytes = bytes, .folded = n * S};
}

const schedule_algorithm schedule_one_shot = {
    .name        = "one_shot",
    .doc         = "whole inputs go to all members that need the result; for small calls",
    .fits        = one_shot_fits,
    .keeps_order = true,
    .build       = one_shot_build,
    .cost        = one_shot_cost,
};
