/* precision.c - number types, loss scale and batch sizes of a context. */
#include "worker/train/schedule/precision.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "worker/train/schedule/batch_plan.h"

#include <math.h>

/* ---- settings -------------------------------------------------------------------------------- */
pen_status precision_check(const worker_settings *s, pen_error *why)
{
    if (s->precision != PRECISION_FP16 && s->loss_scale > 0)
        return why_set(why, PEN_BAD_SETTING,
                       "loss_scale=%g and precision=%s contradict each other: only fp16 needs a "
                       "loss scale; omit it, or set precision=fp16",
                       s->loss_scale, worker_precision_name(s->precision));
    if (s->precision == PRECISION_FP16 && !s->applies_loss_scale)
        return why_set(
            why, PEN_BAD_SETTING,
            "precision=fp16 needs a program that multiplies its loss by step.loss_scale: multiply "
            "it, and give pen_init() the setting applies_loss_scale=yes; or use precision=bf16");
    if (s->precision != PRECISION_FP16 || s->loss_scale > 0) return PEN_OK;
    if (ldexp(1, (int)s->loss_scale_power) < s->loss_scale_min)
        return why_set(why, PEN_BAD_SETTING,
                       "loss_scale_min=%g is above the first loss scale, 2 to the power of "
                       "loss_scale_power=%llu",
                       s->loss_scale_min, (unsigned long long)s->loss_scale_power);
    if (!s->skip)
        return why_set(why, PEN_BAD_SETTING,
                       "precision=fp16 and skip=no contradict each other: a dynamic loss scale "
                       "overflows now and then; set loss_scale=1024, or skip=yes");
    if (s->workers_max > 0 || s->on_worker_loss == LOSS_WAIT)
        return why_set(why, PEN_BAD_SETTING,
                       "precision=fp16 with workers that join later needs a fixed loss scale, "
                       "because they cannot know a dynamic one: set loss_scale=1024, or use bf16");
    return PEN_OK;
}

static void set_scale(pen_ctx *ctx)
{
    const worker_settings *s = &ctx->settings;
    loss_scale *l            = &ctx->step.scale;
    if (s->precision != PRECISION_FP16)
        loss_scale_static(l, 1);
    else if (s->loss_scale > 0)
        loss_scale_static(l, s->loss_scale);
    else
        loss_scale_dynamic(l, ldexp(1, (int)s->loss_scale_power), s->loss_scale_min,
                           s->loss_scale_window, (uint32_t)s->loss_scale_hysteresis,
                           s->consecutive_hysteresis);
}

static pen_status set_batches(pen_ctx *ctx, pen_error *why)
{
    worker_settings *s      = &ctx->settings;
    batch_plan b            = {.train = s->train_batch, .micro = s->micro_batch, .accum = s->accum};
    const pen_status status = batch_plan_resolve(&b, (uint64_t)ctx->env.world_size, why);
    if (status != PEN_OK) return status;
    s->train_batch = b.train;
    s->micro_batch = b.micro;
    s->accum       = b.accum;
    return PEN_OK;
}

pen_status precision_set_up(pen_ctx *ctx, pen_error *why)
{
    set_scale(ctx);
    return set_batches(ctx, why);
}

pen_status precision_check_group(const pen_ctx *ctx, const char *group, ps_client_rule rule,
                                 pen_error *why)
{
    if (!ctx->step.scale.is_dynamic || rule == STEP_TWO_PHASE) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING,
                   "group '%s' applies each gradient by itself, but precision=fp16 with a dynamic "
                   "loss scale skips whole steps: set loss_scale=1024, or train the group with "
                   "sync=bsp and commit=decide",
                   group);
}

/* ---- steps ----------------------------------------------------------------------------------- */
static pen_status at_minimum(const pen_ctx *ctx, long long step, const ps_client_outcome *o,
                             pen_error *why)
{
    const char *name = o->has_bad ? ctx->model.tensor[o->bad_tensor]->name : NULL;
    if (name == NULL) {
        why_set(why, PEN_INVALID_ARGUMENT,
                "step %lld overflowed in its norm at the minimum loss scale, %g (loss_scale_min)",
                step, ctx->step.scale.min);
        return why->status;
    }
    why_set(why, PEN_INVALID_ARGUMENT,
            "step %lld overflowed in '%s' on rank %d at the minimum loss scale, %g "
            "(loss_scale_min): the gradient itself is not finite, or too large for 16 bits",
            step, name, o->bad_rank, ctx->step.scale.min);
    why_culprit(why, PEN_WORKER, o->bad_rank, step, name);
    return why->status;
}

pen_status precision_step_ended(pen_ctx *ctx, int64_t step, const ps_client_outcome *o,
                                pen_error *why)
{
    loss_scale *l     = &ctx->step.scale;
    const int outcome = o->outcome;
    const double was  = l->scale;
    if (!l->is_dynamic || outcome == PEN_SKIPPED_EMPTY) return PEN_OK;
    const bool has_overflown = outcome != PEN_APPLIED;
    const bool is_fine       = loss_scale_update(l, has_overflown);
    if (has_overflown && is_fine)
        log_notice("step %lld overflowed with a loss scale of %g; the next one is %g",
                   (long long)step, was, l->scale);
    else if (l->scale != was)
        log_info("the loss scale is %g from step %lld on", l->scale, (long long)step + 1);
    return is_fine ? PEN_OK : at_minimum(ctx, (long long)step, o, why);
}
