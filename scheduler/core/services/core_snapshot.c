/* core_snapshot.c - SNAPSHOT_PLEASE, _PART, _DONE: a snapshot exists on all servers or on none.
 *
 * If a disk is full, the oldest of two or more complete snapshots is deleted, and one more attempt follows.  The next
 * deletion waits for a success or failure.
 */
#include "common/base/mutation.h"
#include "common/containers/hash.h"
#include "scheduler/core/core_state.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- askers ------------------------------------------------------------------------------- */
static void answer_no(scheduler_core *core, const member_slot *s, pen_status status,
                      const char *text)
{
    wire_control c = {.kind            = WIRE_SNAPSHOT_DONE,
                      .u.snapshot_done = {.step = -1, .status = status, .text = text}};
    core_send(&core->out, s, &c);
}

static bool remember(core_snapshots *self, const member_slot *s)
{
    for (uint32_t i = 0; i < self->n_askers; i++)
        if (self->asker[i].incarnation == s->incarnation) return true;
    if (self->n_askers == CORE_ASKERS_MAX) return false;
    self->asker[self->n_askers++] = (core_asker){s->incarnation, self->serial};
    return true;
}

static void ask_lowest(scheduler_core *core, const wire_control *message)
{
    const member_slot *lowest = core_loss_lowest(core); /* it marks its pushes */
    if (lowest) core_send(&core->out, lowest, message);
}

void core_snapshot_please(scheduler_core *core, member_slot *s, const wire_control *message)
{
    if (core->job.servers_known && !core->job.n_servers) {
        answer_no(core, s, PEN_UNSUPPORTED,
                  "this job has no servers, so its workers write the snapshots: start it "
                  "with --store DIR --snapshot-every N, or let the program call pen_snapshot()");
        return;
    }
    if (core->job.phase != PHASE_TRAINING) {
        answer_no(core, s, PEN_WRONG_STATE, "the job is not training, so there is nothing to save");
        return;
    }
    if (!remember(&core->services.snapshots, s)) {
        answer_no(core, s, PEN_AGAIN, "too many snapshots are requested at once");
        return;
    }
    ask_lowest(core, message);
}

/* ---- the parts ------------------------------------------------------------------------------- */
static void forget(core_snapshot *snapshot)
{
    free(snapshot->has_part);
    *snapshot = (core_snapshot){0};
}

/* A free place, or the oldest: a server may never report its part. */
static core_snapshot *place_for(core_snapshots *self)
{
    core_snapshot *oldest = &self->at[0];
    for (int i = 0; i < CORE_SNAPSHOTS_MAX; i++) {
        if (!self->at[i].is_used) return &self->at[i];
        if (self->at[i].serial < oldest->serial) oldest = &self->at[i];
    }
    forget(oldest);
    return oldest;
}

static core_snapshot *snapshot_of(core_snapshots *self, int64_t step, uint32_t n_shards)
{
    for (int i = 0; i < CORE_SNAPSHOTS_MAX; i++)
        if (self->at[i].is_used && self->at[i].step == step) return &self->at[i];

    core_snapshot *made = place_for(self);
    made->has_part      = calloc(n_shards + 1, sizeof *made->has_part);
    if (!made->has_part) return NULL;
    made->is_used = true;
    made->spare   = -1;
    made->step    = step;
    made->serial  = ++self->serial;
    return made;
}

/* Of the words after "no snapshot of step 100: ", never 0. */
static uint64_t hash_reason(const char *text)
{
    const char *words = strchr(text, ':');
    return hash_bytes(words, strlen(words)) | 1;
}

