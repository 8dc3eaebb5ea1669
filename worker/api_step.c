/* api_step.c - the step: begin, ready, end. */
#include "worker/api.h"
#include "worker/api_state.h"

#include "common/clock.h"
#include "common/fp_env.h"
#include "common/log.h"
#include "common/trace.h"
#include "worker/held.h"
#include "worker/mirror.h"
#include "worker/precision.h"
#include "worker/step_open.h"
#include "worker/tied.h"
#include "worker/train/accumulate.h"

#include <string.h>

static pen_status out_of_order(const char *call, const char *how)
{
    return last_error_say(PEN_WRONG_STATE, "%s: %s; the order is: register, then commit, then step",
                          call, how);
}

/* ---- begin ----------------------------------------------------------------------------------- */
static void begin(pen_ctx *ctx, pen_step *step)
{
    context_step *s = &ctx->step;
    progress_enter(&s->progress, PROGRESS_FORWARD, clock_ns(&clock_real));
    s->since_ns = stat_begin(&ctx->stats);
    context_follow_members(ctx);
    step_describe(ctx, step);
    s->begun_ns           = trace_begin();
    s->flags              = 0;
    s->given              = step;
    s->is_begun           = true;
    s->is_open            = false;
    s->n_ready            = 0;
    s->micro              = 0;
    s->scalars.n          = 0;
    s->has_last_gradients = false;
    s->remembered.status  = PEN_OK;
    for (uint32_t i = 0; i < model_names(&ctx->model); i++) {
        pen_tensor *t = model_name(&ctx->model, i);
        t->is_ready = t->has_accumulated = false;
        if (t->mirror != NULL) t->mirror->has_sum = false;
        held_grad_begin(t);
    }
}

pen_status pen_step_begin(pen_ctx *ctx, pen_step *step)
{
    FP_ENV_OURS();
    pen_status status = context_enter(ctx, "pen_step_begin", false);
    if (status != PEN_OK) return status;
    if (step == NULL) return last_error_say(PEN_INVALID_ARGUMENT, "pen_step_begin: step is NULL");
    if (ctx->phase != CONTEXT_COMMITTED)
        return out_of_order("pen_step_begin", "pen_commit has not been called");
    if (atomic_load(&ctx->is_aborting) && ctx->mode == MODE_LOCAL)
        return last_error_say(PEN_ABORTED, "pen_abort: %s", ctx->abort_why);
    const uint64_t steps = ctx->settings.steps;
    if (steps > 0 && (uint64_t)ctx->step.next_index >= steps) return PEN_END;
    if (atomic_load(&ctx->stop_wanted)) return PEN_END;

    mirror_drain(ctx);
    status = api_lock_step(ctx, "pen_step_begin");
    if (status != PEN_OK) return status;
    if (ctx->step.is_open)
        status = last_error_say(
            PEN_WRONG_STATE,
            "pen_step_begin: gradients of step %lld were sent; call pen_step_end() first",
            (long long)ctx->step.next_index);
    else
        begin(ctx, step);
    pthread_mutex_unlock(&ctx->step.lock);
    return status;
}

/* ---- micro-batches --------------------------------------------------------------------------- */
bool api_is_last_micro(const pen_ctx *ctx)
{
    return (uint64_t)ctx->step.micro + 1 >= ctx->settings.accum;
}

static pen_status send_ready(pen_ctx *ctx, pen_tensor *t, const void *grad, pen_error *why);
static pen_status offer(pen_ctx *ctx, pen_tensor *t, const void *grad, pen_error *why);

/* Of a tensor with several names, those that were not used in this micro-batch. */
static pen_status complete_ties(pen_ctx *ctx, pen_error *why)
{
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < ctx->model.n_aliases; i++) {
        pen_tensor *base = ctx->model.alias[i]->tied_to;
        bool is_begun    = false;
        for (pen_tensor *t = base; t != NULL; t = t->next_alias) is_begun |= t->is_ready;
        for (pen_tensor *t = base; is_begun && t != NULL && status == PEN_OK; t = t->next_alias)
            if (t->trained && !t->is_ready) status = offer(ctx, t, NULL, why);
    }
    return status;
}

/* Where every micro-batch is summed over the ranks, all ranks add something to each: zeros, if nothing else. */
static pen_status complete_micro(pen_ctx *ctx, pen_error *why)
{
    pen_status status = complete_ties(ctx, why);
    if (!ctx->reduces_each) return status;
    for (uint32_t i = 0; i < model_names(&ctx->model) && status == PEN_OK; i++) {
        pen_tensor *t = model_name(&ctx->model, i);
        if (t->trained && !t->is_ready) status = offer(ctx, t, NULL, why);
    }
    return status;
}

