/* core_model.c - REGISTER, PLAN, READY, COMMITTED: what the model is and where it lies. */
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
static uint32_t first_shard(const scheduler_core *core, int32_t server)
{
    uint32_t shards = 0;
    for (int32_t i = 0; i < server; i++) shards += core->roster.servers.at[i]->n_addresses;
    return shards;
}

static pen_status lay_out(scheduler_core *core, pen_error *why)
{
    pen_status status = restore_choose(&core->roster, &core->model, &core->restore, why);
    if (status != PEN_OK) return status;
    status = plan_create(&core->model, &core->plan, why);
    if (status != PEN_OK) return status;

    core->shard = calloc(core->plan->n_partitions + 1, sizeof *core->shard);
    if (!core->shard)
        return why_set(why, PEN_NO_MEMORY, "the scheduler has no memory for the plan");
    plan_place(core->plan, first_shard(core, (int32_t)core->n_servers), core->shard);
    return PEN_OK;
}

static wire_control plan_message(const scheduler_core *core, bool with_model)
{
    wire_control c        = {.kind = WIRE_PLAN};
    c.u.plan.n_partitions = core->plan->n_partitions;
    c.u.plan.shard        = core->shard;
    c.u.plan.restore      = core->restore;
    if (with_model) c.u.plan.model = core->model;
    return c;
}

static void place(scheduler_core *core, uint64_t now_ms)
{
    pen_error why;
    if (lay_out(core, &why) != PEN_OK) {
        core_verdict(core, &why, now_ms);
        return;
    }
    core->phase                = PHASE_LOADING;
    const wire_control servers = plan_message(core, true), workers = plan_message(core, false);
    core_send_all(core, TO_SERVERS, &servers);
    core_send_all(core, TO_WORKERS, &workers);
    core_log(core, LOG_INFO, "%u tensors in %u chunks and %u partitions on %u shards",
             core->plan->n_tensors, core->plan->n_chunks, core->plan->n_partitions,
             first_shard(core, (int32_t)core->n_servers));
}

/* Whole tensors, not bytes: what a person asks is which layers were on that server. */
const char *core_model_held(const scheduler_core *core, const seat *server, uint32_t *n_tensors)
{
    *n_tensors = 0;
    if (core->phase < PHASE_LOADING || !core->plan || !core->shard) return NULL;
    const uint32_t begin = first_shard(core, server->rank), end = begin + server->n_addresses;
    const char *first = NULL;
    for (uint32_t t = 0; t < core->plan->n_tensors; t++) {
        bool held = false;
        for (uint32_t c = core->plan->first_chunk[t]; c < core->plan->first_chunk[t + 1] && !held;
             c++) {
            const uint32_t shard = core->shard[core->plan->chunk[c].partition];
            held                 = shard >= begin && shard < end;
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
        if (!workers->at[i]->is_registered) return false;
    return true;
}

void core_register(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms)
{
    if (core->has_verdict) core_tell(core, s);
    if (core->phase == PHASE_LOADING || core->phase == PHASE_TRAINING) core_model_catch_up(core, s);
    if (core->phase != PHASE_REGISTERING) return;

    pen_error why;
    if (agree(core, s, message, &why) != PEN_OK) {
        core_verdict(core, &why, now_ms);
        return;
    }
    s->is_registered = true;
    if (all_registered(core)) place(core, now_ms);
}

/* ---- what servers say ------------------------------------------------------------------------ */
static wire_control committed_message(const scheduler_core *core)
{
    wire_control c        = {.kind = WIRE_COMMITTED};
    c.u.committed.step    = core->restore < 0 ? 0 : core->restore;
    c.u.committed.applied = core->applied;
    return c;
}

static bool all_ready(const scheduler_core *core)
{
    const seat_list *servers = &core->roster.servers;
    for (uint32_t i = 0; i < servers->n; i++)
        if (!servers->at[i]->is_ready) return false;
    return true;
}

void core_ready(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms)
{
    if (core->phase != PHASE_LOADING) return;
    if (core->restore >= 0 && message->u.ready.restored != core->restore) {
        char name[SENTENCE_SEAT_BYTES];
        pen_error why;
        why_set(&why, PEN_STORE, "%s did not restore step %" PRId64 " from its store %s",
                sentence_seat(name, s), core->restore, s->store);
        why_culprit(&why, PEN_SERVER, s->rank, core->restore, NULL);
        core_verdict(core, &why, now_ms);
        return;
    }
    s->is_ready = true;
    if (message->u.ready.applied > core->applied) core->applied = message->u.ready.applied;
    if (!all_ready(core)) return;

    core->phase             = PHASE_TRAINING;
    const wire_control done = committed_message(core);
    core_send_all(core, TO_WORKERS, &done);
}

void core_model_catch_up(scheduler_core *core, const seat *s)
{
    if (core->phase < PHASE_LOADING || core->phase > PHASE_STOPPING) return;
    if (s->role == PEN_WORKER || !s->is_ready) {
        const wire_control again = plan_message(core, s->role == PEN_SERVER);
        core_send(core, s, &again);
    }
    if (s->role == PEN_WORKER && core->phase >= PHASE_TRAINING) {
        const wire_control done = committed_message(core);
        core_send(core, s, &done);
    }
}
