/* device_work.c - what a call moves, and which member moves it. */
#include "worker/collective/device/device_internal.h"

#include "common/base/why.h"
#include <inttypes.h>
#include <string.h>

/* ---- properties that are the same on every member -------------------------------------------------- */

static bool has_parts(coll_kind kind)
{
    return kind == COLL_GATHER || kind == COLL_ALL_GATHER || kind == COLL_SCATTER ||
           kind == COLL_REDUCE_SCATTER;
}

bool device_moves(const device_op *op)
{
    const coll_call *c = op->call;
    if (c->kind == COLL_BARRIER) return false;
    if (c->kind == COLL_ALL_TO_ALL) return true; /* a member does not know what others send */
    return (has_parts(c->kind) ? coll_part_offset(c->counts, c->n, op->team->size) : c->n) > 0;
}

static size_t largest_input(const device_op *op)
{
    const coll_call *c = op->call;
    size_t most        = 0;
    switch (c->kind) {
    case COLL_GATHER:
    case COLL_ALL_GATHER:
        for (int i = 0; i < op->team->size; i++)
            if (coll_part(c->counts, c->n, i) > most) most = coll_part(c->counts, c->n, i);
        return most;
    case COLL_SCATTER:
    case COLL_REDUCE_SCATTER:
    case COLL_ALL_TO_ALL: return coll_part_offset(c->counts, c->n, op->team->size);
    default: return c->n;
    }
}

bool device_is_small(const device_op *op)
{
    if (op->call->kind == COLL_ALL_TO_ALL && (op->call->counts != NULL || op->call->n == 0))
        return false;
    if (device_nccl_is_ruled(op)) return false;
    return largest_input(op) <= op->team->one_shot_bytes / op->element;
}

/* ---- properties of this member ----------------------------------------------------------------------- */

bool device_shows_in(const device_op *op)
{
    const bool is_root = op->team->rank == op->call->root;
    if (op->in_bytes == 0) return false;
    if (op->call->kind == COLL_BROADCAST || op->call->kind == COLL_SCATTER) return is_root;
    return op->call->kind != COLL_GATHER || !is_root;
}

bool device_shows_out(const device_op *op)
{
    if (op->out_bytes == 0) return false;
    return op->call->kind == COLL_ALL_REDUCE ||
           (op->call->kind == COLL_REDUCE && op->team->rank == op->call->root);
}

bool device_is_own_part(const device_op *op)
{
    const coll_call *c  = op->call;
    const size_t offset = coll_part_offset(c->counts, c->n, op->team->rank) * op->element;
    switch (c->kind) {
    case COLL_BROADCAST: return true; /* the root writes nothing */
    case COLL_GATHER:
    case COLL_ALL_GATHER: return (const char *)c->in == (const char *)c->out + offset;
    case COLL_SCATTER: return (const char *)c->out == (const char *)c->in + offset;
    default: return false;
    }
}

pen_status device_check_counts(const device_op *op, pen_error *why)
{
    const device_team *team = op->team;
    if (op->call->kind != COLL_ALL_TO_ALL) return PEN_OK;
    for (int i = 0; i < team->size; i++) {
        for (int j = 0; j < team->size; j++) {
            const uint64_t sent = device_entry_of(op, i)->sends[j];
            const uint64_t got  = device_entry_of(op, j)->receives[i];
            if (sent == got) continue;
            return why_set(why, PEN_MISMATCH,
                           "all_to_all (call %" PRIu64 ") differs: rank %d sends %" PRIu64
                           " elements to rank %d, which expects %" PRIu64,
                           op->seq, team->ranks[i], sent, team->ranks[j], got);
        }
    }
    return PEN_OK;
}

/* ---- other members' memory --------------------------------------------------------------------------- */

/* The first `bytes` of the input of `who`. */
static pen_status input_of(const device_op *op, int who, size_t bytes, const char **data,
                           pen_error *why)
{
    device_team *team         = op->team;
    const device_entry *entry = device_entry_of(op, who);
    char *mapped              = NULL;
    if (who == team->rank) {
        *data = op->in;
        return PEN_OK;
    }
    if (op->is_one_shot && bytes > DEVICE_POOL_BYTES)
        return why_set(why, PEN_CORRUPT, "rank %d names %zu bytes beyond the end of its memory",
                       team->ranks[who], bytes);
    if (op->is_one_shot) {
        *data = team->pools[who] + DEVICE_FLAGS_BYTES + op->seq % 2 * DEVICE_POOL_BYTES;
        return PEN_OK;
    }
    if (!entry->has_in)
        return why_set(why, PEN_INTERNAL, "rank %d shows no input of call %" PRIu64,
                       team->ranks[who], op->seq);
    pen_status status = device_map_cached(team, who, &entry->in, bytes, &mapped, why);
    *data             = mapped;
    return status;
}

static pen_status output_of(const device_op *op, int who, size_t bytes, char **data, pen_error *why)
{
    if (who == op->team->rank) {
        *data = op->out;
        return PEN_OK;
    }
    if (!device_entry_of(op, who)->has_out)
        return why_set(why, PEN_INTERNAL, "rank %d shows no output of call %" PRIu64,
                       op->team->ranks[who], op->seq);
    return device_map_cached(op->team, who, &device_entry_of(op, who)->out, bytes, data, why);
}

