/* node_work.c - rounds: filling windows, folding or copying, taking what others folded.
 *
 * Round k of every part begins at byte k * block.  The window has two halves, so that filling one
 * and reading the other overlap.  If nothing goes through a window, a round is only the block
 * between two checks for revoked calls.
 */
#include "worker/collective/shm/node_internal.h"

#include "common/compute/simd/reduce.h"

#include <string.h>

/* Larger results bypass the caches, unless they are copied once more. */
enum { STREAM_FROM_BYTES = 2 << 20 };

static uint64_t count(const node_op *op, uint64_t rounds)
{
    return op->seq << 32 | rounds;
}

/* Whether all other members that `which` concerns have come as far. */
static bool all_have(const node_op *op, uint64_t rounds, char which)
{
    const node_team *t = op->team;
    for (int i = 0; i < t->size; i++) {
        if (i == t->rank) continue;
        node_slot *s        = t->slot[i];
        _Atomic uint64_t *c = &s->worked;
        if (which == 'f') {
            if (t->in[i] != NULL) continue;
            c = &s->filled;
        } else if (which == 't') {
            if (!node_gets(op, i)) continue;
            c = &s->taken;
        }
        if (atomic_load_explicit(c, memory_order_acquire) < count(op, rounds)) return false;
    }
    return true;
}

static size_t piece(const node_op *op, const node_part *p, uint64_t round)
{
    const size_t begin = op->block * round;
    if (begin >= p->bytes) return 0;
    return p->bytes - begin < op->block ? p->bytes - begin : op->block;
}

/* ---- windows --------------------------------------------------------------------------------- */
static size_t half_bytes(const node_op *op)
{
    return op->is_shared ? op->block : op->block * (size_t)op->team->size;
}

/* Of member `from`, what `to` reads. */
static unsigned char *window_in(const node_op *op, int from, uint64_t round, int to)
{
    unsigned char *window = op->team->windows[from];
    if (op->team->said[from].holds_all) return window + round * op->block;
    return window + (round & 1) * half_bytes(op) + (op->is_shared ? 0 : op->block * (size_t)to);
}

static unsigned char *window_result(const node_op *op, unsigned char *window, uint64_t round)
{
    return window + node_window_bytes(op->team) - ((round & 1) + 1) * op->block;
}

/* ---- saving ---------------------------------------------------------------------------------- */
static void save_bytes(const node_op *op, void *out, const void *in, size_t bytes)
{
    if (op->in_bytes >= NODE_PAST_FROM_BYTES)
        copy_past(out, in, bytes);
    else if (bytes > 0)
        memmove(out, in, bytes); /* a member may name any of its memory for both */
}

/* Saves what the results of rounds below `rounds` overwrite, if only this member writes its output. */
static void keep(node_op *op, uint64_t rounds)
{
    node_team *t            = op->team;
    const unsigned char *in = op->call->in;
    for (; op->saves && op->takes && op->kept < rounds; op->kept++)
        for (int i = 0; i < t->size; i++) {
            const size_t at = t->to[i].offset + op->kept * op->block;
            save_bytes(op, t->scratch + at, in + at, piece(op, &t->to[i], op->kept));
        }
}

/* ---- filling --------------------------------------------------------------------------------- */
static void fill(node_op *op)
{
    node_team *t            = op->team;
    const unsigned char *in = op->call->in;
    const uint64_t round    = op->fill;
    for (int to = 0; to < t->size; to++) {
        if (to == t->rank) continue;
        const size_t bytes = piece(op, &t->to[to], round);
        if (bytes > 0)
            copy_near(window_in(op, t->rank, round, to), in + t->to[to].offset + round * op->block,
                      bytes);
        if (op->is_shared && bytes > 0) break;
    }
}

static bool try_fill(node_op *op)
{
    node_team *t         = op->team;
    const bool is_reused = op->fill >= 2 && !op->holds_all;
    if (op->fill == op->rounds || (is_reused && !all_have(op, op->fill - 1, 'w'))) return false;
    NODE_FAULT_POINT(op);
    keep(op, op->fill + 1); /* first, because it fetches ahead */
    fill(op);
    op->fill++;
    atomic_store_explicit(&node_own_slot(t)->filled, count(op, op->fill), memory_order_release);
    return true;
}

/* ---- folding and copying --------------------------------------------------------------------- */
/* Where round `round` of the part from `from` can be read. */
static const unsigned char *source(const node_op *op, int from, uint64_t round)
{
    const node_team *t = op->team;
    if (t->in[from] != NULL) return t->in[from] + t->from[from].offset + round * op->block;
    return window_in(op, from, round, t->rank);
}

static int results_of(node_op *op, uint64_t round)
{
    node_team *t    = op->team;
    const size_t at = t->to[t->rank].offset + round * op->block;
    int n           = 0;
    if (op->is_small || op->is_whole || op->call->kind == COLL_REDUCE_SCATTER) {
        t->results[n++] = op->out + round * op->block;
        return n;
    }
    for (int to = 0; to < t->size; to++) {
        if (!node_gets(op, to)) continue;
        if (to == t->rank)
            t->results[n++] = op->out + at;
        else if (op->pushes)
            t->results[n++] = t->out[to] + at;
    }
    if (op->takes && (t->size > 1) && !(op->call->kind == COLL_REDUCE && t->rank == op->call->root))
        t->results[n++] = window_result(op, t->window, round);
    return n;
}