static pen_status begin_micro(pen_ctx *ctx, int m, pen_error *why)
{
    context_step *s = &ctx->step;
    if (ctx->phase != CONTEXT_COMMITTED || !s->is_begun)
        return why_set(why, PEN_WRONG_STATE,
                       "pen_step_micro(%d): no step is begun; the order is: register, then commit, "
                       "then step",
                       m);
    if (m < 0 || (uint64_t)m >= ctx->settings.accum)
        return why_set(
            why, PEN_INVALID_ARGUMENT,
            "pen_step_micro(%d): a step has %llu micro-batches (setting accum), numbered "
            "from 0",
            m, (unsigned long long)ctx->settings.accum);
    if (m != s->micro && m != s->micro + 1)
        return why_set(why, PEN_WRONG_STATE,
                       "pen_step_micro(%d) after micro-batch %d: they come one after another", m,
                       s->micro);
    if (m == s->micro) return PEN_OK;
    if (complete_micro(ctx, why) != PEN_OK) return why->status;
    s->micro   = m;
    s->n_ready = 0;
    progress_enter(&s->progress, PROGRESS_FORWARD, clock_ns(&clock_real));
    for (uint32_t i = 0; i < model_names(&ctx->model); i++) {
        pen_tensor *t = model_name(&ctx->model, i);
        t->is_ready   = false;
        held_grad_begin(t);
    }
    return PEN_OK;
}

pen_status pen_step_micro(pen_ctx *ctx, int m)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_enter(ctx, "pen_step_micro", false);
    if (status != PEN_OK) return status;
    mirror_drain(ctx);
    status = api_lock_step(ctx, "pen_step_micro");
    if (status != PEN_OK) return status;
    status = begin_micro(ctx, m, &why);
    if (status != PEN_OK) context_remember(&ctx->step.remembered, &why);
    pthread_mutex_unlock(&ctx->step.lock);
    return status;
}

/* ---- ready ----------------------------------------------------------------------------------- */
/* What pen_view() gave for it and its other names is the engine's: from before it is told, because it may
 * return it at once. */
static void lend(pen_tensor *base)
{
    for (pen_tensor *t = base; t != NULL; t = t->next_alias)
        if (t->grad == NULL && t->offered != NULL) held_grad_lend(t);
}

/* What went into a sum is not read any more. */
static void take_back(pen_tensor *base, const void *sum)
{
    for (pen_tensor *t = base; t != NULL; t = t->next_alias)
        if (t->offered != sum) held_grad_return(t, t->offered);
}

/* Before the last micro-batch nothing travels, unless the engine sums each. */
static pen_status send_ready(pen_ctx *ctx, pen_tensor *t, const void *grad, pen_error *why)
{
    const void *sum = grad;
    if (!api_is_last_micro(ctx) && !ctx->reduces_each) {
        if (accumulate_add(t, grad, why) != PEN_OK) return why->status;
        if (ctx->stage < 2) return PEN_OK;
        lend(t); /* the sum is all that is kept */
        take_back(t, NULL);
    } else {
        if (accumulate_take(t, grad, &sum, why) != PEN_OK) return why->status;
        if (!ctx->step.is_open && step_open(ctx, why) != PEN_OK) return why->status;
        lend(t);
        trace_moment(TRACE_READY, &(trace_note){.step = ctx->step.next_index, .label = t->name});
        ctx->engine->ready(ctx, t, sum);
        take_back(t, sum);
    }
    return PEN_OK;
}

/* With the last of its names a tensor is ready. */
static pen_status offer(pen_ctx *ctx, pen_tensor *t, const void *grad, pen_error *why)
{
    pen_tensor *base = tied_base(t);
    const void *sum;
    t->offered  = grad;
    t->is_ready = true;
    ctx->step.n_ready++;
    if (!tied_is_complete(base)) return PEN_OK;
    if (tied_take(base, &sum, why) != PEN_OK) return why->status;
    return send_ready(ctx, base, sum, why);
}

/* ---- gradients on a device: mirror.h ----------------------------------------------------------- */
static pen_status add_on_device(pen_ctx *ctx, pen_tensor *t, pen_error *why)
{
    if (mirror_accumulate(t, why) != PEN_OK) return why->status;
    t->offered  = t->grad != NULL ? t->grad : held_grad_seen(t);
    t->is_ready = true;
    ctx->step.n_ready++;
    if (ctx->stage < 2) return PEN_OK;
    lend(t); /* the sum is all that is kept */
    take_back(t, NULL);
    return PEN_OK;
}

