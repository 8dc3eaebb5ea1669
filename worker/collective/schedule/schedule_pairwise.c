/* schedule_pairwise.c - n-1 rounds; in each, every member sends to one and receives from one.
 *
 * DESIGN
 * The transfers of direct, spread over rounds so that no receiver is overloaded.  Reductions keep
 * all inputs until the last round and fold them in rank order.
 */
#include "worker/collective/schedule/schedule_draft.h"

static bool fits(coll_kind kind, int size)
{
    return size >= 1 &&
           (kind == COLL_ALL_TO_ALL || kind == COLL_ALL_GATHER || kind == COLL_REDUCE_SCATTER);
}

static void fold_all(schedule_draft *d, int size, int rank)
{
    uint32_t own = (uint32_t)rank;
    draft_fold(d, range_out(own, 1), true);
    for (int of = 0; of < size; of++) {
        uint32_t slot = (uint32_t)(of < rank ? of : of - 1);
        draft_operand(d, of == rank ? range_in(own, 1) : range_temp(slot, own, own, 1), of);
    }
}

static pen_status build(coll_kind kind, int size, int rank, int root, schedule **out)
{
    (void)root;
    if (size == 1) return schedule_build_alone(kind, out);
    uint32_t own = (uint32_t)rank, slots = kind == COLL_REDUCE_SCATTER ? (uint32_t)size - 1 : 0;
    schedule_draft d = schedule_draft_begin(kind, (uint32_t)size, slots, true);
    for (int k = 1; k < size; k++) {
        int peer = (rank + k) % size, source = (rank - k + size) % size;
        uint32_t slot = (uint32_t)(source < rank ? source : source - 1);
        draft_step(&d);
        draft_send(&d, peer, range_in(kind == COLL_ALL_GATHER ? own : (uint32_t)peer, 1));
        draft_recv(&d, source,
                   kind == COLL_REDUCE_SCATTER ? range_temp(slot, own, own, 1)
                                               : range_out((uint32_t)source, 1));
    }
    if (kind == COLL_REDUCE_SCATTER)
        fold_all(&d, size, rank);
    else
        draft_copy(&d, range_out(own, 1), range_in(own, 1));
    return schedule_draft_end(&d, out);
}

static schedule_cost cost(coll_kind kind, int size, double S)
{
    double n = size;
    if (size == 1) return schedule_cost_alone(kind, S);
    return (schedule_cost){
        .rounds = n - 1, .bytes = (n - 1) * S, .folded = kind == COLL_REDUCE_SCATTER ? n * S : 0};
}

const schedule_algorithm schedule_pairwise = {
    .name        = "pairwise",
    .doc         = "n-1 rounds, one partner to send to and one to receive from in each",
    .fits        = fits,
    .keeps_order = true,
    .build       = build,
    .cost        = cost,
};
