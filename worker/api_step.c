/* api_step.c - the step: begin, ready, end. */
#include "worker/api.h"

#include "common/log.h"

#include <string.h>

static pen_status out_of_order(const char *call, const char *how)
{
    return last_error_say(PEN_WRONG_STATE, "%s: %s; the order is: register, then commit, then step",
                          call, how);
}

/* A thread that ends a step holds the lock while it waits for the SDK's thread, which must not wait
 * for it. */
static pen_status lock_step(pen_ctx *ctx, const char *call)
{
    if (!request_is_sdk_thread()) {
        pthread_mutex_lock(&ctx->step.lock);
        return PEN_OK;
    }
    if (pthread_mutex_trylock(&ctx->step.lock) == 0) return PEN_OK;
    return last_error_say(PEN_WRONG_STATE,
                          "%s: called from a callback while another thread is in the same step",
                          call);
}

/* ---- begin ----------------------------------------------------------------------------------- */
static void write_step(const pen_ctx *ctx, pen_step *step)
{
    *step = (pen_step){.index      = ctx->step.next_index,
                       .epoch      = ctx->mode != MODE_LOCAL ? 1 : 0,
                       .loss_scale = 1,
                       .lr         = ctx->model.group[0]->hyper.lr,
                       .accum      = 1,
                       .lr_scale   = 1,
                       .weight     = 1,
                       .clip       = 1,
                       .bad_rank   = -1};
}

static void begin(pen_ctx *ctx, pen_step *step)
{
    context_step *s = &ctx->step;
    write_step(ctx, step);
    s->given             = step;
    s->is_begun          = true;
    s->is_open           = false;
    s->n_ready           = 0;
    s->remembered.status = PEN_OK;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) ctx->model.tensor[i]->is_ready = false;
}

pen_status pen_step_begin(pen_ctx *ctx, pen_step *step)
{
    pen_status status = context_enter(ctx, "pen_step_begin", false);
    if (status != PEN_OK) return status;
    if (step == NULL) return last_error_say(PEN_INVALID_ARGUMENT, "pen_step_begin: step is NULL");
    if (ctx->phase != CONTEXT_COMMITTED)
        return out_of_order("pen_step_begin", "pen_commit has not been called");
    if (atomic_load(&ctx->is_aborting) && ctx->mode == MODE_LOCAL)
        return last_error_say(PEN_ABORTED, "pen_abort: %s", ctx->abort_why);
    const uint64_t steps = ctx->settings.steps;
    if (steps > 0 && (uint64_t)ctx->step.next_index >= steps) return PEN_END;

    status = lock_step(ctx, "pen_step_begin");
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

pen_status pen_step_micro(pen_ctx *ctx, int m)
{
    pen_status status = context_check(ctx, "pen_step_micro");
    if (status != PEN_OK) return status;
    if (m == 0) return PEN_OK; /* accum is 1: there is one micro-batch */
    return last_error_say(
        PEN_UNSUPPORTED,
        "pen_step_micro(%d): accumulation over micro-batches comes later; step.accum is 1", m);
}

/* ---- ready ----------------------------------------------------------------------------------- */
static bool wants_snapshot(pen_ctx *ctx)
{
    const uint64_t every = ctx->settings.snapshot_every;
    bool is_due          = every > 0 && ((uint64_t)ctx->step.next_index + 1) % every == 0;
    return atomic_exchange(&ctx->snapshot_wanted, false) || is_due;
}

/* The first gradient of a step fixes its weight and rates: they travel with it. */
static pen_status open_step(pen_ctx *ctx, pen_error *why)
{
    context_step *s      = &ctx->step;
    const pen_step *step = s->given;
    if (!(step->weight >= 0) || step->weight > 1e300)
        return why_set(why, PEN_INVALID_ARGUMENT, "step.weight is %g; it is 0 or more",
                       step->weight);
    if (!(step->lr_scale >= 0) || step->lr_scale > 1e300)
        return why_set(why, PEN_INVALID_ARGUMENT, "step.lr_scale is %g; it is 0 or more",
                       step->lr_scale);
    s->weight   = step->weight;
    s->lr_scale = step->lr_scale;
    for (uint32_t g = 0; g < ctx->model.n_groups; g++)
        s->rate[g] = ctx->model.group[g]->hyper.lr * s->lr_scale;
    s->inputs  = (wire_inputs){.loss_scale = step->loss_scale,
                               .clip       = ctx->settings.clip,
                               .weight     = s->weight,
                               .skip       = ctx->rule == EXCHANGE_DECIDE && ctx->settings.skip,
                               .snapshot   = ctx->env.rank == 0 && ctx->mode != MODE_LOCAL &&
                                           wants_snapshot(ctx),
                               .n_rates = ctx->model.n_groups,
                               .rate    = s->rate};
    s->is_open = true;
    ctx->engine->step_open(ctx, (uint64_t)s->next_index, &s->inputs);
    return PEN_OK;
}

static pen_status send_ready(pen_ctx *ctx, pen_tensor *t, const void *grad, pen_error *why)
{
    if (!ctx->step.is_open && open_step(ctx, why) != PEN_OK) return why->status;
    t->is_ready = true;
    ctx->step.n_ready++;
    ctx->engine->ready(ctx, t, grad);
    return PEN_OK;
}

static pen_status ready_one(pen_ctx *ctx, pen_tensor *t, pen_error *why)
{
    const long long index = ctx->step.next_index;
    if (!t->trained)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "pen_ready('%s'): a frozen tensor has no gradient", t->name);
    if (t->is_ready)
        return why_set(why, PEN_WRONG_STATE, "pen_ready('%s') was called twice in step %lld",
                       t->name, index);
    if (t->grad == NULL)
        return why_set(
            why, PEN_WRONG_STATE,
            "pen_ready('%s'): it has no gradient buffer; give one at pen_register or pen_bind",
            t->name);
    return send_ready(ctx, t, t->grad, why);
}

