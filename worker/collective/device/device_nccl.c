/* device_nccl.c - whether NCCL carries the large all_reduce calls of a team: opened, timed, decided alike by all. */
#include "worker/collective/device/device_internal.h"

#include "common/base/clock.h"
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

static bool has_failed(const device_team *team)
{
    for (int i = 0; i < team->size; i++)
        if (state_of(team, i) == NCCL_FAILED) return true;
    return false;
}

static bool all_are(const device_team *team, device_nccl_state least)
{
    for (int i = 0; i < team->size; i++)
        if (state_of(team, i) < least) return false;
    return true;
}

/* auto takes NCCL only if additions may be reordered: integers alone are not worth the seconds of its start.  And only
 * if each member has its own device, as NCCL expects. */
static bool is_wanted(const device_team *team)
{
    if (team->size < 2) return false;
    if (team->options.sync == DEVICE_SYNC_NCCL) return true;
    return team->options.sync == DEVICE_SYNC_AUTO && team->options.may_reorder &&
           team->sync == device_sync_all[DEVICE_SYNC_STREAM - DEVICE_SYNC_HOSTFLAG];
}

static int first_without(const device_team *team)
{
    int who = 0;
    while (who < team->size && team->slot[who]->has_nccl) who++;
    return who;
}

static void close_link(device_team *team)
{
    if (team->nccl != NULL) team->options.nccl->close(team->nccl);
    team->nccl = NULL;
}

/* ---- stages ------------------------------------------------------------------------------------------- */

static pen_status name_stage(device_team *team, pen_error *why)
{
    if (team->rank != 0) return PEN_OK;
    device_slot *own  = team->slot[0];
    pen_status status = team->options.nccl->name(own->nccl_name, why);
    publish(team, status == PEN_OK ? NCCL_NAMED : NCCL_FAILED);
    return PEN_OK;
}

static pen_status open_stage(device_team *team, pen_error *why)
{
    if (state_of(team, 0) == NCCL_UNNAMED) return PEN_AGAIN;
    if (state_of(team, 0) == NCCL_FAILED ||
        team->options.nccl->open(team->slot[0]->nccl_name, team->size, team->rank, &team->nccl,
                                 why) != PEN_OK)
        publish(team, NCCL_FAILED);
    return PEN_OK;
}

/* Stops if a member has failed: waiting for it would never end. */
static pen_status meeting_stage(device_team *team, pen_error *why)
{
    if (state_of(team, team->rank) == NCCL_FAILED) return PEN_OK;
    pen_status status =
        has_failed(team) ? PEN_PEER_LOST : team->options.nccl->ready(team->nccl, why);
    if (status == PEN_AGAIN) return status;
    if (status != PEN_OK) team->options.nccl->abort(team->nccl);
    publish(team, status == PEN_OK ? NCCL_OPENED : NCCL_FAILED);
    return PEN_OK;
}

static pen_status verdict_stage(device_team *team, pen_error *why)
{
    if (!all_are(team, NCCL_OPENED)) return PEN_AGAIN;
    team->rounds = 0;
    if (!has_failed(team)) return PEN_OK;
    if (team->nccl != NULL) team->options.nccl->abort(team->nccl);
    close_link(team);
    if (team->options.sync != DEVICE_SYNC_NCCL) return PEN_OK;
    int who = 0;
    while (state_of(team, who) != NCCL_FAILED) who++;
    return why_set(
        why, PEN_UNSUPPORTED,
        "device_backend=nccl, but NCCL does not start on rank %d%s; use device_backend=auto",
        team->ranks[who],
        team->is_one_device ? ", where ranks share a device (NCCL_MULTI_RANK_GPU_ENABLE=1 may help)"
                            : "");
}

/* Times an all_reduce of the pools' present contents; the first round is the warm-up. */
static pen_status timing_stage(device_team *team, device_stream stream, pen_error *why)
{
    char *pool        = team->pool + DEVICE_FLAGS_BYTES;
    pen_status status = PEN_OK;
    if (team->rounds > 0) {
        status = team->ops->event_done(team->end, why);
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
    status = team->options.nccl->all_reduce(team->nccl, pool, pool + DEVICE_POOL_BYTES,
                                            DEVICE_POOL_BYTES / 4, PEN_F32, PEN_SUM, stream, why);
    if (status == PEN_OK) status = team->ops->event_record(team->end, stream, why);
    return status == PEN_OK ? PEN_AGAIN : status;
}

/* The time of a two-shot call of the same size, by the worst barrier and link that were measured. */
static double own_ns(const device_team *team)
{
    double barrier_ns = 0, bandwidth = 1e12;
    for (int i = 0; i < team->size; i++) {
        if (team->slot[i]->barrier_ns > barrier_ns) barrier_ns = team->slot[i]->barrier_ns;
        if (team->slot[i]->bandwidth < bandwidth) bandwidth = team->slot[i]->bandwidth;
    }
    return 2 * barrier_ns + 2.0 * (team->size - 1) / team->size * DEVICE_POOL_BYTES / bandwidth;
}

static pen_status choice_stage(device_team *team)
{
    double slowest = 0;
    if (!all_are(team, NCCL_TIMED)) return PEN_AGAIN;
    for (int i = 0; i < team->size; i++)
        if (team->slot[i]->nccl_ns > slowest) slowest = team->slot[i]->nccl_ns;
    if (team->options.sync == DEVICE_SYNC_AUTO && slowest >= own_ns(team)) close_link(team);
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
    const int without = first_without(team);
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

bool device_nccl_carries(const device_op *op)
{
    const device_team *team = op->team;
    if (team->nccl == NULL || op->is_one_shot || op->call->kind != COLL_ALL_REDUCE) return false;
    for (int i = 0; i < team->size; i++)
        if (device_entry_of(op, i)->scale != 1) return false;
    return nccl_fits(op->call->op, op->call->dtype, !team->options.may_reorder);
}