static void complete(scheduler_core *core, core_snapshot *snapshot)
{
    core_snapshots *all      = &core->services.snapshots;
    wire_control c           = {.kind = WIRE_SNAPSHOT_DONE};
    c.u.snapshot_done.step   = snapshot->step;
    c.u.snapshot_done.status = snapshot->status;
    c.u.snapshot_done.text   = snapshot->text;
    if (snapshot->status != PEN_OK && snapshot->spare >= 0 && !all->has_made_room &&
        core->job.phase == PHASE_TRAINING) {
        /* The next snapshot answers the askers. */
        wire_control again                     = {.kind = WIRE_SNAPSHOT_PLEASE};
        core->services.snapshots.has_made_room = true;
        c.u.snapshot_done.makes_room           = true;
        c.u.snapshot_done.gone                 = snapshot->spare;
        core_log(&core->out, LOG_NOTICE,
                 "%s; deleting the snapshot of step %" PRId64 " and trying again", snapshot->text,
                 snapshot->spare);
        core_send_all(&core->out, TO_SERVERS, &c);
        ask_lowest(core, &again);
        forget(snapshot);
        return;
    }
    all->has_made_room = false;
    if (snapshot->status == PEN_OK && snapshot->step > all->newest) all->newest = snapshot->step;
    const uint64_t why = snapshot->status == PEN_OK ? 0 : hash_reason(snapshot->text);
    if (snapshot->status == PEN_OK)
        core_log(&core->out, all->said != 0 ? LOG_NOTICE : LOG_INFO,
                 "the snapshot of step %" PRId64 " is complete%s", snapshot->step,
                 all->said != 0 ? ", the first since then" : "");
    else if (why != all->said)
        core_log(&core->out, LOG_WARNING, "%s; said once", snapshot->text);
    all->said = why;

    core_send_all(&core->out, TO_SERVERS, &c);
    /* Answers all askers from before the first part of this snapshot. */
    uint32_t kept = 0;
    for (uint32_t i = 0; i < all->n_askers; i++) {
        const core_asker asker = all->asker[i];
        const member_slot *s   = roster_of(core->out.all, asker.incarnation);
        if (!s) continue;
        if (asker.serial < snapshot->serial && s->role != PEN_SERVER)
            core_send(&core->out, s, &c);
        else
            all->asker[kept++] = asker;
    }
    all->n_askers = kept;
    forget(snapshot);
}

static void cover_shard(const scheduler_core *core, core_snapshot *snapshot, uint32_t shard)
{
    if (shard >= core->model.n_shards || snapshot->has_part[shard]) return;
    snapshot->has_part[shard] = true;
    snapshot->n_parts++;
}

void core_snapshot_part(scheduler_core *core, member_slot *s, const wire_control *message)
{
    if (core->job.phase != PHASE_TRAINING && core->job.phase != PHASE_STOPPING) return;
    core_snapshot *snapshot =
        snapshot_of(&core->services.snapshots, message->u.snapshot_part.step, core->model.n_shards);
    if (!snapshot) return;

    if (message->u.snapshot_part.status != PEN_OK && snapshot->status == PEN_OK) {
        snapshot->status = message->u.snapshot_part.status;
        snprintf(snapshot->text, sizeof snapshot->text,
                 "no snapshot of step %" PRId64 ": %s: %.200s", snapshot->step, MEMBER_NAME(s),
                 message->u.snapshot_part.text ? message->u.snapshot_part.text : "");
    }
    const int64_t spare = message->u.snapshot_part.lacks_room ? message->u.snapshot_part.spare : -1;
    if (spare >= 0 && (snapshot->spare < 0 || spare < snapshot->spare)) snapshot->spare = spare;
    /* A part that names no shards, as from a failed server, covers all shards of the server. */
    const uint32_t n = message->u.snapshot_part.n_shards;
    for (uint32_t i = 0; i < n; i++) cover_shard(core, snapshot, message->u.snapshot_part.shard[i]);
    for (uint32_t i = 0; n == 0 && i < core->epoch.place.n; i++) {
        const wire_replica *r = &core->epoch.place.row[i].at;
        if (r->server == s->rank && r->role == WIRE_PRIMARY) cover_shard(core, snapshot, r->shard);
    }
    if (snapshot->n_parts == core->model.n_shards || mutation(MUTATION_SNAPSHOT_DROPPED_BY_PART))
        complete(core, snapshot);
}

void core_snapshot_fail(scheduler_core *core, const char *text)
{
    for (int i = 0; i < CORE_SNAPSHOTS_MAX; i++) {
        core_snapshot *snapshot = &core->services.snapshots.at[i];
        if (!snapshot->is_used) continue;
        if (snapshot->status == PEN_OK)
            snprintf(snapshot->text, sizeof snapshot->text,
                     "no snapshot of step %" PRId64 ": %.180s", snapshot->step, text);
        if (snapshot->status == PEN_OK) snapshot->status = PEN_AGAIN;
        complete(core, snapshot);
    }
}
