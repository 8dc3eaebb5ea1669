/* hier.c - the path of groups with several members on several hosts: inside each host, then between hosts.
 *
 * DESIGN
 * Entry.     Members first exchange their headers in a small all_gather, so a mismatch gives the same sentence on all
 *            members; afterwards all calls below fit.  Members also send whether they can map the memory of their host:
 *            if one cannot, everything goes directly between all members.
 * all_reduce Inside the host each member folds one slice of the inputs (reduce_scatter); members with the same place on
 *            their hosts fold their slices (wire); inside the host slices are put together (all_gather).
 * broadcast  Inside the root's host, then from there to members of the same place, then inside the other hosts.
 * all_gather, reduce_scatter: hier_parts.c.
 * barrier    The entry is one.
 * Others     go directly between all members.  So do reductions whose result depends on the order (a float SUM, PROD or
 *            AVG), unless may_fold_in_two: deterministic=no, two_level=yes, or deterministic=node where hosts are nodes.
 * Devices    Calls on device memory that is not staged: hier_device.c.
 * 16 bits    Such reductions carry 16-bit floats as float32 between the phases: rounded once, as on every path.
 */
#include "worker/collective/hier/hier_internal.h"

#include "common/compute/simd/simd.h"
#include "common/containers/arrays.h"
#include "proto/plan.h"
#include "worker/collective/fault_point.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 64 };

/* ---- host layout ----------------------------------------------------------------------------- */
static void find_places(struct hier_team *team)
{
    int hosts = 0;
    for (int i = 0; i < team->o.size; i++) {
        const int first = team->host_of[i];
        if (first == i) team->host[i] = hosts++;
        if (team->o.across != NULL)
            team->at[team->place[i] * team->o.across_size + team->host[first]] = i;
    }
}

/* ---- creation and destruction ---------------------------------------------------------------- */
struct hier_team *hier_team_create(const hier_options *o)
{
    struct hier_team *team = aligned_alloc(64, sizeof *team);
    if (team == NULL) return NULL;
    memset(team, 0, sizeof *team);
    team->o        = *o;
    const size_t n = (size_t)o->size;
    team->arrays =
        ARRAYS_NEW(ARRAY(team->headers, n), ARRAY(team->counts, (size_t)o->inside_size),
                   ARRAY(team->host_of, n), ARRAY(team->shown, n), ARRAY(team->column, n),
                   ARRAY(team->place, n), ARRAY(team->host, n), ARRAY(team->at, n),
                   ARRAY(team->device.part, n), ARRAY(team->device.chunk, n));
    if (team->arrays == NULL) {
        free(team);
        return NULL;
    }
    memcpy(team->host_of, o->host_of, n * sizeof *team->host_of);
    memcpy(team->place, o->place, n * sizeof *team->place);
    team->o.host_of = team->host_of;
    team->o.place   = team->place;
    find_places(team);
    return team;
}

void hier_team_destroy(struct hier_team *team)
{
    if (team == NULL) return;
    if (team->o.across != NULL) wire_team_destroy(team->o.across);
    if (team->o.inside != NULL) node_team_destroy(team->o.inside);
    free(team->arrays);
    free(team->scratch);
    free(team);
}

bool hier_is_on_mesh(const struct hier_team *team)
{
    return atomic_load(&team->is_on_mesh);
}

/* ---- choosing the levels --------------------------------------------------------------------- */
/* The same on every member: hosts are even for all or for none, and `all_inside` comes from what all have sent. */
static hier_phase first_phase(const hier_options *o, const coll_call *call, bool all_inside)
{
    if (call->kind == COLL_BARRIER) return PHASE_END;
    if (!all_inside || o->across == NULL || o->inside == NULL) return PHASE_WHOLE;
    switch (call->kind) {
    case COLL_ALL_REDUCE: return hier_may_fold_in_two(o, call) ? PHASE_SCATTER : PHASE_WHOLE;
    case COLL_REDUCE_SCATTER: return hier_may_fold_in_two(o, call) ? PHASE_SHARES : PHASE_WHOLE;
    case COLL_ALL_GATHER: return PHASE_COLUMN;
    case COLL_BROADCAST: return PHASE_ROOT;
    default: return PHASE_WHOLE;
    }
}

