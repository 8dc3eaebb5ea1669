/* node_plan.c - what a call moves between which members, and in which pieces. */
#include "worker/collective/shm/node_internal.h"

#include "common/base/why.h"

#include <string.h>

bool node_folds(const node_op *op)
{
    return coll_reduces(op->call->kind);
}

/* Large reduce and all_reduce: member r folds slice r, and `who` also needs the slices of the others. */
bool node_gets(const node_op *op, int who)
{
    if (op->is_small || op->is_whole) return false;
    return op->call->kind == COLL_ALL_REDUCE ||
           (op->call->kind == COLL_REDUCE && who == op->call->root);
}

/* A fold of inline payloads reads all of them on every member: the more members, the smaller the limit. */
size_t node_inline_max(const node_op *op)
{
    if (op->call->kind != COLL_ALL_REDUCE || op->team->size <= 2) return NODE_INLINE_BYTES;
    return 2 * NODE_INLINE_BYTES / (size_t)op->team->size;
}

static size_t piece_bytes(int size)
{
    const size_t each = (size_t)NODE_PIECE_BYTES / (size_t)size / 64 * 64;
    return each > NODE_BLOCK_MIN ? each : NODE_BLOCK_MIN;
}

/* Largest round of an all_reduce: two members have the caches of two cores for it. */
static size_t slice_bytes(int size)
{
    return size == 2 ? NODE_PIECE_BYTES : piece_bytes(size);
}

/* Bytes of one part in a round, if parts have at most `most`; the same on every member. */
static size_t block_bytes(const node_op *op, size_t most)
{
    if (!op->by_window && !op->takes) return NODE_DIRECT_BYTES;
    if (op->call->kind == COLL_ALL_REDUCE) {
        /* Block of slices of `most` bytes: short slices, too, take several rounds, which overlap. */
        const size_t share = (most / NODE_ROUNDS + 63) / 64 * 64,
                     room  = slice_bytes(op->team->size);
        const size_t block = share > NODE_ROUND_MIN ? share : NODE_ROUND_MIN;
        return block < room ? block : room;
    }
    return op->is_shared ? NODE_PIECE_BYTES : piece_bytes(op->team->size);
}

/* Two halves for inputs, two for results. */
size_t node_window_bytes(const node_team *team)
{
    const size_t results = slice_bytes(team->size), apart = results * (size_t)team->size;
    return 2 * (apart > NODE_PIECE_BYTES ? apart : NODE_PIECE_BYTES) + 2 * results;
}

/* Slice `who` of n elements: whole cache lines; the last slices may be shorter or empty. */
node_part node_slice(const node_op *op, int who)
{
    const size_t line = 64 / op->element, size = (size_t)op->team->size, n = op->call->n;
    const size_t each  = (n / size + (n % size != 0) + line - 1) / line * line;
    const size_t begin = each * (size_t)who < n ? each * (size_t)who : n;
    const size_t end   = n - begin < each ? n : begin + each;
    return (node_part){begin * op->element, (end - begin) * op->element};
}

/* What `from` sends to `to`; one of them is this member. */
static node_part part(const node_op *op, int from, int to)
{
    const coll_call *c = op->call;
    coll_piece p       = coll_between(c, from, to);
    if (c->kind == COLL_REDUCE || c->kind == COLL_ALL_REDUCE) {
        if (!op->is_small && !op->is_whole) return node_slice(op, to);
        p.n = c->kind == COLL_ALL_REDUCE || to == c->root ? c->n : 0;
    } else if (c->kind == COLL_ALL_TO_ALL && from != op->team->rank) {
        p = (coll_piece){op->team->said[from].offset, op->team->said[from].n};
    }
    return (node_part){p.offset * op->element, p.n * op->element};
}

