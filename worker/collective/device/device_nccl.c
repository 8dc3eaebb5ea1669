/* device_nccl.c - which calls of a team NCCL carries: opened, timed, decided alike by all.
 *
 * DESIGN
 * Alike.     A call's path follows from what all members know: its kind, type, operation and size, the rules of the
 *            setting coll_algorithm, what all measured, and the scales, which are published with the headers.
 * Parts.     all_gather with parts of different lengths is a group of broadcasts.  reduce_scatter with such parts stays
 *            with our kernels: as a group of reduces, each part would go round its own ring of n - 1 links, one after
 *            the other, while our kernel reads every input once, over all links at the same time.
 * Rest.      Headers, barriers and staging are those of our own kernels: NCCL replaces only the work between them.
 */
#include "worker/collective/device/device_internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/why.h"

enum { AT_NAME, AT_OPEN, AT_MEETING, AT_VERDICT, AT_TIMING, AT_CHOICE };

static device_nccl_state state_of(const device_team *team, int who)
{
    return (device_nccl_state)atomic_load_explicit(&team->slot[who]->nccl, memory_order_acquire);
}

static void publish(device_team *team, device_nccl_state state)
{
    atomic_store_explicit(&device_own_slot(team)->nccl, state, memory_order_release);
}

static bool has_ended(device_nccl_state state)
{
    return state == NCCL_FAILED || state == NCCL_LEFT;
}

static bool has_failed(const device_team *team)
{
    for (int i = 0; i < team->size; i++)
        if (has_ended(state_of(team, i))) return true;
    return false;
}

static bool all_are(const device_team *team, device_nccl_state least)
{
    for (int i = 0; i < team->size; i++)
        if (state_of(team, i) < least) return false;
    return true;
}

/* NCCL expects a device for each member; streams that share one are synchronised by the host. */
static bool have_own_devices(const device_team *team)
{
    return team->sync != device_sync_all[0];
}

/* auto takes NCCL only if additions may be reordered, or if a rule names it: integers and copies alone are not worth the
 * seconds of its start. */
static bool is_wanted(const device_team *team)
{
    if (team->size < 2) return false;
    if (team->options.sync == DEVICE_SYNC_NCCL) return true;
    return team->options.sync == DEVICE_SYNC_AUTO && have_own_devices(team) &&
           (team->options.may_reorder || schedule_wants_nccl(team->options.rules));
}

static void close_link(device_team *team)
{
    if (team->nccl != NULL) team->options.nccl->close(team->nccl);
    team->nccl = NULL;
}

/* The others learn only that this member failed; the reason is in its own log.  PEER_LOST: another has failed. */
static void fail(device_team *team, pen_status status, const pen_error *why)
{
    if (status != PEN_PEER_LOST && why != NULL)
        log_notice("rank %d: NCCL does not start: %s", team->ranks[team->rank], why->text);
    publish(team, status == PEN_PEER_LOST ? NCCL_LEFT : NCCL_FAILED);
}

/* ---- stages ------------------------------------------------------------------------------------------- */

static pen_status name_stage(device_team *team, pen_error *why)
{
    if (team->rank != 0) return PEN_OK;
    device_slot *own  = team->slot[0];
    pen_status status = team->options.nccl->name(own->nccl_name, why);
    if (status == PEN_OK)
        publish(team, NCCL_NAMED);
    else
        fail(team, status, why);
    return PEN_OK;
}

static pen_status open_stage(device_team *team, pen_error *why)
{
    if (state_of(team, 0) == NCCL_UNNAMED) return PEN_AGAIN;
    pen_status status = state_of(team, 0) == NCCL_FAILED ? PEN_PEER_LOST : PEN_OK;
    if (status == PEN_OK)
        status = team->options.nccl->open(team->slot[0]->nccl_name, team->size, team->rank,
                                          &team->nccl, why);
    if (status != PEN_OK) fail(team, status, why);
    return PEN_OK;
}

/* Stops if a member has failed: waiting for it would never end. */
static pen_status meeting_stage(device_team *team, pen_error *why)
{
    if (has_ended(state_of(team, team->rank))) return PEN_OK;
    pen_status status =
        has_failed(team) ? PEN_PEER_LOST : team->options.nccl->ready(team->nccl, why);
    if (status == PEN_AGAIN) return status;
    if (status == PEN_OK) {
        publish(team, NCCL_OPENED);
        return PEN_OK;
    }
    team->options.nccl->abort(team->nccl);
    fail(team, status, why);
    return PEN_OK;
}