/* ---- phases ---------------------------------------------------------------------------------- */
static bool is_in_place(const hier_op *op)
{
    return op->call->in == op->call->out;
}

/* An all_reduce's scratch: its slice, the result of a call in place, and 16-bit inputs as float32. */
static size_t lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static size_t slice_bytes(const hier_op *op)
{
    const struct hier_team *team = op->team;
    return lines(team->counts[team->o.inside_rank] * plan_dtype_bytes(hier_dtype(op->call)));
}

static size_t result_bytes(const hier_op *op)
{
    return is_in_place(op) ? lines(op->call->n * plan_dtype_bytes(op->call->dtype)) : 0;
}

/* Where the slices are put together. */
static void *whole(const hier_op *op)
{
    return is_in_place(op) ? op->team->scratch + slice_bytes(op) : op->call->out;
}

static void *wide(const hier_op *op)
{
    return op->team->scratch + slice_bytes(op) + result_bytes(op);
}

static pen_status begin_scatter(hier_op *op, pen_error *why)
{
    struct hier_team *team = op->team;
    for (int i = 0; i < team->o.inside_size; i++)
        team->counts[i] = hier_slice(team, op->call->n, i);
    const size_t n     = team->counts[team->o.inside_rank];
    const bool is_wide = hier_is_wide(op->call);
    pen_status status  = hier_make_scratch(
         team, slice_bytes(op) + result_bytes(op) + (is_wide ? op->call->n * sizeof(float) : 0) + 1,
         why);
    if (status != PEN_OK) return status;
    if (is_wide) simd()->decode(wide(op), op->call->in, op->call->dtype, op->call->n);
    coll_call part =
        hier_part(op, COLL_REDUCE_SCATTER, n, is_wide ? wide(op) : op->call->in, team->scratch);
    part.counts = team->counts;
    part.scale  = op->call->scale;
    return hier_begin_part(op, ON_INSIDE, &part, why);
}

static pen_status begin_fold(hier_op *op, pen_error *why)
{
    struct hier_team *team = op->team;
    const coll_call part   = hier_part(op, COLL_ALL_REDUCE, team->counts[team->o.inside_rank],
                                       team->scratch, team->scratch);
    return hier_begin_part(op, ON_ACROSS, &part, why);
}

static pen_status begin_gather(hier_op *op, pen_error *why)
{
    struct hier_team *team = op->team;
    const size_t n         = team->counts[team->o.inside_rank];
    void *slice            = team->scratch;
    hier_divide(op, slice, n);
    if (hier_is_wide(op->call)) { /* the inputs are no longer needed */
        slice = wide(op);
        simd()->encode(slice, (const float *)(const void *)team->scratch, op->call->dtype, n);
    }
    coll_call part = hier_part(op, COLL_ALL_GATHER, n, slice, whole(op));
    part.dtype     = op->call->dtype;
    part.counts    = team->counts;
    return hier_begin_part(op, ON_INSIDE, &part, why);
}

static void finish_gather(hier_op *op)
{
    const size_t all = op->call->n * plan_dtype_bytes(op->call->dtype);
    if (is_in_place(op) && all > 0) memcpy(op->call->out, whole(op), all);
}

static pen_status begin_broadcast(hier_op *op, hier_level level, int root, pen_error *why)
{
    coll_call part = *op->call;
    part.root      = root;
    return hier_begin_part(op, level, &part, why);
}

/* Begins this member's work in the phase; if it has none, is_running stays false. */
static pen_status begin_phase(hier_op *op, pen_error *why)
{
    struct hier_team *team = op->team;
    const int root         = op->call->root;
    switch (op->phase) {
    case PHASE_ENTRY: return hier_begin_entry(op, why);
    case PHASE_WHOLE: return hier_begin_part(op, ON_FLAT, op->call, why);
    case PHASE_SCATTER: return begin_scatter(op, why);
    case PHASE_FOLD: return begin_fold(op, why);
    case PHASE_GATHER: return begin_gather(op, why);
    case PHASE_ROOT:
        if (!hier_is_at_root(team, root)) return PEN_OK;
        return begin_broadcast(op, ON_INSIDE, team->place[root], why);
    case PHASE_HOSTS:
        if (team->o.inside_rank != team->place[root]) return PEN_OK;
        return begin_broadcast(op, ON_ACROSS, hier_place_across(team, root), why);
    case PHASE_LEAVES:
        if (hier_is_at_root(team, root)) return PEN_OK;
        return begin_broadcast(op, ON_INSIDE, team->place[root], why);
    case PHASE_COLUMN: return hier_begin_column(op, why);
    case PHASE_ROWS: return hier_begin_rows(op, why);
    case PHASE_SHARES: return hier_begin_shares(op, why);
    case PHASE_TOTAL: return hier_begin_total(op, why);
    case PHASE_END: break;
    }
    return PEN_OK;
}

