/* hier_device.c - calls on device memory of several hosts: on the devices of each host, and between hosts by its share.
 *
 * DESIGN
 * Share.     Inside a host (device.h) each member gets a share of the host's result, its column: a slice of a sum, the
 *            parts of a reduce_scatter that go to the members of its place, of an all_gather those that come from them.
 *            Members of one place on all hosts combine their columns over the wire, and the members of a host spread
 *            the result among themselves on their devices.  So each byte of a host's result passes through host memory
 *            once, by one of its members, however many members it has.
 * Pieces.    The column is copied to page-locked memory in up to HIER_PIECES pieces, all enqueued at once.  While one is
 *            on the wire, the next are copied down and the ones before up.  A piece has the same share of each part, so
 *            that it is itself a call on contiguous memory.
 * Order.     All is enqueued on the call's stream.  The host waits for copies that came down, and for the wire, by
 *            polling; a call in stream order ends when its last work is enqueued.
 * First call Its members first try the devices of their host with a tiny call of their own, and tell in the entry
 *            whether they work.  If those of one host do not, the call ends on all before it moves anything.
 * Inputs     are not written before all members have what they need of them, even in place.
 */
#include "worker/collective/hier/hier_internal.h"

#include "common/base/clock.h"
#include "common/base/why.h"
#include "common/compute/device/device.h"
#include "common/containers/arrays.h"
#include "proto/plan.h"
#include "worker/collective/fault_point.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PIECE_BYTES = 1 << 20, ROOM_BYTES = 1 << 16, LINE = 256, SETTLE_MS = 200, DRAIN_MS = 5000 };

/* ---- what fits --------------------------------------------------------------------------------- */
static bool moves(const coll_call *call, int size)
{
    const bool has_parts = call->kind == COLL_ALL_GATHER || call->kind == COLL_REDUCE_SCATTER;
    return (has_parts ? coll_part_offset(call->counts, call->n, size) : call->n) > 0;
}

bool hier_fits_devices(const struct hier_team *team, const coll_call *call)
{
    if (team->o.across == NULL || team->o.inside_size < 2 || !moves(call, team->o.size))
        return false;
    switch (call->kind) {
    case COLL_ALL_REDUCE:
    case COLL_REDUCE:
    case COLL_REDUCE_SCATTER: return hier_may_fold_in_two(&team->o, call);
    case COLL_ALL_GATHER:
    case COLL_BROADCAST: return true;
    default: return false;
    }
}

void hier_take_devices(struct hier_team *team, const hier_devices *devices)
{
    team->device.o = *devices;
}

bool hier_refuses_devices(const struct hier_team *team)
{
    return team->device.is_refused;
}

/* ---- memory -------------------------------------------------------------------------------------- */
static pen_status enter(const hier_op *op, pen_error *why)
{
    const hier_device *d = &op->team->device;
    return d->o.ops->enter(d->o.device, why);
}

static void leave(const hier_op *op)
{
    op->team->device.o.ops->leave();
}

static size_t lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Work of the last call may still use what was there: it is put aside. */
static pen_status put_aside(hier_memory *m, unsigned char ***old, size_t *n_old, pen_error *why)
{
    if (m->data == NULL) return PEN_OK;
    if (!VEC_MORE(*old, *n_old)) return why_set(why, PEN_NO_MEMORY, "no memory for a call");
    (*old)[(*n_old)++] = m->data;
    *m                 = (hier_memory){0};
    return PEN_OK;
}

static size_t room_for(size_t bytes)
{
    size_t room = ROOM_BYTES;
    while (room < bytes) room *= 2;
    return room;
}

static pen_status hold_room(hier_device *d, size_t bytes, pen_error *why)
{
    if (d->room.data != NULL && d->room.bytes >= bytes) return PEN_OK;
    if (put_aside(&d->room, &d->old_room, &d->n_old_room, why) != PEN_OK) return why->status;
    d->room.data  = d->o.ops->alloc(room_for(bytes), d->o.device, why);
    d->room.bytes = room_for(bytes);
    return d->room.data != NULL ? PEN_OK : PEN_NO_MEMORY;
}

static pen_status hold_pinned(hier_device *d, size_t bytes, pen_error *why)
{
    if (d->pinned.data != NULL && d->pinned.bytes >= bytes) return PEN_OK;
    if (put_aside(&d->pinned, &d->old_pinned, &d->n_old_pinned, why) != PEN_OK) return why->status;
    d->pinned.data  = d->o.ops->host_alloc(room_for(bytes), why);
    d->pinned.bytes = room_for(bytes);
    return d->pinned.data != NULL ? PEN_OK : PEN_NO_MEMORY;
}

