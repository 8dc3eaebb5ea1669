/* core_model.c - REGISTER, PLAN, READY, COMMITTED: what the model is and where it lies.
 *
 * DESIGN.  READY of a server: memory is there.  READY of a worker: it has reached all that it needs.  COMMITTED waits for
 * both, so the first step rests on no connection that was never made.
 */
#include "common/plant.h"
#include "scheduler/core_state.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *core_model_setting(const wire_model *model, const char *key)
{
    for (uint32_t i = 0; i < model->n_settings; i++)
        if (model->setting[i].key && strcmp(model->setting[i].key, key) == 0)
            return model->setting[i].value;
    return NULL;
}

/* ---- the plan -------------------------------------------------------------------------------- */
/* One shard for each thread that there may ever be, but none without a partition. */
static uint32_t count_shards(const scheduler_core *core)
{
    const seat_list *servers = &core->roster.servers;
    uint32_t threads = 0, most = 0;
    for (uint32_t i = 0; i < servers->n; i++) {
        threads += servers->at[i]->n_addresses;
        if (servers->at[i]->n_addresses > most) most = servers->at[i]->n_addresses;
    }
    if (core->settings.servers_max > core->n_servers)
        threads += (uint32_t)(core->settings.servers_max - core->n_servers) * most;
    return threads < core->plan->n_partitions ? threads : core->plan->n_partitions;
}

static pen_status place_shards(scheduler_core *core, pen_error *why)
{
    placement_server *all = core_epoch_servers(core);
    const pen_status status =
        all ? placement_goal(&core->place, core->n_shards, all, core->roster.servers.n,
                             (uint32_t)core->settings.replicas, &core->goal)
            : PEN_NO_MEMORY;
    free(all);
    if (status == PEN_OK && placement_copy(&core->goal, &core->place)) return PEN_OK;
    return why_set(why, PEN_NO_MEMORY, "the scheduler has no memory for the plan");
}

static pen_status lay_out(scheduler_core *core, pen_error *why)
{
    pen_status status = restore_choose(&core->roster, &core->model, &core->restore, why);
    if (status != PEN_OK || !core->n_servers) return status;
    status = plan_create(&core->model, &core->plan, why);
    if (status != PEN_OK) return status;

    core->shard = calloc(core->plan->n_partitions + 1, sizeof *core->shard);
    if (!core->shard)
        return why_set(why, PEN_NO_MEMORY, "the scheduler has no memory for the plan");
    core->n_shards = count_shards(core);
    plan_place(core->plan, core->n_shards, core->shard);
    return place_shards(core, why);
}

wire_control core_model_plan(const scheduler_core *core, bool with_model)
{
    wire_control c     = {.kind = WIRE_PLAN};
    c.u.plan.restore   = core->restore;
    c.u.plan.ranks_max = core->ranks_max;
    c.u.plan.epoch     = core->epoch;
    c.u.plan.term      = core->plan_term;
    if (core->plan) { /* else there are no servers to place anything on */
        c.u.plan.n_partitions = core->plan->n_partitions;
        c.u.plan.shard        = core->shard;
        c.u.plan.n_shards     = core->n_shards;
        c.u.plan.n_replicas   = core->record.u.epoch.n_replicas;
        c.u.plan.replica      = core->record.u.epoch.replica;
    }
    if (with_model) c.u.plan.model = core->model;
    return c;
}

bool core_model_adopt(scheduler_core *core, const wire_control *kept)
{
    pen_error why;
    const uint32_t n = kept->u.plan.n_partitions;
    core->model_of   = roster_find(&core->roster, PEN_WORKER, 0);
    if (!core->model_of || !keep_model(&core->kept, &kept->u.plan.model, &core->model))
        return false;
    if (!core->n_servers) return true;
    if (plan_create(&core->model, &core->plan, &why) != PEN_OK) return false;
    core->shard = calloc(core->plan->n_partitions + 1, sizeof *core->shard);
    if (!core->shard || n != core->plan->n_partitions) return false;
    if (n) memcpy(core->shard, kept->u.plan.shard, n * sizeof *core->shard);
    return true;
}