static void end_call(hier_op *op)
{
    op->phase = PHASE_END;
    hier_trim_scratch(op->team);
}

static pen_status next_phase(hier_op *op, pen_error *why)
{
    switch (op->phase) {
    case PHASE_ENTRY:
        if (hier_compare(op, why) != PEN_OK) return why->status;
        op->phase = first_phase(&op->team->o, op->call, op->team->all_inside);
        break;
    case PHASE_SCATTER:
    case PHASE_FOLD:
    case PHASE_ROOT:
    case PHASE_HOSTS:
    case PHASE_COLUMN:
    case PHASE_SHARES: op->phase++; break;
    case PHASE_GATHER:
        finish_gather(op);
        end_call(op);
        break;
    case PHASE_ROWS:
        hier_finish_rows(op);
        end_call(op);
        break;
    case PHASE_TOTAL:
        hier_finish_total(op);
        end_call(op);
        break;
    case PHASE_WHOLE:
    case PHASE_LEAVES:
    case PHASE_END: end_call(op); break;
    }
    FAULT_POINT("hier", op->seq, op->phase);
    return begin_phase(op, why);
}

/* ---- the path -------------------------------------------------------------------------------- */
static pen_status hier_start(void *team, void *memory, const coll_call *call, uint64_t seq,
                             pen_error *why)
{
    hier_op *op = memory;
    *op         = (hier_op){.team = team, .call = call, .seq = seq};
    coll_header_of(call, op->team->o.size, seq, &op->shown.header);
    FAULT_POINT("hier", seq, PHASE_ENTRY);
    op->on_devices = call->on_device && !call->is_staged;
    return op->on_devices ? hier_begin_on_devices(op, why) : begin_phase(op, why);
}

static coll_state hier_advance(void *memory, pen_error *why)
{
    hier_op *op = memory;
    if (op->on_devices) return hier_advance_on_devices(op, why);
    while (op->phase != PHASE_END) {
        if (op->is_running) {
            coll_state state = hier_advance_part(op, why);
            if (state == COLL_RUNNING) return COLL_RUNNING;
            op->is_running = false;
            if (state == COLL_FAILED) return COLL_FAILED;
        }
        if (next_phase(op, why) != PEN_OK) return COLL_FAILED;
    }
    return COLL_DONE;
}

static void hier_abort(void *memory)
{
    hier_op *op = memory;
    if (op->on_devices)
        hier_abort_on_devices(op);
    else
        hier_abort_part(op);
}

static pen_status hier_follow(void *memory, void *stream, pen_error *why)
{
    const hier_op *op = memory;
    return op->on_devices ? hier_follow_devices(op, stream, why) : PEN_AGAIN;
}

/* Converts a position in the inner team to one in the whole group. */
static int outer_position(const struct hier_team *team, hier_level level, int position)
{
    if (level == ON_FLAT) return position;
    for (int i = 0; i < team->o.size; i++) {
        const bool fits =
            level != ON_ACROSS
                ? team->host_of[i] == team->host_of[team->o.rank] && team->place[i] == position
                : team->place[i] == team->o.inside_rank && hier_place_across(team, i) == position;
        if (fits) return i;
    }
    return team->o.rank;
}

static int hier_missing(void *memory, int *positions, int cap)
{
    hier_op *op = memory;
    const int n = hier_missing_in_part(op, positions, cap);
    for (int i = 0; i < n; i++) positions[i] = outer_position(op->team, op->level, positions[i]);
    return n;
}

const coll_path coll_path_hier = {
    .name    = "hier",
    .start   = hier_start,
    .advance = hier_advance,
    .abort   = hier_abort,
    .missing = hier_missing,
    .follow  = hier_follow,
};
