/* core_plan.c - the agreed model and its placement, as sent and persisted. */
#include "scheduler/core/core_state.h"
#include <stdlib.h>
#include <string.h>

const char *core_model_setting(const wire_model *model, const char *key)
{
    for (uint32_t i = 0; i < model->n_settings; i++)
        if (model->setting[i].key && strcmp(model->setting[i].key, key) == 0)
            return model->setting[i].value;
    return NULL;
}

/* Whole tensors, not bytes: users ask which layers were on that server. */
const char *core_model_held(const scheduler_core *core, const member_slot *server,
                            uint32_t *n_tensors)
{
    *n_tensors = 0;
    if (core->job.phase < PHASE_LOADING || !core->model.plan || !core->model.shard) return NULL;
    const char *first = NULL;
    for (uint32_t t = 0; t < core->model.plan->n_tensors; t++) {
        bool held = false;
        for (uint32_t c = core->model.plan->first_chunk[t];
             c < core->model.plan->first_chunk[t + 1] && !held; c++) {
            const uint32_t shard = core->model.shard[core->model.plan->chunk[c].partition];
            held                 = placement_find(&core->epoch.place, shard, server->rank) != NULL;
        }
        if (held && !(*n_tensors)++) first = core->model.wire.tensor[t].name;
    }
    return first;
}

wire_control core_model_plan(const scheduler_core *core, bool with_model)
{
    wire_control c     = {.kind = WIRE_PLAN};
    c.u.plan.restore   = core->model.restore;
    c.u.plan.ranks_max = core->members.ranks_max;
    c.u.plan.epoch     = core->epoch.number;
    c.u.plan.term      = core->model.plan_term;
    if (core->model.plan) {
        c.u.plan.n_partitions = core->model.plan->n_partitions;
        c.u.plan.shard        = core->model.shard;
        c.u.plan.n_shards     = core->model.n_shards;
        c.u.plan.n_replicas   = core->epoch.view.u.epoch.n_replicas;
        c.u.plan.replica      = core->epoch.view.u.epoch.replica;
    }
    if (with_model) c.u.plan.model = core->model.wire;
    return c;
}

bool core_model_adopt(scheduler_core *core, const wire_control *kept)
{
    pen_error why;
    wire_control copy;
    const uint32_t n = kept->u.plan.n_partitions;
    core->model.of   = roster_find(&core->members.roster, PEN_WORKER, 0);
    if (!core->model.of || !wire_control_copy(kept, &core->model.kept, &copy)) return false;
    core->model.wire = copy.u.plan.model;
    if (!core->job.n_servers) return true;
    if (plan_create(&core->model.wire, &core->model.plan, &why) != PEN_OK) return false;
    core->model.shard = calloc(core->model.plan->n_partitions + 1, sizeof *core->model.shard);
    if (!core->model.shard || n != core->model.plan->n_partitions) return false;
    if (n) memcpy(core->model.shard, kept->u.plan.shard, n * sizeof *core->model.shard);
    return true;
}

wire_control core_model_committed(const scheduler_core *core, const member_slot *worker)
{
    const bool is_late    = worker && worker->begin_step >= 0;
    wire_control c        = {.kind = WIRE_COMMITTED};
    c.u.committed.step    = core->model.restore < 0 ? 0 : core->model.restore;
    c.u.committed.applied = core->model.applied;
    if (!is_late) c.u.committed.states = core->model.states;
    if (!is_late) c.u.committed.states_bytes = core->model.states_bytes;
    if (is_late) c.u.committed.step = worker->begin_step;
    if (is_late) c.u.committed.applied = worker->begin_applied;
    return c;
}

/* Others fill a late server: it restores nothing and holds nothing yet. */
static void send_plan(scheduler_core *core, const member_slot *s)
{
    wire_control c    = core_model_plan(core, s->role == PEN_SERVER);
    const uint32_t n  = c.u.plan.n_replicas;
    wire_replica *own = NULL;
    if (s->role == PEN_SERVER && core_is_late(core, s)) {
        own = malloc((n + 1) * sizeof *own);
        if (!own) return; /* it will ask again */
        c.u.plan.restore    = -1;
        c.u.plan.n_replicas = 0;
        for (uint32_t i = 0; i < n; i++)
            if (c.u.plan.replica[i].server != s->rank)
                own[c.u.plan.n_replicas++] = c.u.plan.replica[i];
        c.u.plan.replica = own;
    }
    core_send(&core->out, s, &c);
    free(own);
}

void core_model_catch_up(scheduler_core *core, const member_slot *s)
{
    if (core->job.phase < PHASE_LOADING || core->job.phase > PHASE_STOPPING) return;
    if (s->role == PEN_WORKER || !s->is_ready) send_plan(core, s);
    if (s->role == PEN_WORKER && core->job.phase >= PHASE_TRAINING && !core_is_late(core, s)) {
        const wire_control done = core_model_committed(core, s);
        core_send(&core->out, s, &done);
    }
}
