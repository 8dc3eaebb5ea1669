/* core_model.c - REGISTER, PLAN, READY, COMMITTED: the model and its placement.
 *
 * DESIGN.  READY of a server: it has allocated its memory.  READY of a worker: it has reached all required members.
 * COMMITTED waits for both, so every connection of the first step has been made before.
 */
#include "common/base/mutation.h"
#include "scheduler/core/core_state.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the plan -------------------------------------------------------------------------------- */
static pen_status place_shards(scheduler_core *core, pen_error *why)
{
    placement_server *all = core_epoch_servers(core);
    const pen_status status =
        all ? placement_goal(&core->epoch.place, core->model.n_shards, all,
                             core->members.roster.servers.n, (uint32_t)core->job.settings.replicas,
                             &core->epoch.goal)
            : PEN_NO_MEMORY;
    free(all);
    if (status == PEN_OK && placement_copy(&core->epoch.goal, &core->epoch.place)) return PEN_OK;
    return why_set(why, PEN_NO_MEMORY, "the scheduler has no memory for the plan");
}

static pen_status lay_out(scheduler_core *core, pen_error *why)
{
    pen_status status =
        restore_choose(&core->members.roster, &core->model.wire, &core->model.restore, why);
    if (status != PEN_OK || !core->job.n_servers) return status;
    status = plan_create(&core->model.wire, &core->model.plan, why);
    if (status != PEN_OK) return status;

    core->model.shard = calloc(core->model.plan->n_partitions + 1, sizeof *core->model.shard);
    if (!core->model.shard)
        return why_set(why, PEN_NO_MEMORY, "the scheduler has no memory for the plan");
    /* One shard for each thread that may ever exist, but at most one for each partition. */
    uint32_t threads = 0, most = 0;
    MEMBER_SLOT_EACH(one, &core->members.roster.servers) {
        threads += one->n_addresses;
        if (one->n_addresses > most) most = one->n_addresses;
    }
    if (core->job.settings.servers_max > core->job.n_servers)
        threads += (uint32_t)(core->job.settings.servers_max - core->job.n_servers) * most;
    core->model.n_shards =
        threads < core->model.plan->n_partitions ? threads : core->model.plan->n_partitions;
    plan_place(core->model.plan, core->model.n_shards, core->model.shard);
    return place_shards(core, why);
}

static void place(scheduler_core *core)
{
    pen_error why;
    if (lay_out(core, &why) != PEN_OK) {
        core_verdict(core, &why);
        return;
    }
    core->job.phase       = PHASE_LOADING;
    core->model.plan_term = core->job.term;
    if (!core_epoch_write(core, NULL, false)) {
        core_epoch_fail(core);
        return;
    }
    if (!core_persist(core)) return;
    const wire_control servers = core_model_plan(core, true),
                       workers = core_model_plan(core, false);
    core_send_all(&core->out, TO_SERVERS, &servers);
    core_send_all(&core->out, TO_WORKERS, &workers);
    if (!core->job.n_servers) return;
    core_log(&core->out, LOG_INFO, "%u tensors in %u chunks and %u partitions on %u shards",
             core->model.plan->n_tensors, core->model.plan->n_chunks,
             core->model.plan->n_partitions, core->model.n_shards);
}

/* ---- registering ------------------------------------------------------------------------ */
static pen_status agree(scheduler_core *core, member_slot *s, const wire_control *message,
                        pen_error *why)
{
    wire_control copy;
    if (!core->model.of) {
        if (!wire_control_copy(message, &core->model.kept, &copy))
            return why_set(why, PEN_NO_MEMORY,
                           "the scheduler has no memory for the names of %u tensors",
                           message->u.register_.n_tensors);
        core->model.wire = copy.u.register_;
        core->model.of   = s;
        return PEN_OK;
    }
    const member_slot *other = core->model.of;
    const bool is_higher =
        s->rank > other->rank; /* the sentence does not depend on the order of arrival */
    const wire_model *now = &message->u.register_, *first = &core->model.wire;
    return is_higher ? plan_compare(now, s->rank, s->host, first, other->rank, other->host, why)
                     : plan_compare(first, other->rank, other->host, now, s->rank, s->host, why);
}

static bool all_registered(const scheduler_core *core)
{
    MEMBER_SLOT_EACH(each, &core->members.roster.workers)
        if (!each->is_registered && each->state != MEMBER_DEAD) return false;
    return true;
}