static pen_status verdict_stage(device_team *team, pen_error *why)
{
    if (!all_are(team, NCCL_OPENED)) return PEN_AGAIN;
    team->rounds = 0;
    if (!has_failed(team)) return PEN_OK;
    if (team->nccl != NULL) team->options.nccl->abort(team->nccl);
    close_link(team);
    int who = 0;
    while (who < team->size - 1 && state_of(team, who) != NCCL_FAILED) who++;
    if (team->options.sync != DEVICE_SYNC_NCCL) {
        log_notice("rank %d: NCCL does not start on rank %d; the calls of %d ranks on devices use "
                   "Penstock's kernels",
                   team->ranks[team->rank], team->ranks[who], team->size);
        return PEN_OK;
    }
    return why_set(
        why, PEN_UNSUPPORTED,
        "device_backend=nccl, but NCCL does not start on rank %d%s; use device_backend=auto",
        team->ranks[who],
        !have_own_devices(team)
            ? ", where ranks share a device (NCCL_MULTI_RANK_GPU_ENABLE=1 may help)"
            : "");
}

static pen_status enqueued(device_team *team, device_stream stream, pen_error *why)
{
    pen_status status = team->options.nccl->ready(team->nccl, why);
    if (status != PEN_OK) return status;
    team->is_enqueuing = false;
    status             = team->ops->event_record(team->end, stream, why);
    return status == PEN_OK ? PEN_AGAIN : status;
}

/* Times an all_reduce of the pools' present contents; the first round is the warm-up. */
static pen_status timing_stage(device_team *team, device_stream stream, pen_error *why)
{
    char *pool           = team->pool + DEVICE_FLAGS_BYTES;
    const nccl_call call = {.kind  = NCCL_ALL_REDUCE,
                            .dtype = PEN_F32,
                            .op    = PEN_SUM,
                            .n     = DEVICE_POOL_BYTES / 4,
                            .in    = pool,
                            .out   = pool + DEVICE_POOL_BYTES};
    pen_status status    = PEN_OK;
    if (team->is_enqueuing) return enqueued(team, stream, why);
    if (team->rounds > 0) {
        status = team->ops->event_done(team->end, why);
        if (status == PEN_AGAIN && team->options.nccl->ready(team->nccl, why) != PEN_OK)
            return why->status;
        if (status != PEN_OK) return status;
    }
    const uint64_t now = clock_ns(&clock_real);
    if (team->rounds == 2) {
        device_own_slot(team)->nccl_ns = (double)(now - team->measured_ns);
        publish(team, NCCL_TIMED);
        return PEN_OK;
    }
    team->measured_ns = now;
    team->rounds++;
    status             = team->options.nccl->start(team->nccl, &call, stream, why);
    team->is_enqueuing = true;
    return status == PEN_OK ? PEN_AGAIN : status;
}

/* The time of a two-shot call of the same size over the worst link that was measured.  Both have the same barriers. */
static double own_ns(const device_team *team)
{
    double bandwidth = 1e12;
    for (int i = 0; i < team->size; i++)
        if (team->slot[i]->bandwidth < bandwidth) bandwidth = team->slot[i]->bandwidth;
    return 2.0 * (team->size - 1) / team->size * DEVICE_POOL_BYTES / bandwidth;
}

static pen_status choice_stage(device_team *team)
{
    double slowest = 0;
    if (!all_are(team, NCCL_TIMED)) return PEN_AGAIN;
    for (int i = 0; i < team->size; i++)
        if (team->slot[i]->nccl_ns > slowest) slowest = team->slot[i]->nccl_ns;
    team->nccl_is_faster = team->options.sync == DEVICE_SYNC_NCCL || slowest < own_ns(team);
    if (!team->nccl_is_faster && !schedule_wants_nccl(team->options.rules)) close_link(team);
    return PEN_OK;
}

