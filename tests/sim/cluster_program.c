/* cluster_program.c - the training program of a worker, and the calls it waits for. */
#include "tests/sim/cluster_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t now_of(const sim_worker *w)
{
    return sim_now(w->c, &w->clock);
}

/* ---- calls: what a program waits for --------------------------------------------------------- */
sim_call *sim_call_begin(sim_worker *w, const char *name, int32_t tensor, bool acknowledges)
{
    sim_call *call = w->call;
    while (call->is_pending) call++;
    *call = (sim_call){.worker       = w,
                       .name         = name,
                       .is_pending   = true,
                       .deadline_ms  = now_of(w) + w->c->plan.deadline_ms,
                       .tensor       = tensor,
                       .acknowledges = acknowledges};
    w->pending++;
    return call;
}

void sim_worker_remember(sim_worker *w, const pen_error *why)
{
    if (w->why.status == PEN_OK) w->why = *why;
}

void sim_call_end(sim_call *call, const pen_error *why)
{
    sim_worker *w = call->worker;
    if (w->life != LIFE_RUNS) return; /* a dead program learns nothing */
    if (!call->is_pending) sim_wrong(w->c, "rank %u: %s ended twice", w->rank, call->name);
    call->is_pending = false;
    w->pending--;
    if (call->rows != NULL) sim_rows_end(call, why == NULL);
    if (why == NULL) {
        check_acknowledged(w, call);
        return;
    }
    sim_note(w->c, "rank %u: %s: %s", w->rank, call->name, why->text);
    if (why->status == PEN_TIMED_OUT && w->c->result.late[0] == '\0')
        snprintf(w->c->result.late, sizeof w->c->result.late, "%s", why->text);
    sim_worker_remember(w, why);
}

/* A call that gets no memory for its request fails. */
bool sim_program_has_begun(sim_worker *w, bool has_memory)
{
    pen_error why;
    if (has_memory) return true;
    if (!sim_memory_has_refused()) sim_wrong(w->c, "rank %u cannot begin a request", w->rank);
    why_set(&why, PEN_NO_MEMORY, "no memory for a request of rank %u", w->rank);
    sim_worker_remember(w, &why);
    return false;
}

/* ---- the program: initial values ------------------------------------------------------------- */
static void load(sim_worker *w)
{
    ps_client_request *r = ps_client_open(w->ps_client, now_of(w));
    sim_call *call       = w->call;
    while (!call->is_pending) call++;
    if (!sim_program_has_begun(w, r != NULL)) {
        sim_call_end(call, &w->why);
        return;
    }
    /* A previous rank 0 may have died while it sent them. */
    const bool is_first = w->rank == 0 && (!w->is_late || w->step == 0);
    for (uint32_t t = 0; t < w->c->model.n_tensors; t++) {
        const uint64_t n = plan_tensor_elements(&w->c->tensor[t]);
        for (uint64_t i = 0; i < n && is_first; i++)
            w->param[t][i] = model_first(&w->c->plan.task, t, i);
        if (is_first) ps_client_add(w->ps_client, r, PS_INIT, t, w->param[t], NULL);
        ps_client_add(w->ps_client, r, PS_LOAD, t, NULL, w->param[t]);
    }
    ps_client_close(w->ps_client, r, call, call->deadline_ms, now_of(w));
}

/* ---- the program: one step ------------------------------------------------------------------- */
static bool is_trained(const sim_worker *w, uint32_t tensor)
{
    return (w->c->tensor[tensor].flags & PEN_FROZEN) == 0;
}

/* A sum shows the ranks and the step of its numbers. */
static wire_scalars scalars_of(const sim_worker *w)
{
    return (wire_scalars){.n     = 2,
                          .name  = {SIM_SCALAR_RANKS, SIM_SCALAR_STEP},
                          .sum   = {sim_mark(w->rank), (double)w->step},
                          .ranks = {1, 1}};
}

static wire_inputs inputs_of(const sim_worker *w, const double *rate)
{
    const model_task *task = &w->c->plan.task;
    const uint64_t every   = w->c->plan.snapshot_every;
    return (wire_inputs){.scalars    = scalars_of(w),
                         .loss_scale = task->loss_scale,
                         .clip       = task->mode == MODEL_DECIDE ? task->clip : 0,
                         .weight     = model_weight(task, w->rank, w->step),
                         .skip       = true,
                         .snapshot   = w->rank == 0 && every > 0 && (w->step + 1) % every == 0,
                         .n_rates    = 2,
                         .rate       = rate};
}