static pen_status ready_on_device(pen_ctx *ctx, pen_tensor *t, pen_error *why)
{
    const bool has_one_name = t->tied_to == NULL && t->next_alias == NULL;
    if (has_one_name && !api_is_last_micro(ctx) && !ctx->reduces_each)
        return add_on_device(ctx, t, why);
    return mirror_copy(t, true, why);
}

void api_deliver(pen_ctx *ctx, pen_tensor *t, const void *grad, const pen_error *failure)
{
    pen_error why;
    pen_status status = PEN_OK;
    pthread_mutex_lock(&ctx->step.lock);
    t->mirror->is_copying = false;
    if (failure != NULL)
        status = context_remember(&ctx->step.remembered, failure);
    else if (!atomic_load(&ctx->has_failed))
        status = offer(ctx, t, grad, &why);
    if (status != PEN_OK && failure == NULL) context_remember(&ctx->step.remembered, &why);
    pthread_mutex_unlock(&ctx->step.lock);
}

/* Sums of earlier micro-batches whose tensors had no gradient in the last one. */
static void send_sums(pen_ctx *ctx)
{
    pen_error why;
    pthread_mutex_lock(&ctx->step.lock);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        pen_tensor *t = ctx->model.tensor[i];
        if (t->mirror == NULL || !t->mirror->has_sum || t->is_ready || t->mirror->is_copying ||
            !api_is_last_micro(ctx) || (t->desc.flags & PEN_ZERO_IF_UNUSED) == 0)
            continue;
        pen_status status = PEN_OK;
        if (t->grad == NULL && held_grad(t, &why) == NULL) status = why.status;
        if (status == PEN_OK) status = mirror_copy(t, false, &why);
        if (status != PEN_OK) context_remember(&ctx->step.remembered, &why);
    }
    pthread_mutex_unlock(&ctx->step.lock);
}

static pen_status ready_one(pen_ctx *ctx, pen_tensor *t, pen_error *why)
{
    const long long index = ctx->step.next_index;
    progress_gradient(&ctx->step.progress, clock_ns(&clock_real));
    ctx->step.has_last_gradients |= api_is_last_micro(ctx);
    if (!t->trained)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "pen_ready('%s'): a frozen tensor has no gradient", t->name);
    if (t->is_ready || mirror_is_copying(t))
        return why_set(why, PEN_WRONG_STATE, "pen_ready('%s') was called twice in step %lld",
                       t->name, index);
    const void *grad = t->grad != NULL ? t->grad : held_grad_seen(t);
    if (grad == NULL && (t->desc.flags & PEN_ZERO_IF_UNUSED) == 0)
        return why_set(
            why, PEN_WRONG_STATE,
            "pen_ready('%s'): it has no gradient buffer; give one at pen_register or pen_bind, or "
            "write to pen_view(PEN_GRAD)",
            t->name);
    if (grad != NULL && mirror_has_grad(t)) return ready_on_device(ctx, t, why);
    return offer(ctx, t, grad, why);
}

static pen_status ready_rest(pen_ctx *ctx, pen_error *why)
{
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < model_names(&ctx->model) && status == PEN_OK; i++) {
        pen_tensor *t = model_name(&ctx->model, i);
        if (t->trained && !t->is_ready && !mirror_is_copying(t)) status = ready_one(ctx, t, why);
    }
    return status;
}

static pen_status check_ready(const pen_ctx *ctx, const pen_tensor *t, int64_t slice,
                              pen_error *why)
{
    if (ctx->phase != CONTEXT_COMMITTED || !ctx->step.is_begun)
        return why_set(
            why, PEN_WRONG_STATE,
            "pen_ready: no step is begun; the order is: register, then commit, then step");
    if (t != NULL && t->ctx != ctx)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "pen_ready: the tensor belongs to another context");
    if (slice != PEN_ALL && slice != 0)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "pen_ready: slice %lld, but there are no stacked tensors; say PEN_ALL",
                       (long long)slice);
    return PEN_OK;
}