/* The longest part of the call, this member's or not: it determines the number of rounds. */
static size_t longest(const node_op *op)
{
    const coll_call *c = op->call;
    const int size     = op->team->size;
    size_t most        = 0;
    if (c->kind == COLL_BARRIER) return 0;
    if (c->kind == COLL_REDUCE || c->kind == COLL_ALL_REDUCE)
        return part(op, 0, c->kind == COLL_REDUCE && op->is_small ? c->root : 0).bytes;
    if (c->kind == COLL_BROADCAST) return c->n * op->element;
    for (int i = 0; i < size; i++) {
        if (c->kind != COLL_ALL_TO_ALL && coll_part(c->counts, c->n, i) > most)
            most = coll_part(c->counts, c->n, i);
        if (c->kind == COLL_ALL_TO_ALL && op->team->said[i].most > most)
            most = op->team->said[i].most;
    }
    return most * op->element;
}

void node_plan(node_op *op)
{
    node_team *t = op->team;
    for (int i = 0; i < t->size; i++) {
        t->from[i] = part(op, i, t->rank);
        t->to[i]   = part(op, t->rank, i);
        t->put[i]  = coll_put_offset(op->call, i) * op->element;
    }
    const size_t most = longest(op);
    op->block         = op->is_small ? (most > 0 ? most : 1) : block_bytes(op, most);
    op->rounds        = most / op->block + (most % op->block != 0);
}

/* False: more than memory can hold. */
static bool read_sends(const node_op *op, int who, node_said *said)
{
    const node_team *t     = op->team;
    const node_entry *e    = node_entry_of(op, who);
    const uint64_t at_most = PTRDIFF_MAX / op->element / (size_t)t->size;
    size_t all             = 0;
    for (int i = 0; i < t->size; i++) {
        const uint64_t n = e->sends[i];
        if (n > at_most) return false;
        if (i == t->rank) {
            said->offset = all;
            said->n      = n;
        }
        if (n > said->most) said->most = n;
        all += n;
    }
    said->bytes = all * op->element;
    return true;
}

static bool is_said_right(const node_op *op, int who, node_said *said)
{
    const node_entry *e = node_entry_of(op, who);
    const coll_call *c  = op->call;
    *said               = op->own;
    if (who != op->team->rank)
        *said = (node_said){.publish    = e->publish,
                            .out_mapped = e->out_mapped != 0,
                            .saves      = e->saves != 0,
                            .is_whole   = e->is_whole != 0,
                            .holds_all  = e->holds_all != 0};
    if (c->kind != COLL_ALL_TO_ALL)
        said->bytes = coll_in_elements(c, op->team->size, who) * op->element;
    else if (!read_sends(op, who, said) || said->n != coll_part(c->out_counts, c->n, who))
        return false;
    switch (said->publish) {
    case NODE_NOTHING: return said->bytes == 0;
    case NODE_INLINE: return said->bytes <= NODE_INLINE_BYTES;
    default: return said->publish == NODE_MAPPED || said->publish == NODE_WINDOW;
    }
}

pen_status node_read_said(node_op *op, int who, pen_error *why)
{
    const node_team *t = op->team;
    if (is_said_right(op, who, &t->said[who])) return PEN_OK;
    why_set(why, PEN_CORRUPT, "%s (call %llu): rank %d describes its input wrongly",
            coll_kind_name(op->call->kind), (unsigned long long)op->seq, t->ranks[who]);
    why_culprit(why, PEN_WORKER, t->ranks[who], -1, op->call->label);
    return PEN_CORRUPT;
}

/* Every member checks all pairs in the same order, so all find the same sentence. */
pen_status node_check_counts(const node_op *op, pen_error *why)
{
    const node_team *t = op->team;
    bool is_given      = false;
    for (int i = 0; i < t->size; i++) is_given |= node_entry_of(op, i)->has_counts;
    for (int from = 0; is_given && from < t->size; from++)
        for (int to = 0; to < t->size; to++) {
            const uint64_t sent = node_entry_of(op, from)->sends[to];
            const uint64_t got  = node_entry_of(op, to)->receives[from];
            if (sent == got) continue;
            why_set(why, PEN_MISMATCH,
                    "all_to_all (call %llu) differs: rank %d sends %llu elements to rank %d, which "
                    "expects %llu",
                    (unsigned long long)op->seq, t->ranks[from], (unsigned long long)sent,
                    t->ranks[to], (unsigned long long)got);
            why_culprit(why, PEN_WORKER, t->ranks[from], -1, op->call->label);
            return PEN_MISMATCH;
        }
    return PEN_OK;
}