static pen_status run_stage(device_team *team, device_stream stream, pen_error *why)
{
    switch (team->nccl_stage) {
    case AT_NAME: return name_stage(team, why);
    case AT_OPEN: return open_stage(team, why);
    case AT_MEETING: return meeting_stage(team, why);
    case AT_VERDICT: return verdict_stage(team, why);
    case AT_TIMING: return team->nccl != NULL ? timing_stage(team, stream, why) : PEN_OK;
    default: return team->nccl != NULL ? choice_stage(team) : PEN_OK;
    }
}

pen_status device_nccl_setup(device_team *team, device_stream stream, pen_error *why)
{
    int without = 0;
    while (without < team->size && team->slot[without]->has_nccl) without++;
    if (!is_wanted(team)) return PEN_OK;
    if (without < team->size && team->options.sync == DEVICE_SYNC_AUTO) return PEN_OK;
    if (without < team->size)
        return why_set(
            why, PEN_UNSUPPORTED,
            "device_backend=nccl, but rank %d has no NCCL; install libnccl.so.2 there or use "
            "device_backend=auto",
            team->ranks[without]);
    while (team->nccl_stage <= AT_CHOICE) {
        pen_status status = run_stage(team, stream, why);
        if (status != PEN_OK) return status;
        team->nccl_stage++;
    }
    return PEN_OK;
}

/* ---- use ----------------------------------------------------------------------------------------------- */

static bool kind_of(coll_kind kind, nccl_kind *its)
{
    switch (kind) {
    case COLL_ALL_REDUCE: *its = NCCL_ALL_REDUCE; return true;
    case COLL_REDUCE: *its = NCCL_REDUCE; return true;
    case COLL_REDUCE_SCATTER: *its = NCCL_REDUCE_SCATTER; return true;
    case COLL_ALL_GATHER: *its = NCCL_ALL_GATHER; return true;
    case COLL_BROADCAST: *its = NCCL_BROADCAST; return true;
    default: return false;
    }
}

static bool parts_are_equal(const coll_call *call, int size)
{
    for (int i = 1; call->counts != NULL && i < size; i++)
        if (call->counts[i] != call->counts[0]) return false;
    return true;
}

/* All but what only the arrival of all shows. */
static bool may_carry(const device_op *op)
{
    const device_team *team = op->team;
    const coll_call *call   = op->call;
    nccl_kind kind;
    if (team->nccl == NULL || !kind_of(call->kind, &kind)) return false;
    if (kind == NCCL_REDUCE_SCATTER && !parts_are_equal(call, team->size)) return false;
    return !coll_reduces(call->kind) ||
           nccl_fits(call->op, call->dtype, !team->options.may_reorder);
}

bool device_nccl_is_ruled(const device_op *op)
{
    return may_carry(op) && schedule_for_device(op->team->options.rules, op->call,
                                                op->team->size) == SCHEDULE_DEVICE_NCCL;
}

bool device_nccl_carries(const device_op *op)
{
    const device_team *team = op->team;
    if (op->is_one_shot || !may_carry(op)) return false;
    for (int i = 0; i < team->size; i++)
        if (coll_reduces(op->call->kind) && device_entry_of(op, i)->scale != 1) return false;
    switch (schedule_for_device(team->options.rules, op->call, team->size)) {
    case SCHEDULE_DEVICE_NCCL: return true;
    case SCHEDULE_DEVICE_KERNELS: return false;
    default: return team->nccl_is_faster;
    }
}

pen_status device_nccl_start(device_op *op, pen_error *why)
{
    const coll_call *c  = op->call;
    const bool is_equal = parts_are_equal(c, op->team->size);
    nccl_call call      = {.dtype  = c->dtype,
                           .op     = c->op,
                           .root   = c->root,
                           .n      = c->counts != NULL && is_equal ? c->counts[0] : c->n,
                           .counts = is_equal ? NULL : c->counts,
                           .in     = op->in,
                           .out    = op->out};
    (void)kind_of(c->kind, &call.kind);
    op->is_by_nccl    = true;
    pen_status status = op->team->options.nccl->start(op->team->nccl, &call, c->stream, why);
    return status == PEN_AGAIN ? PEN_OK : status;
}

pen_status device_nccl_taken(const device_op *op, pen_error *why)
{
    return op->is_by_nccl ? op->team->options.nccl->ready(op->team->nccl, why) : PEN_OK;
}