/* A server that comes late is filled by others: it restores nothing, and holds nothing yet. */
static void send_plan(scheduler_core *core, const seat *s)
{
    wire_control c    = core_model_plan(core, s->role == PEN_SERVER);
    const uint32_t n  = c.u.plan.n_replicas;
    wire_replica *own = NULL;
    if (s->role == PEN_SERVER && core_is_late(core, s)) {
        own = malloc((n + 1) * sizeof *own);
        if (!own) return; /* it asks again */
        c.u.plan.restore    = -1;
        c.u.plan.n_replicas = 0;
        for (uint32_t i = 0; i < n; i++)
            if (c.u.plan.replica[i].server != s->rank)
                own[c.u.plan.n_replicas++] = c.u.plan.replica[i];
        c.u.plan.replica = own;
    }
    core_send(core, s, &c);
    free(own);
}

static void place(scheduler_core *core, uint64_t now_ms)
{
    pen_error why;
    if (lay_out(core, &why) != PEN_OK) {
        core_verdict(core, &why, now_ms);
        return;
    }
    core->phase     = PHASE_LOADING;
    core->plan_term = core->term;
    core_epoch_plan(core, now_ms);
    if (!core_keep(core, now_ms)) return;
    const wire_control servers = core_model_plan(core, true),
                       workers = core_model_plan(core, false);
    core_send_all(core, TO_SERVERS, &servers);
    core_send_all(core, TO_WORKERS, &workers);
    if (!core->n_servers) return;
    core_log(core, LOG_INFO, "%u tensors in %u chunks and %u partitions on %u shards",
             core->plan->n_tensors, core->plan->n_chunks, core->plan->n_partitions, core->n_shards);
}

/* Whole tensors, not bytes: what a person asks is which layers were on that server. */
const char *core_model_held(const scheduler_core *core, const seat *server, uint32_t *n_tensors)
{
    *n_tensors = 0;
    if (core->phase < PHASE_LOADING || !core->plan || !core->shard) return NULL;
    const char *first = NULL;
    for (uint32_t t = 0; t < core->plan->n_tensors; t++) {
        bool held = false;
        for (uint32_t c = core->plan->first_chunk[t]; c < core->plan->first_chunk[t + 1] && !held;
             c++) {
            const uint32_t shard = core->shard[core->plan->chunk[c].partition];
            held                 = placement_find(&core->place, shard, server->rank) != NULL;
        }
        if (held && !(*n_tensors)++) first = core->model.tensor[t].name;
    }
    return first;
}

/* ---- what workers say ------------------------------------------------------------------------ */
static pen_status agree(scheduler_core *core, seat *s, const wire_control *message, pen_error *why)
{
    if (!core->model_of) {
        if (!keep_model(&core->kept, &message->u.register_, &core->model))
            return why_set(why, PEN_NO_MEMORY,
                           "the scheduler has no memory for the names of %u tensors",
                           message->u.register_.n_tensors);
        core->model_of = s;
        return PEN_OK;
    }
    const seat *other     = core->model_of;
    const bool is_higher  = s->rank > other->rank; /* the same sentence whoever came first */
    const wire_model *now = &message->u.register_, *first = &core->model;
    return is_higher ? plan_compare(now, s->rank, s->host, first, other->rank, other->host, why)
                     : plan_compare(first, other->rank, other->host, now, s->rank, s->host, why);
}

static bool all_registered(const scheduler_core *core)
{
    const seat_list *workers = &core->roster.workers;
    for (uint32_t i = 0; i < workers->n; i++)
        if (!workers->at[i]->is_registered && workers->at[i]->state != MEMBER_DEAD) return false;
    return true;
}

void core_register(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms)
{
    if (core->has_verdict) core_tell(core, s);
    if (core_is_late(core, s)) {
        core_late_register(core, s, message);
        return;
    }
    if (core->phase == PHASE_LOADING || core->phase == PHASE_TRAINING) core_model_catch_up(core, s);
    if (core->phase != PHASE_REGISTERING) return;

    pen_error why;
    if (agree(core, s, message, &why) != PEN_OK) {
        core_verdict(core, &why, now_ms);
        return;
    }
    s->is_registered = true;
    core_left_registering(core, now_ms);
    if (core->phase == PHASE_REGISTERING && all_registered(core)) place(core, now_ms);
}

