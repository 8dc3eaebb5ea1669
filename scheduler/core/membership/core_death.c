/* core_death.c - a death that ends the job: which push did the dead worker owe? */
#include "scheduler/core/core_state.h"
#include <string.h>

/* ---- the death query ----------------------------------------------- */
void core_conclude(scheduler_core *core)
{
    const core_query *q                = &core->members.query;
    const sentence_owed_push owed_push = {
        .step = q->step, .tensor = q->step >= 0 ? core->model.wire.tensor[q->tensor].name : ""};
    pen_error why;
    sentence_worker_gone(q->dead, &owed_push, q->died_ms, &why);
    core_add_silence(core, q->dead, q->died_ms, &why);
    core_verdict(core, &why);
}

static bool all_heard(const scheduler_core *core)
{
    MEMBER_SLOT_EACH(each, &core->members.roster.servers)
        if (each->state == MEMBER_ACTIVE && !each->is_heard) return false;
    return true;
}

static void inquire(scheduler_core *core, member_slot *dead)
{
    core->members.query = (core_query){.dead    = dead,
                                       .died_ms = core->out.now_ms,
                                       .due_ms  = core->out.now_ms + CORE_QUERY_MS,
                                       .step    = -1};
    wire_control c      = {.kind = WIRE_ENQUIRE, .u.enquire = {.rank = dead->rank}};
    MEMBER_SLOT_EACH(each, &core->members.roster.servers) each->is_heard = false;
    core_send_all(&core->out, TO_SERVERS, &c);
    if (all_heard(core)) core_conclude(core);
}

static uint32_t tensor_index(const wire_model *model, const char *name)
{
    uint32_t index = 0;
    while (index < model->n_tensors && strcmp(model->tensor[index].name, name) != 0) index++;
    return index;
}

void core_missing(scheduler_core *core, member_slot *s, const wire_control *message)
{
    core_query *q = &core->members.query;
    if (!q->dead || q->dead->rank != message->u.missing.rank) return;
    s->is_heard        = true;
    const int64_t step = message->u.missing.step;
    const uint32_t tensor =
        tensor_index(&core->model.wire, message->u.missing.tensor ? message->u.missing.tensor : "");
    const bool is_known =
        message->u.missing.known && step >= 0 && tensor < core->model.wire.n_tensors;
    const bool is_less = q->step < 0 || step < q->step || (step == q->step && tensor < q->tensor);
    if (is_known && is_less) {
        q->step   = step;
        q->tensor = tensor;
    }
    if (all_heard(core)) core_conclude(core);
}

/* ---- judging --------------------------------------------------------------------------------- */
void core_judge(scheduler_core *core, member_slot *dead)
{
    if (core->members.query.dead) { /* of another; this one may be the last to answer */
        if (all_heard(core)) core_conclude(core);
        return;
    }
    const bool servers_know = core->job.phase == PHASE_LOADING || core->job.phase == PHASE_TRAINING;
    if (dead->role == PEN_WORKER && servers_know) {
        inquire(core, dead);
        return;
    }
    pen_error why;
    uint32_t n_tensors;
    const char *tensor = dead->role == PEN_SERVER ? core_model_held(core, dead, &n_tensors) : NULL;
    if (dead->role == PEN_SERVER)
        sentence_server_gone(dead, tensor, n_tensors, core->job.step, core->out.now_ms, &why);
    else
        sentence_worker_gone(dead, NULL, core->out.now_ms, &why);
    core_add_silence(core, dead, core->out.now_ms, &why);
    core_verdict(core, &why);
}

uint64_t core_death_next_ms(const scheduler_core *core)
{
    return core->members.query.dead ? core->members.query.due_ms : UINT64_MAX;
}