/* Saves what a round overwrites in all outputs.  Their owners restore it if the call fails. */
static void save(node_op *op, uint64_t round, size_t bytes)
{
    node_team *t     = op->team;
    const size_t at  = t->from[0].offset + round * op->block;
    const size_t end = round * op->block + bytes;
    bool did         = false;
    for (int i = 0; i < t->size; i++) {
        if (t->save[i] == NULL) continue;
        save_bytes(op, t->save[i] + at, source(op, i, round), bytes);
        did = true;
    }
    if (!did) return;
    /* Before any of it is overwritten.  An exchange, because a store would not hold back the stores that follow. */
    (void)atomic_exchange(&node_own_slot(t)->saved,
                          count(op, (end + NODE_LINE_BYTES - 1) / NODE_LINE_BYTES));
    NODE_FAULT_POINT(op);
}

static size_t fold(node_op *op, uint64_t round)
{
    node_team *t       = op->team;
    const size_t bytes = piece(op, &t->from[0], round);
    if (bytes == 0) return 0;
    for (int i = 0; i < t->size; i++) t->operands[i] = source(op, i, round);
    if (op->pushes) save(op, round, bytes);
    keep(op, round + 1);
    const reduce_args args = {
        .op     = op->call->op,
        .dtype  = op->call->dtype,
        .n_in   = t->size,
        .n_out  = results_of(op, round),
        .in     = t->operands,
        .out    = t->results,
        .scale  = op->is_scaled ? t->scale : NULL,
        .stream = op->pushes && op->call->in != op->call->out && op->out_bytes >= STREAM_FROM_BYTES,
        .order  = t->order,
    };
    reduce(&args, 0, bytes / op->element);
    return bytes * (size_t)(args.n_in + args.n_out);
}

static size_t copy_parts(node_op *op, uint64_t round)
{
    node_team *t = op->team;
    size_t moved = 0;
    for (int k = 0; k < t->size; k++) {
        const int from     = (t->rank + k) % t->size; /* members start with different peers */
        const size_t bytes = piece(op, &t->from[from], round);
        if (bytes == 0 || (op->call->kind == COLL_BROADCAST && from == t->rank)) continue;
        unsigned char *out      = op->out + t->put[from] + round * op->block;
        const unsigned char *in = source(op, from, round);
        if (out != in) copy_near(out, in, bytes);
        moved += bytes;
    }
    return moved;
}

/* The aborter sets `revoked`, then reads `busy`; we set `busy`, then read `revoked`.  One of the two sees the other. */
static bool work_round(node_op *op, size_t *moved)
{
    node_slot *own = node_own_slot(op->team);
    atomic_store(&own->busy, op->seq);
    const bool may = !node_is_revoked(op);
    if (may) *moved += node_folds(op) ? fold(op, op->work) : copy_parts(op, op->work);
    atomic_store_explicit(&own->busy, 0, memory_order_release);
    return may && !node_is_revoked(op);
}

static bool can_work(const node_op *op)
{
    if (op->work == op->rounds) return false;
    if (op->by_window && !all_have(op, op->work + 1, 'f')) return false;
    if (op->is_whole && op->work >= op->fill) return false; /* the result may overwrite the input */
    return !op->takes || op->work < 2 || all_have(op, op->work - 1, 't');
}

/* Rounds that no peer waits for are not published one by one. */
static bool worked_matters(const node_op *op)
{
    return op->by_window || op->takes || op->work == op->rounds;
}

/* ---- taking results -------------------------------------------------------------------------- */
static bool try_take(node_op *op)
{
    node_team *t = op->team;
    if (!op->takes || op->take == op->rounds) return false;
    if (!all_have(op, op->take + 1, 'w')) return false;
    NODE_FAULT_POINT(op);
    keep(op, op->take + 1);
    for (int i = 0; i < t->size; i++) {
        const size_t bytes = i == t->rank ? 0 : piece(op, &t->to[i], op->take);
        if (bytes > 0)
            copy_near(op->out + t->to[i].offset + op->take * op->block,
                      window_result(op, t->windows[i], op->take), bytes);
    }
    op->take++;
    atomic_store_explicit(&node_own_slot(t)->taken, count(op, op->take), memory_order_release);
    return true;
}

/* ---- the end --------------------------------------------------------------------------------- */
/* All peers have what they need of our input: nothing can fail from here on. */
static coll_state finish(node_op *op)
{
    if (op->is_apart && !op->is_small && op->out_bytes > 0) {
        NODE_FAULT_POINT(op);
        copy_near(op->call->out, op->out, op->out_bytes);
    }
    return node_end(op, COLL_DONE);
}

/* One action of each kind; true if any was possible. */
static bool turn(node_op *op, size_t *moved, bool *is_lost)
{
    bool did = try_fill(op);
    if (can_work(op)) {
        NODE_FAULT_POINT(op);
        *is_lost = !work_round(op, moved);
        if (*is_lost) return true;
        op->work++;
        if (worked_matters(op))
            atomic_store_explicit(&node_own_slot(op->team)->worked, count(op, op->work),
                                  memory_order_release);
        did = true;
    }
    did |= try_take(op);
    if (did && worked_matters(op)) node_team_ring(op->team);
    return did;
}

coll_state node_work(node_op *op, pen_error *why)
{
    size_t moved = 0;
    bool is_lost = false;
    if (op->given_up_ms != 0) return node_given_up(op, why);
    if (op->is_small) {
        if (op->rounds > 0) node_folds(op) ? fold(op, 0) : copy_parts(op, 0);
        return node_end(op, COLL_DONE);
    }
    while (turn(op, &moved, &is_lost)) {
        if (is_lost) return node_given_up(op, why);
        if (moved < NODE_TURN_BYTES || op->work == op->rounds) continue;
        node_ring_self(op->team->place);
        return COLL_RUNNING;
    }
    if (node_is_revoked(op)) return node_given_up(op, why);
    const bool is_through = op->work == op->rounds && (!op->takes || op->take == op->rounds);
    return is_through && all_have(op, op->rounds, 'w') ? finish(op) : COLL_RUNNING;
}