static pen_status make_event(const hier_device *d, device_event **event, pen_error *why)
{
    if (*event == NULL) *event = d->o.ops->event_new();
    return *event != NULL ? PEN_OK : why_set(why, PEN_NO_MEMORY, "no memory for an event");
}

static void free_memory(hier_device *d)
{
    const device_ops *ops = d->o.ops;
    for (int i = 0; i < HIER_PIECES; i++)
        if (d->down[i] != NULL) ops->event_free(d->down[i]);
    if (d->end != NULL) ops->event_free(d->end);
    if (d->room.data != NULL) ops->free(d->room.data);
    if (d->pinned.data != NULL) ops->host_free(d->pinned.data);
    for (size_t i = 0; i < d->n_old_room; i++) ops->free(d->old_room[i]);
    for (size_t i = 0; i < d->n_old_pinned; i++) ops->host_free(d->old_pinned[i]);
}

static bool settles(hier_device *d, uint64_t patience_ms)
{
    const uint64_t until = clock_ms(&clock_real) + patience_ms;
    while (d->is_unsettled && d->o.ops->event_done(d->end, NULL) == PEN_AGAIN) {
        if (clock_ms(&clock_real) >= until) return false;
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    d->is_unsettled = false;
    return true;
}

void hier_leave_devices(struct hier_team *team)
{
    hier_device *d = &team->device;
    if (d->o.ops == NULL) return;
    if (settles(d, DRAIN_MS) && d->o.ops->enter(d->o.device, NULL) == PEN_OK) {
        free_memory(d);
        d->o.ops->leave();
    }
    free(d->old_room);
    free(d->old_pinned);
    d->o = (hier_devices){0};
}

/* ---- the layout of a call -------------------------------------------------------------------------- */
static size_t native(const hier_op *op)
{
    return plan_dtype_bytes(op->call->dtype);
}

static size_t element(const hier_op *op)
{
    return plan_dtype_bytes(hier_dtype(op->call));
}

static bool has_columns(const hier_op *op)
{
    return op->call->kind == COLL_ALL_GATHER || op->call->kind == COLL_REDUCE_SCATTER;
}

static bool is_sum_of_all(const hier_op *op)
{
    return op->call->kind == COLL_ALL_REDUCE || op->call->kind == COLL_REDUCE;
}

static bool is_at_root(const hier_op *op)
{
    return hier_is_at_root(op->team, op->call->root);
}

/* Elements of this member's column. */
static size_t column_size(const hier_op *op)
{
    return op->team->counts[op->team->o.inside_rank];
}

/* Elements of the columns of the places before this one. */
static size_t before_column(const hier_op *op)
{
    return coll_part_offset(op->team->counts, 0, op->team->o.inside_rank);
}

/* Sets the columns of all places and the parts of this one's.  Returns the sum of all. */
static size_t count(hier_op *op)
{
    struct hier_team *team = op->team;
    hier_device *d         = &team->device;
    if (has_columns(op)) {
        const size_t all = hier_count_columns(op);
        d->n_parts       = team->o.across_size;
        memcpy(d->part, team->column, (size_t)d->n_parts * sizeof *d->part);
        return all;
    }
    for (int i = 0; i < team->o.inside_size; i++)
        team->counts[i] = hier_slice(team, op->call->n, i);
    d->n_parts = 1;
    d->part[0] = column_size(op);
    return op->call->n;
}

/* The root's result of a reduce, everyone's of an all_reduce: in a place of its own if it is over the input. */
static bool needs_whole(const hier_op *op)
{
    const coll_call *c = op->call;
    const bool gets_it =
        c->kind == COLL_ALL_REDUCE || (c->kind == COLL_REDUCE && c->root == op->team->o.rank);
    return gets_it && coll_overlap(c->in, c->n * native(op), c->out, c->n * native(op));
}

static pen_status lay_out(hier_op *op, pen_error *why)
{
    hier_device *d       = &op->team->device;
    const size_t all     = count(op);
    const size_t share   = column_size(op) * element(op);
    const bool is_wide   = hier_is_wide(op->call);
    const size_t columns = has_columns(op) ? lines(all * element(op))
                           : is_wide       ? lines(all * 4)
                                           : 0;
    const size_t narrow  = is_sum_of_all(op) && is_wide ? lines(column_size(op) * native(op)) : 0;
    const size_t whole   = needs_whole(op) ? lines(all * native(op)) : 0;
    pen_status status    = hold_room(d, columns + narrow + whole + lines(share), why);
    if (status == PEN_OK) status = hold_pinned(d, share, why);
    if (status != PEN_OK) return status;
    d->columns = d->room.data;
    d->narrow  = d->columns + columns;
    d->whole   = whole > 0 ? d->narrow + narrow : NULL;
    d->column  = d->narrow + narrow + whole;
    if (op->call->kind == COLL_ALL_GATHER) d->column = d->columns + before_column(op) * element(op);
    if (op->call->kind == COLL_BROADCAST)
        d->column = (unsigned char *)op->call->out + before_column(op) * element(op);
    const size_t pieces = (share + PIECE_BYTES - 1) / PIECE_BYTES;
    d->n_pieces         = pieces < HIER_PIECES ? (int)pieces : HIER_PIECES;
    d->piece            = 0;
    d->piece_travels    = false;
    return PEN_OK;
}

/* ---- work on the stream ------------------------------------------------------------------------------ */
static pen_status copy(const hier_op *op, void *to, const void *from, size_t bytes, pen_error *why)
{
    const hier_devices *o = &op->team->device.o;
    if (bytes == 0 || to == from) return PEN_OK;
    return device_copy(o->ops, op->call->traffic, o->stats, to, from, bytes, op->call->stream, why);
}

static pen_status widen(const hier_op *op, void *to, const void *from, size_t n, pen_error *why)
{
    if (!hier_is_wide(op->call)) return copy(op, to, from, n * native(op), why);
    if (n == 0) return PEN_OK;
    return op->team->device.o.ops->widen(to, from, op->call->dtype, n, op->call->stream, why);
}

static pen_status narrow(const hier_op *op, void *to, const void *from, size_t n, pen_error *why)
{
    if (!hier_is_wide(op->call)) return copy(op, to, from, n * native(op), why);
    if (n == 0) return PEN_OK;
    return op->team->device.o.ops->narrow(to, from, op->call->dtype, n, op->call->stream, why);
}

/* A call of the members of this host on their devices; it ends when it is enqueued. */
static pen_status begin_inside(hier_op *op, coll_call part, pen_error *why)
{
    part.stream          = op->call->stream;
    part.on_device       = true;
    part.in_stream_order = true;
    part.traffic         = op->call->traffic;
    return hier_begin_part(op, ON_DEVICE, &part, why);
}

static coll_call part_of_all(const hier_op *op, coll_kind kind, const void *in, void *out)
{
    coll_call part = hier_part(op, kind, column_size(op), in, out);
    part.counts    = op->team->counts;
    part.root      = op->team->place[op->call->root];
    return part;
}

/* ---- the trial and the entry ------------------------------------------------------------------------- */
static pen_status begin_trial(hier_op *op, pen_error *why)
{
    hier_device *d    = &op->team->device;
    pen_status status = enter(op, why);
    if (status != PEN_OK) return status;
    status = hold_room(d, ROOM_BYTES, why);
    for (int i = 0; i < HIER_PIECES && status == PEN_OK; i++)
        status = make_event(d, &d->down[i], why);
    if (status == PEN_OK) status = make_event(d, &d->end, why);
    leave(op);
    if (status != PEN_OK) return status;
    const coll_call trial = {.kind  = COLL_ALL_REDUCE,
                             .op    = PEN_MAX,
                             .dtype = PEN_U8,
                             .n     = 1,
                             .in    = d->room.data,
                             .out   = d->room.data + LINE,
                             .scale = 1,
                             .label = op->call->label};
    return begin_inside(op, trial, why);
}

static pen_status end_entry(hier_op *op, pen_error *why)
{
    const struct hier_team *team = op->team;
    hier_device *d               = &op->team->device;
    if (hier_compare(op, why) != PEN_OK) return why->status;
    d->is_proved = team->all_inside;
    if (d->is_proved) return PEN_OK;
    d->is_refused = true;
    for (int i = 0; i < team->o.size; i++)
        if (team->shown[i].is_inside == 0)
            return why_set(why, PEN_UNSUPPORTED, "rank %d cannot share its device with others",
                           team->o.ranks[i]);
    return PEN_UNSUPPORTED;
}

/* ---- inside the host: shares ------------------------------------------------------------------------- */
/* Between the group's order, in `ordered`, and the order of columns. */
static pen_status reorder(const hier_op *op, unsigned char *ordered, bool to_columns,
                          pen_error *why)
{
    const struct hier_team *team = op->team;
    unsigned char *column        = team->device.columns;
    pen_status status            = PEN_OK;
    for (int i = 0; i < team->o.size && status == PEN_OK; i++) {
        const int position = team->at[i];
        const size_t n     = coll_part(op->call->counts, op->call->n, position);
        unsigned char *part =
            ordered + coll_part_offset(op->call->counts, op->call->n, position) * native(op);
        status = to_columns ? widen(op, column, part, n, why)
                            : copy(op, part, column, n * native(op), why);
        column += n * element(op);
    }
    return status;
}

/* What precedes the call inside the host. */
static pen_status prepare(hier_op *op, pen_error *why)
{
    hier_device *d     = &op->team->device;
    const coll_call *c = op->call;
    pen_status status  = PEN_OK;
    if (d->is_unsettled) status = d->o.ops->stream_wait(c->stream, d->end, why);
    if (status == PEN_OK) status = lay_out(op, why);
    if (status != PEN_OK) return status;
    d->is_unsettled = true;
    switch (c->kind) {
    case COLL_REDUCE_SCATTER: return reorder(op, (unsigned char *)(uintptr_t)c->in, true, why);
    case COLL_ALL_GATHER:
        return copy(op,
                    d->column + coll_part_offset(d->part, 0, op->team->o.across_rank) * native(op),
                    c->in, d->part[op->team->o.across_rank] * native(op), why);
    case COLL_BROADCAST: return PEN_OK;
    default: return hier_is_wide(c) ? widen(op, d->columns, c->in, c->n, why) : PEN_OK;
    }
}

static pen_status begin_node(hier_op *op, pen_error *why)
{
    const hier_device *d = &op->team->device;
    const coll_call *c   = op->call;
    pen_status status    = enter(op, why);
    if (status != PEN_OK) return status;
    status = prepare(op, why);
    leave(op);
    if (status != PEN_OK || c->kind == COLL_ALL_GATHER) return status;
    if (c->kind == COLL_BROADCAST) {
        if (!is_at_root(op)) return PEN_OK;
        coll_call whole = hier_part(op, COLL_BROADCAST, c->n, c->out, c->out);
        whole.root      = op->team->place[c->root];
        return begin_inside(op, whole, why);
    }
    const bool is_laid_out = has_columns(op) || hier_is_wide(c);
    coll_call shares =
        part_of_all(op, COLL_REDUCE_SCATTER, is_laid_out ? d->columns : c->in, d->column);
    shares.root  = 0;
    shares.scale = c->scale;
    return begin_inside(op, shares, why);
}

/* ---- across: pieces ------------------------------------------------------------------------------------ */
/* Where piece k of a part of n elements begins. */
static size_t cut(size_t n, int k, int n_pieces)
{
    const size_t pieces = (size_t)n_pieces, at = (size_t)k;
    return n / pieces * at + n % pieces * at / pieces;
}

typedef struct {
    unsigned char *there, *here; /* on the device, in page-locked memory */
    size_t n;
} chunk;

/* Chunk `part` of piece k: pieces lie in page-locked memory one after the other. */
static chunk chunk_of(const hier_op *op, int part, int k)
{
    const hier_device *d = &op->team->device;
    size_t there = 0, here = 0;
    for (int i = 0; i < d->n_parts; i++) {
        here += cut(d->part[i], i < part ? k + 1 : k, d->n_pieces);
        if (i < part) there += d->part[i];
    }
    const size_t begin = cut(d->part[part], k, d->n_pieces);
    return (chunk){.there = d->column + (there + begin) * element(op),
                   .here  = d->pinned.data + here * element(op),
                   .n     = cut(d->part[part], k + 1, d->n_pieces) - begin};
}

static bool goes_down(const hier_op *op, int part)
{
    if (op->call->kind == COLL_BROADCAST) return is_at_root(op);
    return op->call->kind != COLL_ALL_GATHER || part == op->team->o.across_rank;
}

static bool goes_up(const hier_op *op, int part)
{
    switch (op->call->kind) {
    case COLL_BROADCAST: return !is_at_root(op);
    case COLL_REDUCE: return is_at_root(op);
    case COLL_ALL_GATHER: return part != op->team->o.across_rank;
    case COLL_REDUCE_SCATTER: return part == op->team->o.across_rank;
    default: return true;
    }
}

/* All at once.  Also a piece of which nothing comes down has its event: the memory it travels in is free by then. */
static pen_status copy_down(const hier_op *op, pen_error *why)
{
    const hier_device *d = &op->team->device;
    pen_status status    = enter(op, why);
    if (status != PEN_OK) return status;
    for (int k = 0; k < d->n_pieces && status == PEN_OK; k++) {
        for (int i = 0; i < d->n_parts && status == PEN_OK; i++) {
            const chunk part = chunk_of(op, i, k);
            if (goes_down(op, i))
                status = copy(op, part.here, part.there, part.n * element(op), why);
        }
        if (status == PEN_OK) status = d->o.ops->event_record(d->down[k], op->call->stream, why);
    }
    leave(op);
    return status;
}

static pen_status send_piece(hier_op *op, pen_error *why)
{
    hier_device *d    = &op->team->device;
    const int own     = has_columns(op) ? op->team->o.across_rank : 0;
    const chunk begin = chunk_of(op, 0, d->piece), mine = chunk_of(op, own, d->piece);
    const bool gathers  = op->call->kind == COLL_ALL_GATHER;
    const bool scatters = op->call->kind == COLL_REDUCE_SCATTER;
    coll_call part      = hier_part(op, op->call->kind, mine.n, gathers ? mine.here : begin.here,
                               scatters ? mine.here : begin.here);
    for (int i = 0; i < d->n_parts; i++) d->chunk[i] = chunk_of(op, i, d->piece).n;
    if (has_columns(op)) part.counts = d->chunk;
    part.root        = hier_place_across(op->team, op->call->root);
    d->piece_travels = true;
    return hier_begin_part(op, ON_ACROSS, &part, why);
}

static pen_status copy_up(const hier_op *op, pen_error *why)
{
    const hier_device *d = &op->team->device;
    pen_status status    = enter(op, why);
    if (status != PEN_OK) return status;
    for (int i = 0; i < d->n_parts && status == PEN_OK; i++) {
        const chunk part = chunk_of(op, i, d->piece);
        if (!goes_up(op, i)) continue;
        hier_divide(op, part.here, part.n);
        status = copy(op, part.there, part.here, part.n * element(op), why);
    }
    leave(op);
    return status;
}

/* OK: a piece travels, or none is left. */
static pen_status advance_pieces(hier_op *op, pen_error *why)
{
    hier_device *d    = &op->team->device;
    pen_status status = PEN_OK;
    if (d->piece_travels) {
        status           = copy_up(op, why);
        d->piece_travels = false;
        d->piece++;
    }
    if (status != PEN_OK || d->piece == d->n_pieces) return status;
    status = d->o.ops->event_done(d->down[d->piece], why);
    return status == PEN_OK ? send_piece(op, why) : status;
}

/* ---- inside the host: the result ----------------------------------------------------------------------- */
static pen_status begin_spread(hier_op *op, pen_error *why)
{
    hier_device *d           = &op->team->device;
    const coll_call *c       = op->call;
    const unsigned char *own = d->column;
    coll_call part;
    switch (c->kind) {
    case COLL_REDUCE_SCATTER: return PEN_OK;
    case COLL_ALL_GATHER: part = part_of_all(op, COLL_ALL_GATHER, own, d->columns); break;
    case COLL_BROADCAST:
        if (is_at_root(op)) return PEN_OK;
        part = part_of_all(op, COLL_ALL_GATHER, own, c->out);
        break;
    default:
        if (c->kind == COLL_REDUCE && !is_at_root(op)) return PEN_OK;
        if (hier_is_wide(c)) {
            pen_status status = enter(op, why);
            if (status == PEN_OK) {
                status = narrow(op, d->narrow, d->column, column_size(op), why);
                leave(op);
            }
            if (status != PEN_OK) return status;
            own = d->narrow;
        }
        part = part_of_all(op, c->kind == COLL_REDUCE ? COLL_GATHER : COLL_ALL_GATHER, own,
                           d->whole != NULL ? d->whole : c->out);
    }
    part.dtype = c->dtype;
    if (part.kind == COLL_ALL_GATHER) part.root = 0;
    return begin_inside(op, part, why);
}

static pen_status enqueue_last(const hier_op *op, pen_error *why)
{
    const hier_device *d = &op->team->device;
    const coll_call *c   = op->call;
    const int own        = op->team->o.across_rank;
    switch (c->kind) {
    case COLL_ALL_GATHER: return reorder(op, c->out, false, why);
    case COLL_REDUCE_SCATTER:
        return narrow(op, c->out, d->column + coll_part_offset(d->part, 0, own) * element(op),
                      d->part[own], why);
    default: return d->whole != NULL ? copy(op, c->out, d->whole, c->n * native(op), why) : PEN_OK;
    }
}

static pen_status finish(const hier_op *op, pen_error *why)
{
    const hier_device *d = &op->team->device;
    pen_status status    = enter(op, why);
    if (status != PEN_OK) return status;
    status = enqueue_last(op, why);
    if (status == PEN_OK) status = d->o.ops->event_record(d->end, op->call->stream, why);
    leave(op);
    return status;
}

static pen_status await_end(hier_op *op, pen_error *why)
{
    hier_device *d    = &op->team->device;
    pen_status status = d->o.ops->event_done(d->end, why);
    if (status == PEN_OK) d->is_unsettled = false;
    return status;
}

/* ---- phases ------------------------------------------------------------------------------------------------ */
static pen_status begin(hier_op *op, hier_device_phase at, pen_error *why)
{
    op->at = at;
    FAULT_POINT("hier", op->seq, 100 + at);
    switch (at) {
    case DEVICES_TRIAL: return begin_trial(op, why);
    case DEVICES_ENTRY: return hier_begin_entry(op, why);
    case DEVICES_NODE: return begin_node(op, why);
    case DEVICES_PIECES: return copy_down(op, why);
    case DEVICES_SPREAD: return begin_spread(op, why);
    case DEVICES_LAST: return finish(op, why);
    case DEVICES_END: break;
    }
    return PEN_OK;
}

/* The part in progress, if any, has ended.  AGAIN: the device has not come to where the next begins. */
static pen_status go_on(hier_op *op, pen_error *why)
{
    pen_status status = PEN_OK;
    switch (op->at) {
    case DEVICES_ENTRY: status = end_entry(op, why); break;
    case DEVICES_PIECES:
        status = advance_pieces(op, why);
        if (op->is_running) return status;
        break;
    case DEVICES_LAST:
        if (!op->call->in_stream_order) status = await_end(op, why);
        break;
    default: break;
    }
    return status == PEN_OK ? begin(op, op->at + 1, why) : status;
}

pen_status hier_begin_on_devices(hier_op *op, pen_error *why)
{
    return begin(op, op->team->device.is_proved ? DEVICES_ENTRY : DEVICES_TRIAL, why);
}

/* The others learn in the entry that the devices of this host do not work together. */
static bool is_failed_trial(hier_op *op, const pen_error *why)
{
    hier_device *d = &op->team->device;
    if (op->at != DEVICES_TRIAL || why->status != PEN_UNSUPPORTED ||
        !device_team_is_refused(d->o.inside))
        return false;
    d->is_refused = true;
    return true;
}

/* After a failure: what is enqueued still uses the caller's memory, and ends soon. */
static void settle(hier_op *op)
{
    hier_device *d = &op->team->device;
    if (op->at < DEVICES_NODE || op->at == DEVICES_END || enter(op, NULL) != PEN_OK) return;
    (void)d->o.ops->event_record(d->end, op->call->stream, NULL);
    (void)settles(d, SETTLE_MS);
    leave(op);
}

coll_state hier_advance_on_devices(hier_op *op, pen_error *why)
{
    pen_status status = PEN_OK;
    while (op->at != DEVICES_END && status == PEN_OK) {
        if (op->is_running) {
            const coll_state state = hier_advance_part(op, why);
            if (state == COLL_RUNNING) return COLL_RUNNING;
            op->is_running = false;
            if (state == COLL_FAILED && !is_failed_trial(op, why)) status = why->status;
        }
        if (status == PEN_OK) status = go_on(op, why);
    }
    if (status == PEN_OK) return COLL_DONE;
    if (status == PEN_AGAIN) {
        hier_serve_mesh(op->team);
        return COLL_RUNNING;
    }
    settle(op);
    return COLL_FAILED;
}

void hier_abort_on_devices(hier_op *op)
{
    hier_abort_part(op);
    settle(op);
}

pen_status hier_follow_devices(const hier_op *op, device_stream stream, pen_error *why)
{
    const hier_device *d = &op->team->device;
    return op->at == DEVICES_LAST ? d->o.ops->stream_wait(stream, d->end, why) : PEN_AGAIN;
}