/* ---- folds ------------------------------------------------------------------------------------------- */

/* Elements [begin, begin + count) of all inputs, each from `skip` on, to n_out results. */
static pen_status fold(const device_op *op, size_t skip, size_t begin, size_t count, int n_out,
                       pen_error *why)
{
    device_team *team = op->team;
    reduce_args args  = {.op     = op->call->op,
                         .dtype  = op->call->dtype,
                         .n_in   = team->size,
                         .n_out  = n_out,
                         .in     = team->operands,
                         .out    = team->results,
                         .scale  = NULL,
                         .stream = !op->is_one_shot};
    if (count == 0) return PEN_OK;
    for (int i = 0; i < team->size; i++) {
        const char *in    = NULL;
        pen_status status = input_of(op, i, (skip + begin + count) * op->element, &in, why);
        if (status != PEN_OK) return status;
        team->operands[i] = in + skip * op->element;
        team->scale[i]    = device_entry_of(op, i)->scale;
        if (team->scale[i] != 1) args.scale = team->scale;
    }
    return team->ops->reduce(&args, begin, count, op->call->stream, why);
}

static pen_status fold_to_own(const device_op *op, size_t skip, size_t count, pen_error *why)
{
    op->team->results[0] = op->out;
    return fold(op, skip, 0, count, 1, why);
}

/* Two-shot: folds this member's slice of all inputs to all members that get the result.  If all share one device, which
 * runs the kernels of several processes one after another anyway, one member folds everything. */
static pen_status fold_for_all(const device_op *op, pen_error *why)
{
    device_team *team    = op->team;
    const bool is_rooted = op->call->kind == COLL_REDUCE;
    const int elected    = is_rooted ? op->call->root : 0;
    const size_t n = op->call->n, each = n / (size_t)team->size;
    size_t begin = each * (size_t)team->rank, count = each;
    int outs = 0;
    if (team->rank == team->size - 1) count = n - begin;
    if (team->is_one_device) {
        begin = 0;
        count = team->rank == elected ? n : 0;
    }
    if (count == 0) return PEN_OK;
    for (int i = 0; i < team->size; i++) {
        char *out = NULL;
        if (is_rooted && i != op->call->root) continue;
        pen_status status = output_of(op, i, (begin + count) * op->element, &out, why);
        if (status != PEN_OK) return status;
        team->results[outs++] = out;
    }
    return fold(op, 0, begin, count, outs, why);
}

static pen_status work_reduce(const device_op *op, pen_error *why)
{
    if (!op->is_one_shot) return fold_for_all(op, why);
    return op->out_bytes > 0 ? fold_to_own(op, 0, op->call->n, why) : PEN_OK;
}

static pen_status work_reduce_scatter(const device_op *op, pen_error *why)
{
    const coll_call *c = op->call;
    return fold_to_own(op, coll_part_offset(c->counts, c->n, op->team->rank),
                       coll_part(c->counts, c->n, op->team->rank), why);
}

/* ---- copies ------------------------------------------------------------------------------------------ */

/* Copies `count` elements of `who`'s input, from element `from` on, to element `to` of the own output. */
static pen_status fetch(const device_op *op, int who, size_t from, size_t to, size_t count,
                        pen_error *why)
{
    const char *in = NULL;
    if (count == 0) return PEN_OK;
    if (from > PTRDIFF_MAX / op->element - count)
        return why_set(why, PEN_CORRUPT, "rank %d names more elements than memory can hold",
                       op->team->ranks[who]);
    pen_status status = input_of(op, who, (from + count) * op->element, &in, why);
    if (status != PEN_OK) return status;
    /* in place: the own part is in its place already; the pool has only a copy */
    if (who == op->team->rank && device_is_own_part(op) && op->call->in != NULL) return PEN_OK;
    return device_team_copy(op->team, op->call->traffic, op->out + to * op->element,
                            in + from * op->element, count * op->element, op->call->stream, why);
}

/* Where `who`'s part for this member begins in its input, according to `who`. */
static size_t sent_before(const device_op *op, int who)
{
    size_t from = 0;
    for (int j = 0; j < op->team->rank && from <= PTRDIFF_MAX / op->element; j++) {
        const uint64_t sent = device_entry_of(op, who)->sends[j];
        from                = sent > PTRDIFF_MAX - from ? PTRDIFF_MAX : from + sent;
    }
    return from;
}

static pen_status work_copies(const device_op *op, pen_error *why)
{
    const coll_call *c = op->call;
    pen_status status  = PEN_OK;
    for (int i = 0; i < op->team->size && status == PEN_OK; i++) {
        coll_piece p = coll_between(c, i, op->team->rank);
        if (c->kind == COLL_ALL_TO_ALL)
            p = (coll_piece){sent_before(op, i), coll_part(c->out_counts, c->n, i)};
        status = fetch(op, i, p.offset, coll_put_offset(c, i), p.n, why);
    }
    return status;
}

pen_status device_work(device_op *op, pen_error *why)
{
    if (device_nccl_carries(op)) return device_nccl_start(op, why);
    switch (op->call->kind) {
    case COLL_REDUCE:
    case COLL_ALL_REDUCE: return work_reduce(op, why);
    case COLL_REDUCE_SCATTER: return work_reduce_scatter(op, why);
    default: return work_copies(op, why);
    }
}
