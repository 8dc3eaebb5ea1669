/* api_step.c - pen_step_begin and pen_step_end. */
#include "worker/api/api.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/system/fp_env.h"
#include "common/trace/trace.h"
#include "worker/step_decided.h"
#include "worker/step_open.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/tensor/param_memory.h"
#include "worker/train/buffers.h"

/* ---- begin ----------------------------------------------------------------------------------- */
static void begin(pen_ctx *ctx, pen_step *step)
{
    context_step *s = &ctx->step;
    progress_enter(&s->progress, PROGRESS_FORWARD, clock_ns(&clock_real));
    s->since_ns = stat_begin(&ctx->stats);
    context_follow_members(ctx);
    step_describe(ctx, step);
    position_set_step(ctx->position, step->index);
    s->begun_ns           = trace_begin();
    s->flags              = 0;
    s->given              = step;
    s->is_begun           = true;
    s->is_open            = false;
    s->micro              = 0;
    s->scalars.n          = 0;
    s->has_last_gradients = false;
    s->remembered.status  = PEN_OK;
    for (uint32_t i = 0; i < model_names(&ctx->model); i++) {
        pen_tensor *t = model_name(&ctx->model, i);
        grad_slot_begin(&t->slot);
        param_grad_begin(t);
    }
}

pen_status pen_step_begin(pen_ctx *ctx, pen_step *step)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_enter(ctx, "pen_step_begin", false);
    if (status != PEN_OK) return status;
    if (step == NULL)
        return last_error_report(PEN_INVALID_ARGUMENT, "pen_step_begin: step is NULL");
    if (api_check_committed(ctx, "pen_step_begin") != PEN_OK) return PEN_WRONG_STATE;
    if (atomic_load(&ctx->is_aborting) && ctx->mode == MODE_LOCAL)
        return last_error_report(PEN_ABORTED, "pen_abort: %s", ctx->abort_why);
    const uint64_t steps = ctx->settings.steps;
    const bool is_over   = steps > 0 && (uint64_t)ctx->step.next_index >= steps;
    if (is_over || atomic_load(&ctx->stop_wanted)) {
        step->flags = is_over ? 0 : PEN_STEP_STOPPING;
        if (!is_over) atomic_store(&ctx->has_stopped, true);
        return PEN_END;
    }

    device_copies_drain(ctx);
    context_log_step(ctx); /* here, so that it has what the program said after the last step */
    status = api_lock_step(ctx, "pen_step_begin");
    if (status != PEN_OK) return status;
    if (!ctx->step.is_open && step_settle_before(ctx, &why) != PEN_OK)
        status = last_error_set(&why);
    else if (ctx->step.is_open)
        status = last_error_report(
            PEN_WRONG_STATE,
            "pen_step_begin: step %lld has sent gradients; call pen_step_end() first",
            (long long)ctx->step.next_index);
    else
        begin(ctx, step);
    pthread_mutex_unlock(&ctx->step.lock);
    return status;
}

/* ---- end ------------------------------------------------------------------------------------- */
static pen_status check_end(pen_ctx *ctx, const pen_step *step)
{
    pen_error why;
    context_step *s = &ctx->step;
    if (step == NULL) return last_error_report(PEN_INVALID_ARGUMENT, "pen_step_end: step is NULL");
    if (api_check_committed(ctx, "pen_step_end") != PEN_OK) return PEN_WRONG_STATE;
    if (!s->is_begun)
        return last_error_report(PEN_WRONG_STATE, "pen_step_end: no step is begun; the order is: "
                                                  "register, then commit, then step");
    if (s->remembered.status != PEN_OK) {
        pen_error first      = s->remembered;
        s->remembered.status = PEN_OK;
        return last_error_set(&first);
    }
    if (step != s->given)
        return last_error_report(
            PEN_INVALID_ARGUMENT,
            "pen_step_end: step differs from the one passed to pen_step_begin");
    if (model_check_reserved(step->reserved, 12, "pen_step", &why) != PEN_OK)
        return last_error_set(&why);
    if (s->is_open && (step->weight != s->weight || step->lr_scale != s->lr_scale))
        return last_error_report(
            PEN_INVALID_ARGUMENT,
            "pen_step_end: step.weight or step.lr_scale changed after the first "
            "pen_ready() of step %lld, which sends them; set them before it",
            (long long)s->next_index);
    if (!api_is_last_micro(ctx))
        return last_error_report(PEN_WRONG_STATE,
                                 "pen_step_end: step %lld is at micro-batch %d of %llu (setting "
                                 "accum); call pen_step_micro() before each",
                                 (long long)s->next_index, s->micro,
                                 (unsigned long long)ctx->settings.accum);
    return api_close_gradients(ctx, &why) == PEN_OK ? PEN_OK : last_error_set(&why);
}

