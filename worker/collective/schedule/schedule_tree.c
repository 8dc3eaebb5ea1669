/* schedule_tree.c - a binomial tree: log2(n) deep, for calls with a root.
 *
 * DESIGN
 * Positions are counted from the root (schedule_tree_span()).  A member sends to the child with the largest
 * subtree first.  Parts of a subtree are one or two pieces in group order, because it may wrap
 * around after the last position.
 */
#include "worker/collective/schedule/schedule_draft.h"

static bool fits(coll_kind kind, int size)
{
    return size >= 1 && (kind == COLL_BROADCAST || kind == COLL_REDUCE || kind == COLL_GATHER ||
                         kind == COLL_SCATTER);
}

typedef struct {
    schedule_draft *d;
    int size, root;
    int v;     /* this member, counted from the root */
    int reach; /* size of its subtree in a full tree: a power of two */
} tree;

static int position(const tree *t, int v)
{
    return (v + t->root) % t->size;
}

static int members_of(const tree *t, int v, int reach)
{
    return schedule_tree_members(v, reach, t->size);
}

static int parent(const tree *t)
{
    return position(t, t->v - t->reach);
}

static bool is_leaf(const tree *t)
{
    return t->reach == 1 || t->v + 1 >= t->size;
}

/* Where this member keeps a piece of the parts of a subtree. */
typedef enum { KEEP_IN, KEEP_OUT, KEEP_TEMP } keeping;

static move_range piece(const tree *t, keeping keep, uint32_t unit, uint32_t units)
{
    if (keep == KEEP_IN) return range_in(unit, units);
    if (keep == KEEP_OUT) return range_out(unit, units);
    uint32_t own = (uint32_t)position(t, t->v);
    if (unit >= own) return range_temp(0, own, unit, units);
    return range_temp((uint32_t)t->size - own, 0, unit, units); /* wrapped around */
}

static void move_subtree(const tree *t, move_verb verb, int peer, keeping keep, int v, int members)
{
    void (*put)(schedule_draft *, int, move_range) = verb == MOVE_SEND ? draft_send : draft_recv;
    int begin                                      = position(t, v);
    int first = begin + members <= t->size ? members : t->size - begin;
    put(t->d, peer, piece(t, keep, (uint32_t)begin, (uint32_t)first));
    if (first < members) put(t->d, peer, piece(t, keep, 0, (uint32_t)(members - first)));
}

static void broadcast(const tree *t)
{
    if (t->v > 0) draft_recv(t->d, parent(t), range_out(0, 1));
    draft_step(t->d);
    for (int k = t->reach / 2; k >= 1; k /= 2) {
        if (t->v + k >= t->size) continue;
        draft_send(t->d, position(t, t->v + k), t->v > 0 ? range_out(0, 1) : range_in(0, 1));
    }
}

/* Slot k receives from child 2^k; the slot after the last is for the own fold. */
static void reduce_tree(const tree *t)
{
    int rank = position(t, t->v);
    if (t->v > 0 && is_leaf(t)) {
        draft_send(t->d, parent(t), range_in(0, 1));
        return;
    }
    int children = 0;
    for (int k = 1; k < t->reach && t->v + k < t->size; k *= 2, children++)
        draft_recv(t->d, position(t, t->v + k), range_temp((uint32_t)children, 0, 0, 1));
    move_range to = t->v > 0 ? range_temp((uint32_t)children, 0, 0, 1) : range_out(0, 1);
    draft_fold(t->d, to, t->v == 0);
    draft_operand(t->d, range_in(0, 1), rank);
    for (int k = 1, slot = 0; slot < children; k *= 2, slot++) {
        bool leaf = k == 1 || t->v + k + 1 >= t->size;
        draft_operand(t->d, range_temp((uint32_t)slot, 0, 0, 1), leaf ? position(t, t->v + k) : -1);
    }
    draft_step(t->d);
    if (t->v > 0) draft_send(t->d, parent(t), to);
}

static void gather(const tree *t)
{
    uint32_t own = (uint32_t)position(t, t->v);
    if (t->v > 0 && is_leaf(t)) {
        draft_send(t->d, parent(t), range_in(own, 1));
        return;
    }
    keeping keep = t->v > 0 ? KEEP_TEMP : KEEP_OUT;
    draft_copy(t->d, piece(t, keep, own, 1), range_in(own, 1));
    for (int k = 1; k < t->reach && t->v + k < t->size; k *= 2)
        move_subtree(t, MOVE_RECV, position(t, t->v + k), keep, t->v + k,
                     members_of(t, t->v + k, k));
    draft_step(t->d);
    if (t->v > 0) move_subtree(t, MOVE_SEND, parent(t), keep, t->v, members_of(t, t->v, t->reach));
}

static void scatter(const tree *t)
{
    uint32_t own = (uint32_t)position(t, t->v);
    if (t->v > 0 && is_leaf(t)) {
        draft_recv(t->d, parent(t), range_out(own, 1));
        return;
    }
    keeping keep = t->v > 0 ? KEEP_TEMP : KEEP_IN;
    if (t->v > 0) move_subtree(t, MOVE_RECV, parent(t), keep, t->v, members_of(t, t->v, t->reach));
    draft_step(t->d);
    for (int k = t->reach / 2; k >= 1; k /= 2) {
        if (t->v + k >= t->size) continue;
        move_subtree(t, MOVE_SEND, position(t, t->v + k), keep, t->v + k,
                     members_of(t, t->v + k, k));
    }
    draft_copy(t->d, range_out(own, 1), piece(t, keep, own, 1));
}

/* Number of parts, or of copies of the whole vector, that this member keeps for others. */
static uint32_t slots(const tree *t, coll_kind kind)
{
    if (kind == COLL_REDUCE) return (uint32_t)log2_ceil(t->reach) + 1;
    if (kind == COLL_BROADCAST || t->v == 0) return 0;
    return (uint32_t)members_of(t, t->v, t->reach);
}

static pen_status build(coll_kind kind, int size, int rank, int root, schedule **out)
{
    if (size == 1) return schedule_build_alone(kind, out);
    schedule_draft d = {0};
    tree t           = {.d = &d, .size = size, .root = root, .v = (rank - root + size) % size};
    t.reach          = schedule_tree_span(t.v, size);
    bool parts       = schedule_kind_by_counts(kind);
    d = schedule_draft_begin(kind, parts ? (uint32_t)size : 1, slots(&t, kind), false);
    if (kind == COLL_BROADCAST)
        broadcast(&t);
    else if (kind == COLL_REDUCE)
        reduce_tree(&t);
    else if (kind == COLL_GATHER)
        gather(&t);
    else
        scatter(&t);
    return schedule_draft_end(&d, out);
}

static schedule_cost cost(coll_kind kind, int size, double S)
{
    if (size == 1) return schedule_cost_alone(kind, S);
    double log     = log2_ceil(size);
    int p          = power_of_two_below(size - 1); /* the last child of the root */
    double largest = size - p > p / 2 ? size - p : p / 2;
    switch (kind) {
    case COLL_BROADCAST: return (schedule_cost){.rounds = log, .bytes = log * S};
    case COLL_REDUCE: return (schedule_cost){.rounds = log, .bytes = S, .folded = (log + 1) * S};
    case COLL_GATHER: return (schedule_cost){.rounds = log, .bytes = largest * S};
    default: return (schedule_cost){.rounds = log, .bytes = (size - 1) * S};
    }
}

const schedule_algorithm schedule_tree = {
    .name  = "tree",
    .doc   = "a binomial tree from or to the root; for small calls among many",
    .fits  = fits,
    .build = build,
    .cost  = cost,
};
