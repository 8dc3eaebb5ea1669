/* schedule_funnel.c - along a binomial tree to one member and back: 2 (n - 1) messages, 2 log2(n) rounds, rank order.
 *
 * DESIGN
 * Tree        That of schedule_tree_span().  The root is member 0 where no call names one.
 * all_reduce  Inputs are gathered whole, in slots: slot i of a member holds the input of position v + i.  The root folds
 *             all in rank order and sends the result back.
 * reduce      The same, one way.
 * all_gather  Parts are gathered in their final place in OUT; then all of OUT is sent back.
 * barrier     Nothing: the agreement about headers takes the same way (wire.c).
 */
#include "worker/collective/schedule/schedule_draft.h"

static bool fits(coll_kind kind, int size)
{
    return size >= 1 && (kind == COLL_ALL_REDUCE || kind == COLL_REDUCE ||
                         kind == COLL_ALL_GATHER || kind == COLL_BARRIER);
}

typedef struct {
    schedule_draft *d;
    int size, root;
    int v;       /* this member, counted from the root */
    int reach;   /* size of its subtree in a full tree: a power of two */
    int members; /* of its subtree */
} funnel;

static int position(const funnel *f, int v)
{
    return (v + f->root) % f->size;
}

static int parent(const funnel *f)
{
    return position(f, f->v - f->reach);
}

static move_range slots(int first, int n)
{
    return range_temp((uint32_t)first, 0, 0, (uint32_t)n);
}

static int members_of(const funnel *f, int v, int reach)
{
    return schedule_tree_members(v, reach, f->size);
}

static void gather_inputs(const funnel *f)
{
    if (f->members == 1) {
        draft_send(f->d, parent(f), range_in(0, 1));
        return;
    }
    if (f->v > 0) draft_copy(f->d, slots(0, 1), range_in(0, 1));
    for (int k = 1; k < f->reach && f->v + k < f->size; k *= 2)
        draft_recv(f->d, position(f, f->v + k), slots(k, members_of(f, f->v + k, k)));
    draft_step(f->d);
    if (f->v > 0) draft_send(f->d, parent(f), slots(0, f->members));
}

static void gather_parts(const funnel *f)
{
    const uint32_t own = (uint32_t)f->v;
    if (f->members == 1) {
        draft_send(f->d, parent(f), range_in(own, 1));
        return;
    }
    draft_copy(f->d, range_out(own, 1), range_in(own, 1));
    for (int k = 1; k < f->reach && f->v + k < f->size; k *= 2)
        draft_recv(f->d, f->v + k,
                   range_out(own + (uint32_t)k, (uint32_t)members_of(f, f->v + k, k)));
    draft_step(f->d);
    if (f->v > 0) draft_send(f->d, parent(f), range_out(own, (uint32_t)f->members));
}

/* All of OUT: `units` of them. */
static void send_back(const funnel *f, uint32_t units)
{
    draft_step(f->d);
    if (f->v > 0) draft_recv(f->d, parent(f), range_out(0, units));
    draft_step(f->d);
    for (int k = f->reach / 2; k >= 1; k /= 2)
        if (f->v + k < f->size) draft_send(f->d, position(f, f->v + k), range_out(0, units));
}

static pen_status build(coll_kind kind, int size, int rank, int root, schedule **out)
{
    if (size == 1) return schedule_build_alone(kind, out);
    const bool is_rooted = kind == COLL_REDUCE, gathers = kind == COLL_ALL_GATHER;
    schedule_draft d = {0};
    funnel f         = {.d = &d, .size = size, .root = is_rooted ? root : 0};
    f.v              = (rank - f.root + size) % size;
    f.reach          = schedule_tree_span(f.v, size);
    f.members        = members_of(&f, f.v, f.reach);
    d                = schedule_draft_begin(kind, gathers ? (uint32_t)size : 1,
                             coll_reduces(kind) ? (uint32_t)f.members : 0, false);
    draft_scale_first(&d);
    if (gathers) {
        gather_parts(&f);
        send_back(&f, (uint32_t)size);
    } else if (kind != COLL_BARRIER) {
        gather_inputs(&f);
        if (f.v == 0) {
            draft_fold(f.d, range_out(0, 1), true);
            for (int of = 0; of < f.size; of++) {
                const int v = (of - f.root + f.size) % f.size;
                draft_operand(f.d, v == 0 ? range_in(0, 1) : slots(v, 1), of);
            }
        }
        if (!is_rooted) send_back(&f, 1);
    }
    return schedule_draft_end(&d, out);
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* Of the positions p and p / 2, which have the largest subtrees: inputs sent, and results to children. */
static double busiest(int size, bool sends_back)
{
    const int p = power_of_two_below(size - 1), rest = size - p, half = p / 2;
    const double at_p    = rest + (sends_back ? log2_ceil(rest) : 0);
    const double at_half = half > 0 ? half + (sends_back ? log2_ceil(half) : 0) : 0;
    return most(most(at_p, at_half), sends_back ? log2_ceil(size) : 0);
}

static schedule_cost cost(coll_kind kind, int size, double S)
{
    const double log = log2_ceil(size);
    if (size == 1) return schedule_cost_alone(kind, S);
    switch (kind) {
    case COLL_ALL_REDUCE:
        return (schedule_cost){
            .rounds = 2 * log, .bytes = busiest(size, true) * S, .folded = size * S};
    case COLL_REDUCE:
        return (schedule_cost){
            .rounds = log, .bytes = busiest(size, false) * S, .folded = size * S};
    case COLL_ALL_GATHER: return (schedule_cost){.rounds = 2 * log, .bytes = log * size * S};
    default: return (schedule_cost){0};
    }
}

const schedule_algorithm schedule_funnel = {
    .name = "funnel",
    .doc = "along a tree to one member, which folds in rank order, and back; for small calls among "
           "very many",
    .fits          = fits,
    .in_rank_order = true,
    .any_order     = true,
    .build         = build,
    .cost          = cost,
};