static void shuffle(sim_worker *w)
{
    for (uint32_t i = w->c->model.n_tensors; i > 1; i--) {
        const uint32_t j   = (uint32_t)draw_below(&w->chance, i);
        const uint32_t old = w->order[i - 1];
        w->order[i - 1]    = w->order[j];
        w->order[j]        = old;
    }
}

static void think(sim_worker *w, program_place next)
{
    const sim_plan *p   = &w->c->plan;
    const uint64_t most = w->rank == p->slow_rank && p->slow_ms > 0 ? p->slow_ms : p->think_ms;
    w->wake_ms          = now_of(w) + draw_below(&w->chance, most + 1) / 2;
    w->at               = next;
}

static void begin_step(sim_worker *w)
{
    const double rate[]  = {w->c->plan.task.rate, 1};
    const wire_inputs in = inputs_of(w, rate);
    if (!sim_has_servers(w->c)) {
        think(w, AT_FIRST_HALF);
        return;
    }
    for (uint32_t t = 0; t < w->c->model.n_tensors; t++)
        if (is_trained(w, t))
            model_fill_gradient(&w->c->plan.task, &w->c->tensor[t], t, w->rank, w->step,
                                w->grad[t]);
    shuffle(w);
    w->has_outcome = false;
    if (!w->c->plan.verbs)
        w->step_request = ps_client_step_open(w->ps_client, w->step, &in, now_of(w));
    const bool has_inputs = w->c->plan.verbs ? ps_client_set_inputs(w->ps_client, &in) == PEN_OK
                                             : w->step_request != NULL;
    if (!sim_program_has_begun(w, has_inputs)) return;
    think(w, AT_FIRST_HALF);
}

static void request(sim_worker *w, ps_client_verb verb, uint32_t t, const char *name)
{
    ps_client_request *r = ps_client_open(w->ps_client, now_of(w));
    const bool pushes    = verb != PS_PULL;
    if (!sim_program_has_begun(w, r != NULL)) return;
    sim_call *call = sim_call_begin(w, name, (int32_t)t, pushes);
    ps_client_add(w->ps_client, r, verb, t, pushes ? w->grad[t] : NULL,
                  verb != PS_PUSH ? w->param[t] : NULL);
    ps_client_close(w->ps_client, r, call, call->deadline_ms, now_of(w));
}

static void push_tensor(sim_worker *w, uint32_t t)
{
    if (!is_trained(w, t)) return;
    if (!w->c->plan.verbs) {
        ps_client_add(w->ps_client, w->step_request, PS_STEP, t, w->grad[t], w->param[t]);
    } else if (sim_is_free_rule(w->c) && draw_chance(&w->chance, 50)) {
        request(w, PS_PUSH, t, "pen_push");
        request(w, PS_PULL, t, "pen_pull");
    } else {
        request(w, PS_PUSH_PULL, t, "pen_push_pull");
    }
}

static void push_half(sim_worker *w, bool second)
{
    const uint32_t n = w->c->model.n_tensors, from = second ? n / 2 : 0, to = second ? n : n / 2;
    for (uint32_t i = from; i < to; i++) push_tensor(w, w->order[i]);
}

static void close_step(sim_worker *w)
{
    w->at = AT_STEP;
    for (uint64_t n = w->c->plan.rows ? draw_below(&w->chance, 4) : 0; n > 0; n--)
        sim_rows_request(w);
    if (w->c->plan.verbs) return;
    sim_call *call  = sim_call_begin(w, "pen_step_end", -1, true);
    w->step_request = NULL;
    ps_client_step_close(w->ps_client, call, call->deadline_ms, now_of(w));
}

/* As programs do with the job's key-value store: each adds one, and the last one announces it. */
static void change_store(sim_worker *w, const char *name, const unanswered_change *change)
{
    sim_call *call = sim_call_begin(w, name, -1, false);
    if (unanswered_kv(w->unanswered, change, call, call->deadline_ms, now_of(w)) == PEN_OK) return;
    (void)sim_program_has_begun(w, false);
    sim_call_end(call, &w->why);
}