/* One request for the verdict, which this call waits for, and one for the values. */
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
    pen_req decided        = {ctx, verdict->id};
    ctx->strategy->ops->start(ctx->strategy, values);
    return pen_wait(&decided, NULL);
}

static pen_status end_now(pen_ctx *ctx, pen_result *result)
{
    request *r;
    pen_req req;
    pen_status status = request_begin(ctx, REQUEST_STEP, NULL, &req, &r);
    if (status == PEN_OK) status = api_start(r, NULL, &req);
    return status == PEN_OK ? pen_wait(&req, result) : status;
}

static pen_status end_step(pen_ctx *ctx, pen_step *step)
{
    pen_error why;
    pen_result result = {0};
    pen_status status = check_end(ctx, step);
    if (status != PEN_OK) return status;
    if (buffers_sync(ctx, &why) != PEN_OK) return last_error_set(&why);
    status = step->lazy ? end_lazily(ctx) : end_now(ctx, &result);
    if (status != PEN_OK) return status;
    status = step_conclude(ctx, step, &result, &why);
    if (status == PEN_OK) status = device_copies_stepped(ctx, step->lazy == 0, &why);
    ctx->step.next_index++;
    atomic_store(&ctx->step_index, ctx->step.next_index);
    position_set_step(ctx->position, ctx->step.next_index);
    ctx->step.is_begun = ctx->step.is_open = false;
    for (uint32_t i = 0; i < model_names(&ctx->model); i++) {
        pen_tensor *t = model_name(&ctx->model, i);
        grad_slot_begin(&t->slot);
        param_grad_step_end(t, ctx->stage < 2);
    }
    param_memory_drop_spare(ctx);
    return status == PEN_OK ? status : last_error_set(&why);
}

pen_status pen_step_end(pen_ctx *ctx, pen_step *step)
{
    FP_ENV_OURS();
    pen_status status = context_enter(ctx, "pen_step_end", true);
    if (status != PEN_OK) return status;
    if (ctx->memory.device_copies != NULL) api_send_sums(ctx);
    device_copies_drain(ctx);
    pthread_mutex_lock(&ctx->step.lock);
    const trace_note note = {.step = ctx->step.next_index};
    const uint64_t begun = trace_begin(), since = stat_begin(&ctx->stats);
    progress_enter(&ctx->step.progress, PROGRESS_PS, clock_ns(&clock_real));
    status = end_step(ctx, step);
    if (status == PEN_OK) {
        stat_took(&ctx->stats, STAT_SPREAD_EXCHANGE, since);
        stat_took(&ctx->stats, STAT_SPREAD_STEP, ctx->step.since_ns);
    }
    trace_span(TRACE_END, begun, &note);
    trace_span(TRACE_STEP, ctx->step.begun_ns, &note);
    ctx->step.begun_ns = 0;
    progress_enter(&ctx->step.progress, PROGRESS_OTHER, clock_ns(&clock_real));
    if (status == PEN_OK) {
        /* A step whose line is logged is not left undecided. */
        char text[300];
        pen_error why;
        const worker_settings *s = &ctx->settings;
        pen_step known           = *step;
        if (step->outcome == PEN_PENDING && progress_is_due(step, s->report_every))
            (void)step_wait_decided(ctx, &known, &why); /* the next call reports a failure */
        if (progress_step(&ctx->step.progress, &known, s->report_every, s->report_times, text,
                          sizeof text) &&
            ctx->env.rank == 0)
            log_notice("%s", text);
    }
    pthread_mutex_unlock(&ctx->step.lock);
    if (status == PEN_OK) status = api_state_stepped(ctx);
    return context_leave(ctx, status);
}

pen_status pen_step_decided(pen_ctx *ctx, pen_step *step)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_enter(ctx, "pen_step_decided", true);
    if (status != PEN_OK) return status;
    if (step == NULL) {
        status = last_error_report(PEN_INVALID_ARGUMENT, "pen_step_decided: step is NULL");
    } else if ((status = api_check_committed(ctx, "pen_step_decided")) == PEN_OK) {
        pthread_mutex_lock(&ctx->step.lock);
        status = step_wait_decided(ctx, step, &why);
        pthread_mutex_unlock(&ctx->step.lock);
        if (status != PEN_OK) status = last_error_set(&why);
    }
    return context_leave(ctx, status);
}
