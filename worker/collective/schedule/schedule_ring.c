/* schedule_ring.c - members exchange data with their two neighbours only: n-1 rounds, fewest bytes.
 *
 * DESIGN
 * A unit travels once around the ring, folded with each member's input on the way, and once more as
 * a result.  The fold of each unit starts at another member, so sums are not in rank order.
 * Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
 * workstations", JPDC 2009.
 */
#include "worker/collective/schedule/schedule_draft.h"

static bool fits(coll_kind kind, int size)
{
    return size >= 1 &&
           (kind == COLL_ALL_REDUCE || kind == COLL_REDUCE_SCATTER || kind == COLL_ALL_GATHER);
}

/* (rank - steps) around the ring; steps is at most 2 * size. */
static uint32_t back(int rank, int steps, int size)
{
    return (uint32_t)((rank + 2 * size - steps) % size);
}

/* Units travel to the right.  Step s receives the fold of members rank-1-s .. rank-1; in step 0 it is
 * unit back(rank, first).  Partial folds go to OUT (all_reduce) or alternate between two slots. */
static void fold_around(schedule_draft *d, coll_kind kind, int size, int rank, int first)
{
    int left = (int)back(rank, 1, size), right = (rank + 1) % size;
    bool in_out = kind == COLL_ALL_REDUCE;
    for (int s = 0; s < size - 1; s++) {
        uint32_t sent = back(rank, first - 1 + s, size), got = back(rank, first + s, size);
        bool is_last       = s == size - 2;
        uint32_t slot_sent = 1 + (uint32_t)(s + 1) % 2, slot_folded = 1 + (uint32_t)s % 2;
        move_range from = in_out ? range_out(sent, 1) : range_temp(slot_sent, sent, sent, 1);
        move_range to =
            in_out || is_last ? range_out(got, 1) : range_temp(slot_folded, got, got, 1);
        move_range came = range_temp(0, got, got, 1);
        draft_step(d);
        draft_send(d, right, s == 0 ? range_in(sent, 1) : from);
        draft_recv(d, left, came);
        draft_fold_pair(d, to, is_last, range_in(got, 1), rank, rank < left, came,
                        s == 0 ? left : -1);
    }
}

/* Step s receives unit back(rank, first + s). */
static void pass_around(schedule_draft *d, int size, int rank, int first, bool own_from_in)
{
    int left = (int)back(rank, 1, size), right = (rank + 1) % size;
    for (int s = 0; s < size - 1; s++) {
        uint32_t sent = back(rank, first - 1 + s, size), got = back(rank, first + s, size);
        draft_step(d);
        draft_send(d, right, s == 0 && own_from_in ? range_in(sent, 1) : range_out(sent, 1));
        draft_recv(d, left, range_out(got, 1));
        if (s == 0 && own_from_in) draft_copy(d, range_out(sent, 1), range_in(sent, 1));
    }
}

static pen_status build(coll_kind kind, int size, int rank, int root, schedule **out)
{
    (void)root;
    if (size == 1) return schedule_build_alone(kind, out);
    uint32_t slots   = kind == COLL_ALL_REDUCE ? 1 : kind == COLL_REDUCE_SCATTER ? 3 : 0;
    schedule_draft d = schedule_draft_begin(kind, (uint32_t)size, slots, size == 2);
    if (kind == COLL_ALL_REDUCE) {
        fold_around(&d, kind, size, rank, 1);
        pass_around(&d, size, rank, 0, false);
    } else if (kind == COLL_REDUCE_SCATTER) {
        fold_around(&d, kind, size, rank, 2);
    } else {
        pass_around(&d, size, rank, 1, true);
    }
    return schedule_draft_end(&d, out);
}

static schedule_cost cost(coll_kind kind, int size, double S)
{
    double n = size;
    if (size == 1) return schedule_cost_alone(kind, S);
    if (kind == COLL_ALL_REDUCE) {
        double bytes = 2 * (n - 1) / n * S;
        return (schedule_cost){.rounds = 2 * (n - 1), .bytes = bytes, .folded = bytes};
    }
    double folded = kind == COLL_REDUCE_SCATTER ? 2 * (n - 1) * S : 0;
    return (schedule_cost){.rounds = n - 1, .bytes = (n - 1) * S, .folded = folded};
}

const schedule_algorithm schedule_ring = {
    .name  = "ring",
    .doc   = "parts travel around a ring of neighbours; fewest bytes, no crowding, n-1 rounds",
    .fits  = fits,
    .build = build,
    .cost  = cost,
};