static void register_late(scheduler_core *core, member_slot *s, const wire_control *message)
{
    pen_error why;
    if (plan_compare(&message->u.register_, s->rank, s->host, &core->model.wire, -1, "the job",
                     &why) != PEN_OK) {
        core_refuse(&core->out, s->peer, why.status, "%s cannot join: %.400s", MEMBER_NAME(s),
                    why.text);
        return;
    }
    s->is_registered = true;
    core_model_catch_up(core, s);
}

void core_register(scheduler_core *core, member_slot *s, const wire_control *message)
{
    if (core_is_late(core, s)) {
        register_late(core, s, message);
        return;
    }
    if (core->job.phase == PHASE_LOADING || core->job.phase == PHASE_TRAINING)
        core_model_catch_up(core, s);
    if (core->job.phase != PHASE_REGISTERING) return;

    pen_error why;
    if (agree(core, s, message, &why) != PEN_OK) {
        core_verdict(core, &why);
        return;
    }
    s->is_registered = true;
    core->due |= DUE_LEFT | DUE_MODEL;
}

/* ---- ready ---------------------------------------------------------------------------- */
static void begin_training(scheduler_core *core)
{
    core->job.phase = PHASE_TRAINING;
    if (!core_persist(core)) return;
    const wire_control done = core_model_committed(core, NULL);
    core_send_all(&core->out, TO_WORKERS, &done);
    core_epoch_want_without_dead(core);
}

static bool all_ready(const scheduler_core *core)
{
    const member_slots *servers = &core->members.roster.servers,
                       *workers = &core->members.roster.workers;
    MEMBER_SLOT_EACH(each, servers)
        if (!each->is_ready) return false;
    for (uint32_t i = 0; i < workers->n && !mutation(MUTATION_READY_NOT_AWAITED); i++)
        if (!workers->at[i]->is_ready && workers->at[i]->state != MEMBER_DEAD) return false;
    return true;
}

void core_model_advance(scheduler_core *core)
{
    if (core->job.phase == PHASE_REGISTERING && core->model.of && all_registered(core)) place(core);
    if (core->job.phase == PHASE_LOADING && all_ready(core)) begin_training(core);
}

/* All servers read the same states; the first is enough. */
static void take_states(scheduler_core *core, const wire_control *message)
{
    const size_t size = message->u.ready.states_bytes;
    if (!size || core->model.states) return;
    core->model.states = malloc(size);
    if (!core->model.states) {
        core_log(&core->out, LOG_WARNING, "no memory for the workers' states in the snapshot");
        return;
    }
    memcpy(core->model.states, message->u.ready.states, size);
    core->model.states_bytes = size;
}

static void late_ready(scheduler_core *core, member_slot *s)
{
    if (s->is_ready || (s->role == PEN_WORKER && !s->is_registered)) return;
    s->is_ready = true;
    core->epoch.goal_is_old |= s->role == PEN_SERVER;
    if (s->lost_ms)
        core_epoch_want(core, core->out.now_ms, "%.120s is back after %.1f s", MEMBER_NAME(s),
                        (double)(core->out.now_ms - s->lost_ms) / 1e3);
    else
        core_epoch_want(core, core->out.now_ms, "%.120s has joined", MEMBER_NAME(s));
}

/* False: it has not restored the snapshot of the plan. */
static bool take_restored(scheduler_core *core, const member_slot *s, const wire_control *message)
{
    if (core->model.restore >= 0 && message->u.ready.restored != core->model.restore) {
        pen_error why;
        why_set(&why, PEN_STORE, "%s did not restore step %" PRId64 " from its store %s",
                MEMBER_NAME(s), core->model.restore, s->store);
        why_culprit(&why, PEN_SERVER, s->rank, core->model.restore, NULL);
        core_verdict(core, &why);
        return false;
    }
    take_states(core, message);
    if (message->u.ready.applied > core->model.applied)
        core->model.applied = message->u.ready.applied;
    return true;
}

void core_ready(scheduler_core *core, member_slot *s, const wire_control *message)
{
    if (s->role == PEN_WORKER && !s->is_ready) core_reached(&core->members, s);
    if (core_is_late(core, s)) {
        late_ready(core, s);
        return;
    }
    if (s->role == PEN_WORKER && core->job.phase == PHASE_TRAINING) core_model_catch_up(core, s);
    if (core->job.phase != PHASE_LOADING) return;
    if (s->role == PEN_SERVER && !take_restored(core, s, message)) return;
    s->is_ready = true;
    core->due |= DUE_MODEL;
}