static void meet(sim_worker *w)
{
    char key[32];
    snprintf(key, sizeof key, "sum/%llu", (unsigned long long)w->step);
    w->at        = AT_MEET;
    w->sum       = 0;
    w->has_added = false;
    change_store(w, "pen_store_add",
                 &(unanswered_change){.op = WIRE_STORE_ADD, .key = key, .delta = w->rank + 1});
}

static void wait_for_others(sim_worker *w)
{
    char key[32];
    const int64_t n = w->c->plan.task.workers, all = n * (n + 1) / 2;
    snprintf(key, sizeof key, "met/%llu", (unsigned long long)w->step);
    if (w->sum > all)
        sim_wrong(w->c, "rank %u: the ranks' numbers add to %lld", w->rank, (long long)w->sum);
    w->has_added = true;
    if (w->sum == all)
        change_store(
            w, "pen_store_set",
            &(unanswered_change){
                .op = WIRE_STORE_SET, .key = key, .data = &w->step, .size = sizeof w->step});
    else
        change_store(w, "pen_store_get", &(unanswered_change){.op = WIRE_STORE_GET, .key = key});
}

static void end_step(sim_worker *w)
{
    const uint64_t every = w->c->plan.barrier_every;
    check_step(w);
    w->step++;
    w->at = AT_BEGIN;
    if (every > 0 && w->step % every == 0) meet(w);
}

bool sim_program_advance(sim_worker *w)
{
    const uint64_t now = now_of(w);
    switch (w->at) {
    case AT_JOIN:
        if (!w->has_epoch) return false;
        sim_call_end(&w->call[0], NULL);
        sim_call_begin(w, "pen_commit", -1, false);
        membership_client_register(w->membership_client, &w->c->model, now);
        w->at = AT_REGISTER;
        return true;
    case AT_REGISTER:
        if (w->has_plan && sim_worker_reaches(w))
            membership_client_ready(w->membership_client, now);
        if (!w->is_committed) return false;
        w->step = (uint64_t)w->first_step;
        if (!sim_has_servers(w->c)) {
            sim_call_end(&w->call[0], NULL);
            w->has_loaded = true;
            w->at         = AT_BEGIN;
            return true;
        }
        sim_worker_exchange(w);
        if (w->why.status != PEN_OK) return false;
        load(w);
        w->at = AT_COMMIT;
        return true;
    case AT_COMMIT:
        if (w->pending > 0) return false;
        check_step(w);
        w->has_loaded = true;
        w->at         = AT_BEGIN;
        return true;
    case AT_BEGIN:
        if (w->step < w->c->plan.task.steps && !w->wants_to_leave) {
            begin_step(w);
            return true;
        }
        if (!sim_has_servers(w->c) && !sim_group_may_leave(w)) return false;
        w->at = AT_LEAVE;
        return true;
    case AT_FIRST_HALF:
        if (now < w->wake_ms) return false;
        if (!sim_has_servers(w->c)) {
            w->at = AT_STEP;
            return true;
        }
        push_half(w, false);
        if (w->c->plan.many)
            w->at = AT_SECOND_HALF;
        else
            think(w, AT_SECOND_HALF);
        return true;
    case AT_SECOND_HALF:
        if (now < w->wake_ms) return false;
        push_half(w, true);
        close_step(w);
        return true;
    case AT_STEP:
        if (!sim_has_servers(w->c)) return sim_group_step(w);
        if (w->pending > 0) return false;
        end_step(w);
        return true;
    case AT_MEET:
        if (w->pending > 0) return false;
        if (w->has_added)
            w->at = AT_BEGIN;
        else
            wait_for_others(w);
        return true;
    case AT_LEAVE:
        membership_leave(membership_client_core(w->membership_client), now);
        w->c->goodbye[w->rank] = membership_client_core(w->membership_client)->incarnation;
        w->at                  = AT_LEAVING;
        return true;
    case AT_LEAVING:
        if (!w->has_left) return false;
        sim_worker_end(w, LIFE_LEFT);
        return true;
    case AT_END: break;
    }
    return false;
}