pen_status pen_ready(pen_ctx *ctx, pen_tensor *t, int64_t slice)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_enter(ctx, "pen_ready", false);
    if (status != PEN_OK) return status;
    status = api_lock_step(ctx, "pen_ready");
    if (status != PEN_OK) return status;
    status = check_ready(ctx, t, slice, &why);
    if (status == PEN_OK && api_values_came(ctx) != PEN_OK) {
        pen_last_error(&why);
        status = why.status;
    }
    if (status == PEN_OK) status = t != NULL ? ready_one(ctx, t, &why) : ready_rest(ctx, &why);
    if (status != PEN_OK) context_remember(&ctx->step.remembered, &why);
    pthread_mutex_unlock(&ctx->step.lock);
    return status;
}

bool api_is_ready(pen_ctx *ctx, const pen_tensor *t)
{
    pthread_mutex_lock(&ctx->step.lock);
    const bool is_ready = t->is_ready || mirror_is_copying(t);
    pthread_mutex_unlock(&ctx->step.lock);
    return is_ready;
}

/* ---- end ------------------------------------------------------------------------------------- */
static pen_status unseen(const pen_ctx *ctx, const pen_tensor *t)
{
    pen_error why;
    why_set(&why, PEN_WRONG_STATE,
            "step %lld has not seen '%s' from this rank; call pen_ready() on it, or register it "
            "with PEN_ZERO_IF_UNUSED",
            (long long)ctx->step.next_index, t->name);
    why_culprit(&why, PEN_WORKER, ctx->env.rank, ctx->step.next_index, t->name);
    return last_error_set(&why);
}

static pen_status send_zeros(pen_ctx *ctx)
{
    pen_error why;
    for (uint32_t i = 0; i < model_names(&ctx->model); i++) {
        const pen_tensor *t = model_name(&ctx->model, i);
        if (!t->trained || t->is_ready) continue;
        if ((t->desc.flags & PEN_ZERO_IF_UNUSED) == 0) return unseen(ctx, t);
    }
    for (uint32_t i = 0; i < model_names(&ctx->model); i++) {
        pen_tensor *t = model_name(&ctx->model, i);
        if (t->trained && !t->is_ready && offer(ctx, t, NULL, &why) != PEN_OK)
            return last_error_set(&why);
    }
    /* A model without anything to train still steps. */
    if (!ctx->step.is_open && step_open(ctx, &why) != PEN_OK) return last_error_set(&why);
    return PEN_OK;
}

static pen_status check_end(pen_ctx *ctx, const pen_step *step)
{
    pen_error why;
    context_step *s = &ctx->step;
    if (step == NULL) return last_error_say(PEN_INVALID_ARGUMENT, "pen_step_end: step is NULL");
    if (ctx->phase != CONTEXT_COMMITTED)
        return out_of_order("pen_step_end", "pen_commit has not been called");
    if (!s->is_begun) return out_of_order("pen_step_end", "no step is begun");
    if (s->remembered.status != PEN_OK) {
        pen_error first      = s->remembered;
        s->remembered.status = PEN_OK;
        return last_error_set(&first);
    }
    if (step != s->given)
        return last_error_say(PEN_INVALID_ARGUMENT,
                              "pen_step_end: this is not the step that pen_step_begin was given");
    if (model_check_reserved(step->reserved, 12, "pen_step", &why) != PEN_OK)
        return last_error_set(&why);
    if (s->is_open && (step->weight != s->weight || step->lr_scale != s->lr_scale))
        return last_error_say(PEN_INVALID_ARGUMENT,
                              "step.weight and step.lr_scale travel with the first pen_ready() of "
                              "step %lld; set them before it",
                              (long long)s->next_index);
    if (!api_is_last_micro(ctx))
        return last_error_say(PEN_WRONG_STATE,
                              "pen_step_end: step %lld ends after micro-batch %d of %llu (setting "
                              "accum); call pen_step_micro() before each",
                              (long long)s->next_index, s->micro,
                              (unsigned long long)ctx->settings.accum);
    return send_zeros(ctx);
}

static void fill_step(pen_ctx *ctx, pen_step *step, const pen_result *result)
{
    const exchange_outcome *o = &ctx->step.outcome;
    step->outcome             = o->outcome;
    step->grad_norm           = o->norm;
    step->clip                = o->clip;
    step->applied             = o->applied;
    step->version    = model_is_decided(&ctx->model) ? (uint64_t)o->applied : result->version;
    step->staleness  = result->staleness;
    step->bad_rank   = o->has_bad ? o->bad_rank : -1;
    step->bad_tensor = NULL;
    if (o->has_bad) step->bad_tensor = ctx->model.tensor[o->bad_tensor];
    stat_add(&ctx->stats, STAT_STEPS, 1);
    stat_observe(&ctx->stats, STAT_SPREAD_STALENESS, step->staleness);
    if (o->outcome == PEN_APPLIED) return;
    stat_add(&ctx->stats, STAT_SKIPPED, 1);
    if (o->outcome == PEN_SKIPPED_NONFINITE && o->has_bad)
        log_notice("step %lld skipped: first non-finite gradient in '%s' on rank %d",
                   (long long)step->index, step->bad_tensor->name, step->bad_rank);
}

