/* schedule_halving.c - Rabenseifner: recursive halving, then doubling; few rounds, few bytes.
 *
 * DESIGN
 * In each round of the first half two members exchange what the other will own, and fold: the range
 * of each is halved until it owns one unit.  The second half reverses this and gathers.  If n is not
 * a power of two, guests send their input to one of the inner p members and get the result, as in
 * schedule_doubling.c.
 * Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
 */
#include "worker/collective/schedule/schedule_draft.h"

static bool fits(coll_kind kind, int size)
{
    if (size < 1) return false;
    if (kind == COLL_REDUCE_SCATTER) return size == power_of_two_below(size);
    return kind == COLL_ALL_REDUCE;
}

/* One member's halving.  Slots 0 .. inner/2-1 receive.  Partial folds are in OUT (all_reduce), or
 * in slots inner/2 .. inner-1, whose first unit is `base`. */
typedef struct {
    schedule_draft *d;
    int size, rank, inner;
    bool in_out;
    uint32_t base;
} halving;

static move_range partial(const halving *h, uint32_t unit, uint32_t units)
{
    if (h->in_out) return range_out(unit, units);
    return range_temp((uint32_t)h->inner / 2, h->base, unit, units);
}

static bool has_guest(const halving *h, int rank)
{
    return rank + h->inner < h->size;
}

static void halve(halving *h)
{
    bool raw     = !has_guest(h, h->rank);
    uint32_t low = 0;
    for (int half = h->inner / 2; half >= 1; half /= 2) {
        int peer       = h->rank ^ half;
        uint32_t units = (uint32_t)half;
        uint32_t keep = h->rank & half ? low + units : low, give = keep ^ units;
        bool is_last = half == 1, peer_raw = half == h->inner / 2 && !has_guest(h, peer);
        if (half == h->inner / 2) h->base = keep;
        move_range came = range_temp(0, keep, keep, units);
        move_range mine = raw ? range_in(keep, units) : partial(h, keep, units);
        move_range to   = is_last ? range_out(keep, units) : partial(h, keep, units);
        draft_step(h->d);
        draft_send(h->d, peer, raw ? range_in(give, units) : partial(h, give, units));
        draft_recv(h->d, peer, came);
        draft_fold_pair(h->d, to, is_last, mine, raw ? h->rank : -1, h->rank < peer, came,
                        peer_raw ? peer : -1);
        raw = false;
        low = keep;
    }
}

static void gather_back(halving *h)
{
    for (int distance = 1; distance < h->inner; distance *= 2) {
        int peer       = h->rank ^ distance;
        uint32_t units = (uint32_t)distance, have = (uint32_t)h->rank & ~(units - 1);
        draft_step(h->d);
        draft_send(h->d, peer, range_out(have, units));
        draft_recv(h->d, peer, range_out(have ^ units, units));
    }
}

static void all_reduce(halving *h)
{
    uint32_t units = (uint32_t)h->inner;
    if (h->rank >= h->inner) {
        draft_send(h->d, h->rank - h->inner, range_in(0, units));
        draft_step(h->d);
        draft_recv(h->d, h->rank - h->inner, range_out(0, units));
        return;
    }
    int guest = h->rank + h->inner;
    if (guest < h->size) {
        move_range came = range_temp(0, 0, 0, units);
        draft_recv(h->d, guest, came);
        draft_fold_pair(h->d, range_out(0, units), false, range_in(0, units), h->rank, true, came,
                        guest);
    }
    halve(h);
    gather_back(h);
    draft_step(h->d);
    if (guest < h->size) draft_send(h->d, guest, range_out(0, units));
}

static pen_status build(coll_kind kind, int size, int rank, int root, schedule **out)
{
    (void)root;
    if (size == 1) return schedule_build_alone(kind, out);
    int inner        = power_of_two_below(size);
    bool whole       = kind == COLL_ALL_REDUCE;
    uint32_t slots   = (uint32_t)(whole && rank + inner >= size ? inner / 2 : inner);
    schedule_draft d = schedule_draft_begin(kind, (uint32_t)inner, slots, size == 2);
    halving h        = {.d = &d, .size = size, .rank = rank, .inner = inner, .in_out = whole};
    if (whole)
        all_reduce(&h);
    else
        halve(&h);
    return schedule_draft_end(&d, out);
}

static schedule_cost cost(coll_kind kind, int size, double S)
{
    if (size == 1) return schedule_cost_alone(kind, S);
    double p = power_of_two_below(size), log = log2_floor(size), guests = size > p;
    if (kind == COLL_REDUCE_SCATTER)
        return (schedule_cost){.rounds = log, .bytes = (p - 1) * S, .folded = 2 * (p - 1) * S};
    double halves = 2 * (p - 1) / p * S;
    return (schedule_cost){.rounds = 2 * log + 2 * guests,
                           .bytes  = halves + guests * S,
                           .folded = halves + 2 * guests * S};
}

const schedule_algorithm schedule_halving_doubling = {
    .name = "halving_doubling",
    .doc  = "Rabenseifner: reduce-scatter by halving, all-gather by doubling; few rounds and bytes",
    .fits = fits,
    .build = build,
    .cost  = cost,
};
