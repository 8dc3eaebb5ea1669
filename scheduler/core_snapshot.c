/* core_snapshot.c - SNAPSHOT_PLEASE, _PART, _DONE: a snapshot exists on all servers or on none.
 *
 * A disk that has no room for one more loses the oldest of two or more complete ones, and another is asked for: once, until
 * one has succeeded or failed.
 */
#include "scheduler/core_state.h"
#include "common/plant.h"
#include <inttypes.h>
#include <stdlib.h>

/* ---- who asked ------------------------------------------------------------------------------- */
static void answer_no(scheduler_core *core, const seat *s, pen_status status, const char *text)
{
    wire_control c           = {.kind = WIRE_SNAPSHOT_DONE};
    c.u.snapshot_done.step   = -1;
    c.u.snapshot_done.status = status;
    c.u.snapshot_done.text   = text;
    core_send(core, s, &c);
}

static bool remember(scheduler_core *core, const seat *s)
{
    for (uint32_t i = 0; i < core->n_askers; i++)
        if (core->asker[i].incarnation == s->incarnation) return true;
    if (core->n_askers == CORE_ASKERS_MAX) return false;
    core->asker[core->n_askers++] = (core_asker){s->incarnation, core->serial};
    return true;
}

static void ask_lowest(scheduler_core *core, const wire_control *message)
{
    const seat *lowest = core_loss_lowest(core); /* the one that marks its pushes */
    if (lowest) core_send(core, lowest, message);
}

void core_snapshot_please(scheduler_core *core, seat *s, const wire_control *message)
{
    if (core->servers_known && !core->n_servers) {
        answer_no(core, s, PEN_UNSUPPORTED,
                  "this job has no servers, and its workers keep snapshots by themselves: start it "
                  "with --store DIR --snapshot-every N, or let the program call pen_snapshot()");
        return;
    }
    if (core->phase != PHASE_TRAINING) {
        answer_no(core, s, PEN_WRONG_STATE,
                  "the job does not train at the moment, so there is nothing to keep");
        return;
    }
    if (!remember(core, s)) {
        answer_no(core, s, PEN_AGAIN, "too many snapshots are being asked for");
        return;
    }
    ask_lowest(core, message);
}

static seat *seat_of(const scheduler_core *core, uint64_t incarnation)
{
    seat *s;
    for (uint32_t i = 0; (s = roster_next(&core->roster, &i));)
        if (s->incarnation == incarnation) return s;
    return NULL;
}

/* Those who asked before the first part of this snapshot came. */
static void answer_askers(scheduler_core *core, const core_snapshot *snapshot,
                          const wire_control *done)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < core->n_askers; i++) {
        const core_asker asker = core->asker[i];
        const seat *s          = seat_of(core, asker.incarnation);
        if (!s) continue;
        if (asker.serial < snapshot->serial && s->role != PEN_SERVER)
            core_send(core, s, done);
        else
            core->asker[kept++] = asker;
    }
    core->n_askers = kept;
}

/* ---- the parts ------------------------------------------------------------------------------- */
static void forget(core_snapshot *snapshot)
{
    free(snapshot->has_part);
    *snapshot = (core_snapshot){0};
}

void core_snapshot_fini(scheduler_core *core)
{
    for (int i = 0; i < CORE_SNAPSHOTS_MAX; i++) forget(&core->snapshot[i]);
}

/* A free place, or the oldest: a server may never say how its part went. */
static core_snapshot *place_for(scheduler_core *core)
{
    core_snapshot *oldest = &core->snapshot[0];
    for (int i = 0; i < CORE_SNAPSHOTS_MAX; i++) {
        core_snapshot *each = &core->snapshot[i];
        if (!each->is_used) return each;
        if (each->serial < oldest->serial) oldest = each;
    }
    forget(oldest);
    return oldest;
}

static core_snapshot *snapshot_of(scheduler_core *core, int64_t step)
{
    for (int i = 0; i < CORE_SNAPSHOTS_MAX; i++)
        if (core->snapshot[i].is_used && core->snapshot[i].step == step) return &core->snapshot[i];

    core_snapshot *made = place_for(core);
    made->has_part      = calloc(core->n_shards + 1, sizeof *made->has_part);
    if (!made->has_part) return NULL;
    made->is_used = true;
    made->spare   = -1;
    made->step    = step;
    made->serial  = ++core->serial;
    return made;
}