/* Two requests: one for the verdict, which this call waits for, and one for the values. */
static pen_status end_lazily(pen_ctx *ctx)
{
    request *verdict, *values;
    pen_status status = request_begin(ctx, REQUEST_STEP, NULL, NULL, &verdict);
    if (status != PEN_OK) return status;
    status = request_begin(ctx, REQUEST_STEP, NULL, &ctx->step.values, &values);
    if (status != PEN_OK) {
        request_abandon(verdict);
        return status;
    }
    values->u.step.decided = verdict;
    ctx->step.values       = (pen_req){ctx, values->id};
    pen_req decided        = {ctx, verdict->id};
    ctx->engine->start(ctx, values);
    return pen_wait(&decided, NULL);
}

static pen_status end_now(pen_ctx *ctx, pen_result *result)
{
    request *r;
    pen_req req;
    pen_status status = request_begin(ctx, REQUEST_STEP, NULL, &req, &r);
    if (status == PEN_OK) status = request_run(r, NULL, &req);
    return status == PEN_OK ? pen_wait(&req, result) : status;
}

static pen_status end_step(pen_ctx *ctx, pen_step *step)
{
    pen_error why;
    pen_result result = {0};
    pen_status status = check_end(ctx, step);
    if (status != PEN_OK) return status;
    status = step->lazy ? end_lazily(ctx) : end_now(ctx, &result);
    if (status != PEN_OK) return status;
    fill_step(ctx, step, &result);
    ctx->step.applied = ctx->step.outcome.applied;
    ctx->step.totals  = ctx->step.outcome.scalars;
    status            = precision_step_ended(ctx, &why);
    if (status == PEN_OK) status = mirror_stepped(ctx, step->lazy == 0, &why);
    ctx->step.next_index++;
    atomic_store(&ctx->step_index, ctx->step.next_index);
    ctx->step.is_begun = ctx->step.is_open = false;
    for (uint32_t i = 0; i < model_names(&ctx->model); i++) {
        pen_tensor *t = model_name(&ctx->model, i);
        t->is_ready   = false;
        held_grad_step_end(t, ctx->stage < 2);
    }
    return status == PEN_OK ? status : last_error_set(&why);
}

static void tell_progress(pen_ctx *ctx, const pen_step *step)
{
    char text[300];
    const worker_settings *s = &ctx->settings;
    if (progress_step(&ctx->step.progress, step, s->report_every, s->report_times, text,
                      sizeof text) &&
        ctx->env.rank == 0)
        log_notice("%s", text);
}

pen_status pen_step_end(pen_ctx *ctx, pen_step *step)
{
    FP_ENV_OURS();
    pen_status status = context_enter(ctx, "pen_step_end", true);
    if (status != PEN_OK) return status;
    if (ctx->mirror != NULL) send_sums(ctx);
    mirror_drain(ctx);
    pthread_mutex_lock(&ctx->step.lock);
    const trace_note note = {.step = ctx->step.next_index};
    const uint64_t begun = trace_begin(), since = stat_begin(&ctx->stats);
    progress_enter(&ctx->step.progress, PROGRESS_EXCHANGE, clock_ns(&clock_real));
    status = end_step(ctx, step);
    if (status == PEN_OK) {
        stat_took(&ctx->stats, STAT_SPREAD_EXCHANGE, since);
        stat_took(&ctx->stats, STAT_SPREAD_STEP, ctx->step.since_ns);
    }
    trace_span(TRACE_END, begun, &note);
    trace_span(TRACE_STEP, ctx->step.begun_ns, &note);
    ctx->step.begun_ns = 0;
    progress_enter(&ctx->step.progress, PROGRESS_OTHER, clock_ns(&clock_real));
    if (status == PEN_OK) tell_progress(ctx, step);
    pthread_mutex_unlock(&ctx->step.lock);
    if (status == PEN_OK) status = api_state_stepped(ctx);
    return context_leave(ctx, status);
}
