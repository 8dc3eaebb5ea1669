/* step_decided.c - accounts for the outcomes of steps. */
#include "worker/step_decided.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "worker/train/schedule/precision.h"

#include <math.h>

/* Steps that may be undecided when the next one begins: the device then has work while the host enqueues more. */
enum { AHEAD = 1 };

static context_decided *slot_of(pen_ctx *ctx, int64_t index)
{
    return &ctx->step.decided[index % CONTEXT_DECIDED_MAX];
}

static void fill(const pen_ctx *ctx, const ps_client_outcome *o, pen_step *step)
{
    step->outcome    = o->outcome;
    step->grad_norm  = o->norm;
    step->clip       = o->clip;
    step->applied    = o->applied;
    step->bad_rank   = o->has_bad ? o->bad_rank : -1;
    pen_tensor *bad  = o->has_bad ? ctx->model.tensor[o->bad_tensor] : NULL;
    step->bad_tensor = bad != NULL && bad->stack != NULL ? bad->stack : bad;
}

/* Once per step, in their order. */
static pen_status account(pen_ctx *ctx, int64_t index, const ps_client_outcome *o, pen_error *why)
{
    *slot_of(ctx, index) = (context_decided){.index = index, .is_there = true, .outcome = *o};
    if (o->outcome != PEN_APPLIED) stat_add(&ctx->stats, STAT_SKIPPED, 1);
    if (o->outcome == PEN_SKIPPED_NONFINITE && o->has_bad)
        log_notice("step %lld skipped: first non-finite gradient in '%s' on rank %d",
                   (long long)index, ctx->model.tensor[o->bad_tensor]->name, o->bad_rank);
    return precision_step_ended(ctx, index, o, why);
}

pen_status step_decided(pen_ctx *ctx, int64_t index, const ps_client_outcome *outcome,
                        uint32_t pending, pen_error *why)
{
    if (index == ctx->step.next_index) { /* step_conclude() follows */
        const wire_scalars scalars = ctx->step.outcome.scalars;
        ctx->step.outcome          = *outcome;
        ctx->step.outcome.scalars  = scalars;
        return PEN_OK;
    }
    ctx->step.applied = outcome->applied + (int64_t)pending;
    ctx->step.progress.skipped += outcome->outcome != PEN_APPLIED;
    return account(ctx, index, outcome, why);
}

void step_is_pending(pen_ctx *ctx)
{
    ps_client_outcome *o = &ctx->step.outcome;
    o->outcome           = PEN_PENDING;
    o->norm              = NAN;
    o->applied           = ctx->step.applied + 1;
}

pen_status step_conclude(pen_ctx *ctx, pen_step *step, const pen_result *result, pen_error *why)
{
    const ps_client_outcome *o = &ctx->step.outcome;
    fill(ctx, o, step);
    step->version   = model_is_decided(&ctx->model) ? (uint64_t)o->applied : result->version;
    step->staleness = result->staleness;
    stat_add(&ctx->stats, STAT_STEPS, 1);
    stat_observe(&ctx->stats, STAT_SPREAD_STALENESS, step->staleness);
    ctx->step.applied = o->applied;
    ctx->step.totals  = o->scalars;
    context_note_scalars(ctx);
    return o->outcome == PEN_PENDING ? PEN_OK : account(ctx, ctx->step.next_index, o, why);
}

/* ---- undecided steps --------------------------------------------------------------------------- */
static pen_status settle(pen_ctx *ctx, uint32_t most, pen_error *why)
{
    strategy *s = ctx->strategy;
    return s != NULL && s->ops->settle != NULL ? s->ops->settle(s, most, why) : PEN_OK;
}

/* The scale of this step's loss depends on all steps before. */
pen_status step_settle_before(pen_ctx *ctx, pen_error *why)
{
    return settle(ctx, ctx->step.scale.is_dynamic ? 0 : AHEAD, why);
}

pen_status step_settle_all(pen_ctx *ctx, pen_error *why)
{
    return ctx->phase == CONTEXT_COMMITTED ? settle(ctx, 0, why) : PEN_OK;
}

pen_status step_wait_decided(pen_ctx *ctx, pen_step *step, pen_error *why)
{
    const int64_t index = step->index;
    if (index < 0 || index >= ctx->step.next_index)
        return why_set(why, PEN_NOT_FOUND, "pen_step_decided: step %lld has not ended",
                       (long long)index);
    const int64_t after = ctx->step.next_index - 1 - index;
    if (after < AHEAD + 2 && settle(ctx, (uint32_t)after, why) != PEN_OK) return why->status;
    const context_decided *found = slot_of(ctx, index);
    if (!found->is_there || found->index != index)
        return why_set(why, PEN_NOT_FOUND,
                       "pen_step_decided: step %lld is too old; ask within %d steps",
                       (long long)index, CONTEXT_DECIDED_MAX);
    fill(ctx, &found->outcome, step);
    step->version = (uint64_t)found->outcome.applied;
    return PEN_OK;
}
