/* schedule_doubling.c - recursive doubling: whole vectors, log2(n) rounds; for small calls of many.
 *
 * DESIGN
 * In round k, members whose positions differ in bit k exchange what they have.  If n is not a power
 * of two, an all_reduce runs among the first p = 2^floor(log2 n) members; each other member, a
 * guest, first sends its input to the member p places before it and gets the result from there.
 * barrier: in round k a member notifies the one 2^k places on (dissemination), for any n.
 * Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
 * MPICH", 2005.
 */
#include "worker/collective/schedule/schedule_draft.h"

static bool fits(coll_kind kind, int size)
{
    if (size < 1) return false;
    if (kind == COLL_ALL_GATHER) return size == power_of_two_below(size);
    return kind == COLL_BARRIER || kind == COLL_ALL_REDUCE;
}

static void barrier(schedule_draft *d, int size, int rank)
{
    for (int distance = 1; distance < size; distance *= 2) {
        draft_step(d);
        draft_send(d, (rank + distance) % size, range_in(0, 0));
        draft_recv(d, (rank - distance + size) % size, range_out(0, 0));
    }
}

static void all_gather(schedule_draft *d, int size, int rank)
{
    uint32_t own = (uint32_t)rank;
    draft_copy(d, range_out(own, 1), range_in(own, 1));
    for (int distance = 1; distance < size; distance *= 2) {
        int peer      = rank ^ distance;
        uint32_t have = own & ~(uint32_t)(distance - 1), get = have ^ (uint32_t)distance;
        draft_step(d);
        draft_send(d, peer, range_out(have, (uint32_t)distance));
        draft_recv(d, peer, range_out(get, (uint32_t)distance));
    }
}

/* Exchanges among the first `inner` members; those with a guest have its input in OUT, folded. */
static void exchange(schedule_draft *d, int size, int rank, int inner)
{
    move_range whole = range_out(0, 1), came = range_temp(0, 0, 0, 1);
    bool raw = rank + inner >= size;
    for (int distance = 1; distance < inner; distance *= 2) {
        int peer        = rank ^ distance;
        bool peer_raw   = distance == 1 && peer + inner >= size;
        move_range mine = raw ? range_in(0, 1) : whole;
        draft_step(d);
        draft_send(d, peer, mine);
        draft_recv(d, peer, came);
        draft_step(d); /* a step must not write what it sends */
        draft_fold_pair(d, whole, distance * 2 == inner, mine, raw ? rank : -1, rank < peer, came,
                        peer_raw ? peer : -1);
        raw = false;
    }
}

static void all_reduce(schedule_draft *d, int size, int rank, int inner)
{
    move_range whole = range_out(0, 1);
    if (rank >= inner) {
        draft_send(d, rank - inner, range_in(0, 1));
        draft_step(d);
        draft_recv(d, rank - inner, whole);
        return;
    }
    int guest = rank + inner;
    if (guest < size) {
        move_range came = range_temp(0, 0, 0, 1);
        draft_recv(d, guest, came);
        draft_fold_pair(d, whole, false, range_in(0, 1), rank, true, came, guest);
    }
    exchange(d, size, rank, inner);
    draft_step(d);
    if (guest < size) draft_send(d, guest, whole);
}

static pen_status build(coll_kind kind, int size, int rank, int root, schedule **out)
{
    (void)root;
    if (size == 1) return schedule_build_alone(kind, out);
    uint32_t units   = kind == COLL_ALL_GATHER ? (uint32_t)size : 1;
    schedule_draft d = schedule_draft_begin(kind, units, kind == COLL_ALL_REDUCE, size == 2);
    if (kind == COLL_BARRIER)
        barrier(&d, size, rank);
    else if (kind == COLL_ALL_GATHER)
        all_gather(&d, size, rank);
    else
        all_reduce(&d, size, rank, power_of_two_below(size));
    return schedule_draft_end(&d, out);
}

static schedule_cost cost(coll_kind kind, int size, double S)
{
    if (size == 1) return schedule_cost_alone(kind, S);
    if (kind == COLL_BARRIER) return (schedule_cost){.rounds = log2_ceil(size)};
    double log = log2_floor(size);
    if (kind == COLL_ALL_GATHER) return (schedule_cost){.rounds = log, .bytes = (size - 1) * S};
    double guests = size > power_of_two_below(size);
    return (schedule_cost){
        .rounds = log + 2 * guests, .bytes = (log + guests) * S, .folded = 2 * (log + guests) * S};
}

const schedule_algorithm schedule_recursive_doubling = {
    .name  = "recursive_doubling",
    .doc   = "members twice as far apart each round exchange all they have; few rounds, many bytes",
    .fits  = fits,
    .build = build,
    .cost  = cost,
};