static pen_status ready_rest(pen_ctx *ctx, pen_error *why)
{
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < ctx->model.n_tensors && status == PEN_OK; i++) {
        pen_tensor *t = ctx->model.tensor[i];
        if (t->trained && !t->is_ready) status = ready_one(ctx, t, why);
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

static pen_status wait_for_values(pen_ctx *ctx)
{
    if (ctx->step.values.ctx == NULL) return PEN_OK;
    pen_req req      = ctx->step.values;
    ctx->step.values = (pen_req){0};
    return pen_wait(&req, NULL);
}

pen_status api_wait_for_values(pen_ctx *ctx, const char *call)
{
    pen_status status = lock_step(ctx, call);
    if (status != PEN_OK) return status;
    status = wait_for_values(ctx);
    pthread_mutex_unlock(&ctx->step.lock);
    return status;
}

pen_status pen_ready(pen_ctx *ctx, pen_tensor *t, int64_t slice)
{
    pen_error why;
    pen_status status = context_enter(ctx, "pen_ready", false);
    if (status != PEN_OK) return status;
    status = lock_step(ctx, "pen_ready");
    if (status != PEN_OK) return status;
    status = check_ready(ctx, t, slice, &why);
    if (status == PEN_OK && wait_for_values(ctx) != PEN_OK) {
        pen_last_error(&why);
        status = why.status;
    }
    if (status == PEN_OK) status = t != NULL ? ready_one(ctx, t, &why) : ready_rest(ctx, &why);
    if (status != PEN_OK) context_remember(&ctx->step.remembered, &why);
    pthread_mutex_unlock(&ctx->step.lock);
    return status;
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
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        pen_tensor *t = ctx->model.tensor[i];
        if (!t->trained || t->is_ready) continue;
        if ((t->desc.flags & PEN_ZERO_IF_UNUSED) == 0) return unseen(ctx, t);
    }
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        pen_tensor *t = ctx->model.tensor[i];
        if (t->trained && !t->is_ready && send_ready(ctx, t, NULL, &why) != PEN_OK)
            return last_error_set(&why);
    }
    /* A model without anything to train still steps. */
    if (!ctx->step.is_open && open_step(ctx, &why) != PEN_OK) return last_error_set(&why);
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
    pen_result result = {0};
    pen_status status = check_end(ctx, step);
    if (status != PEN_OK) return status;
    status = step->lazy ? end_lazily(ctx) : end_now(ctx, &result);
    if (status != PEN_OK) return status;
    fill_step(ctx, step, &result);
    ctx->step.next_index++;
    atomic_store(&ctx->step_index, ctx->step.next_index);
    ctx->step.is_begun = ctx->step.is_open = false;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) ctx->model.tensor[i]->is_ready = false;
    return PEN_OK;
}

pen_status pen_step_end(pen_ctx *ctx, pen_step *step)
{
    pen_status status = context_enter(ctx, "pen_step_end", true);
    if (status != PEN_OK) return status;
    pthread_mutex_lock(&ctx->step.lock);
    status = end_step(ctx, step);
    pthread_mutex_unlock(&ctx->step.lock);
    return context_leave(ctx, status);
}

/* ---- units: one, the outermost, so that programs with lazy pulls run ------------------------- */
pen_unit *pen_unit_get(pen_ctx *ctx, const char *unit, int64_t index)
{
    (void)index;
    if (context_check(ctx, "pen_unit_get") == PEN_OK && unit != NULL)
        last_error_say(PEN_UNSUPPORTED,
                       "pen_unit_get('%.64s'): units are not in this version; NULL, the outermost, "
                       "holds everything",
                       unit);
    return NULL;
}

pen_status pen_use(pen_ctx *ctx, pen_unit *u, pen_phase phase, void *stream)
{
    (void)phase;
    pen_status status = context_enter(ctx, "pen_use", true);
    if (status != PEN_OK) return status;
    if (u != NULL)
        return context_leave(ctx, last_error_say(PEN_INVALID_ARGUMENT, "pen_use: no such unit"));
    if (stream != NULL)
        return context_leave(
            ctx, last_error_say(PEN_UNSUPPORTED, "pen_use: stream: this build has no CUDA device"));
    pthread_mutex_lock(&ctx->step.lock);
    status = wait_for_values(ctx);
    pen_error why;
    pen_last_error(&why);
    if (status != PEN_OK) context_remember(&ctx->step.remembered, &why);
    pthread_mutex_unlock(&ctx->step.lock);
    return context_leave(ctx, status);
}

pen_status pen_release(pen_ctx *ctx, pen_unit *u, pen_phase phase, void *stream)
{
    (void)stream;
    if (phase == PEN_BACKWARD && u == NULL) return pen_ready(ctx, NULL, PEN_ALL);
    return context_check(ctx, "pen_release");
}