/* Those who asked for this one are answered with the next. */
static void make_room(scheduler_core *core, core_snapshot *snapshot, wire_control *done)
{
    wire_control again               = {.kind = WIRE_SNAPSHOT_PLEASE};
    core->has_made_room              = true;
    done->u.snapshot_done.makes_room = true;
    done->u.snapshot_done.gone       = snapshot->spare;
    core_log(core, LOG_NOTICE, "%s; that of step %" PRId64 " goes, and another is tried",
             snapshot->text, snapshot->spare);
    core_send_all(core, TO_SERVERS, done);
    ask_lowest(core, &again);
    forget(snapshot);
}

static void complete(scheduler_core *core, core_snapshot *snapshot)
{
    wire_control c           = {.kind = WIRE_SNAPSHOT_DONE};
    c.u.snapshot_done.step   = snapshot->step;
    c.u.snapshot_done.status = snapshot->status;
    c.u.snapshot_done.text   = snapshot->text;
    if (snapshot->status != PEN_OK && snapshot->spare >= 0 && !core->has_made_room &&
        core->phase == PHASE_TRAINING) {
        make_room(core, snapshot, &c);
        return;
    }
    core->has_made_room = false;
    if (snapshot->status == PEN_OK && snapshot->step > core->newest_snapshot)
        core->newest_snapshot = snapshot->step;
    if (snapshot->status == PEN_OK)
        core_log(core, LOG_INFO, "the snapshot of step %" PRId64 " is complete", snapshot->step);
    else
        core_log(core, LOG_WARNING, "%s", snapshot->text);

    core_send_all(core, TO_SERVERS, &c);
    answer_askers(core, snapshot, &c);
    forget(snapshot);
}

static void cover_shard(const scheduler_core *core, core_snapshot *snapshot, uint32_t shard)
{
    if (shard >= core->n_shards || snapshot->has_part[shard]) return;
    snapshot->has_part[shard] = true;
    snapshot->n_parts++;
}

/* The shards that the part names; one that names none, as of a server that failed, is about all that
 * the server serves. */
static void cover(const scheduler_core *core, core_snapshot *snapshot, const seat *s,
                  const wire_control *message)
{
    const uint32_t n = message->u.snapshot_part.n_shards;
    for (uint32_t i = 0; i < n; i++) cover_shard(core, snapshot, message->u.snapshot_part.shard[i]);
    for (uint32_t i = 0; n == 0 && i < core->place.n; i++) {
        const wire_replica *r = &core->place.row[i].at;
        if (r->server == s->rank && r->role == WIRE_PRIMARY) cover_shard(core, snapshot, r->shard);
    }
}

void core_snapshot_part(scheduler_core *core, seat *s, const wire_control *message)
{
    if (core->phase != PHASE_TRAINING && core->phase != PHASE_STOPPING) return;
    core_snapshot *snapshot = snapshot_of(core, message->u.snapshot_part.step);
    if (!snapshot) return;

    if (message->u.snapshot_part.status != PEN_OK && snapshot->status == PEN_OK) {
        char name[SENTENCE_SEAT_BYTES];
        snapshot->status = message->u.snapshot_part.status;
        snprintf(snapshot->text, sizeof snapshot->text,
                 "no snapshot of step %" PRId64 ": %s: %.120s", snapshot->step,
                 sentence_seat(name, s),
                 message->u.snapshot_part.text ? message->u.snapshot_part.text : "");
    }
    const int64_t spare = message->u.snapshot_part.lacks_room ? message->u.snapshot_part.spare : -1;
    if (spare >= 0 && (snapshot->spare < 0 || spare < snapshot->spare)) snapshot->spare = spare;
    cover(core, snapshot, s, message);
    if (snapshot->n_parts == core->n_shards || plant(PLANT_SNAPSHOT_DROPPED_BY_PART))
        complete(core, snapshot);
}

void core_snapshot_fail(scheduler_core *core, const char *text)
{
    for (int i = 0; i < CORE_SNAPSHOTS_MAX; i++) {
        core_snapshot *snapshot = &core->snapshot[i];
        if (!snapshot->is_used) continue;
        if (snapshot->status == PEN_OK)
            snprintf(snapshot->text, sizeof snapshot->text,
                     "no snapshot of step %" PRId64 ": %.180s", snapshot->step, text);
        if (snapshot->status == PEN_OK) snapshot->status = PEN_AGAIN;
        complete(core, snapshot);
    }
}