/* ---- who is ready ---------------------------------------------------------------------------- */
wire_control core_model_committed(const scheduler_core *core, const seat *worker)
{
    const bool is_late    = worker && worker->begin_step >= 0;
    wire_control c        = {.kind = WIRE_COMMITTED};
    c.u.committed.step    = core->restore < 0 ? 0 : core->restore;
    c.u.committed.applied = core->applied;
    if (!is_late) c.u.committed.states = core->states;
    if (!is_late) c.u.committed.states_bytes = core->states_bytes;
    if (is_late) c.u.committed.step = worker->begin_step;
    if (is_late) c.u.committed.applied = worker->begin_applied;
    return c;
}

static void begin_training(scheduler_core *core, uint64_t now_ms)
{
    core->phase = PHASE_TRAINING;
    if (!core_keep(core, now_ms)) return;
    const wire_control done = core_model_committed(core, NULL);
    core_send_all(core, TO_WORKERS, &done);
}

static bool all_ready(const scheduler_core *core)
{
    const seat_list *servers = &core->roster.servers, *workers = &core->roster.workers;
    for (uint32_t i = 0; i < servers->n; i++)
        if (!servers->at[i]->is_ready) return false;
    for (uint32_t i = 0; i < workers->n && !plant(PLANT_READY_NOT_AWAITED); i++)
        if (!workers->at[i]->is_ready && workers->at[i]->state != MEMBER_DEAD) return false;
    return true;
}

void core_model_lost(scheduler_core *core, uint64_t now_ms)
{
    if (core->phase == PHASE_REGISTERING && core->model_of && all_registered(core))
        place(core, now_ms);
    if (core->phase == PHASE_LOADING && all_ready(core)) begin_training(core, now_ms);
}

/* All servers read the same; the first is enough. */
static void take_states(scheduler_core *core, const wire_control *message)
{
    const size_t size = message->u.ready.states_bytes;
    if (!size || core->states) return;
    core->states = malloc(size);
    if (!core->states) {
        core_log(core, LOG_WARNING, "no memory for what the snapshot keeps of the workers");
        return;
    }
    memcpy(core->states, message->u.ready.states, size);
    core->states_bytes = size;
}

static void late_ready(scheduler_core *core, seat *s, uint64_t now_ms)
{
    char late[SENTENCE_SEAT_BYTES];
    if (s->is_ready || (s->role == PEN_WORKER && !s->is_registered)) return;
    s->is_ready = true;
    core->goal_is_old |= s->role == PEN_SERVER;
    core_epoch_want(core, now_ms, now_ms, "%.120s has joined", sentence_seat(late, s));
}

/* False: it has not restored what it was told to. */
static bool take_restored(scheduler_core *core, const seat *s, const wire_control *message,
                          uint64_t now_ms)
{
    if (core->restore >= 0 && message->u.ready.restored != core->restore) {
        char name[SENTENCE_SEAT_BYTES];
        pen_error why;
        why_set(&why, PEN_STORE, "%s did not restore step %" PRId64 " from its store %s",
                sentence_seat(name, s), core->restore, s->store);
        why_culprit(&why, PEN_SERVER, s->rank, core->restore, NULL);
        core_verdict(core, &why, now_ms);
        return false;
    }
    take_states(core, message);
    if (message->u.ready.applied > core->applied) core->applied = message->u.ready.applied;
    return true;
}

void core_ready(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms)
{
    if (core->has_verdict) core_tell(core, s);
    if (s->role == PEN_WORKER && !s->is_ready) core_reached(core, s);
    if (core_is_late(core, s)) {
        late_ready(core, s, now_ms);
        return;
    }
    if (s->role == PEN_WORKER && core->phase == PHASE_TRAINING) core_model_catch_up(core, s);
    if (core->phase != PHASE_LOADING) return;
    if (s->role == PEN_SERVER && !take_restored(core, s, message, now_ms)) return;
    s->is_ready = true;
    if (all_ready(core)) begin_training(core, now_ms);
}

void core_model_catch_up(scheduler_core *core, const seat *s)
{
    if (core->phase < PHASE_LOADING || core->phase > PHASE_STOPPING) return;
    if (s->role == PEN_WORKER || !s->is_ready) send_plan(core, s);
    if (s->role == PEN_WORKER && core->phase >= PHASE_TRAINING && !core_is_late(core, s)) {
        const wire_control done = core_model_committed(core, s);
        core_send(core, s, &done);
    }
}
