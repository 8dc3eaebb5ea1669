/* own_state.c - the loss scale in snapshots. */
#include "worker/tensor/residency/own_state.h"

#include "worker/context.h"

pen_status own_state_init(pen_ctx *ctx, pen_error *why)
{
    ctx->own.applied = -1;
    if (!ctx->step.scale.is_dynamic) return PEN_OK;
    return state_table_add(&ctx->states, "penstock.loss_scale", &ctx->own, sizeof ctx->own, false,
                           why);
}

void own_state_note(pen_ctx *ctx, int32_t verdict)
{
    ctx->own.applied = ctx->step.applied;
    ctx->own.verdict = verdict;
    ctx->own.zero    = 0;
    loss_scale_save(&ctx->step.scale, ctx->own.scale);
}

pen_status own_state_adopt(pen_ctx *ctx, pen_error *why)
{
    const own_state *own = &ctx->own;
    loss_scale *l        = &ctx->step.scale;
    if (!l->is_dynamic || own->applied < 0) return PEN_OK;
    const pen_status status = loss_scale_load(l, own->scale, sizeof own->scale, why);
    if (status != PEN_OK || own->verdict == OWN_STATE_SETTLED || own->verdict == PEN_SKIPPED_EMPTY)
        return status;
    const bool is_applied = own->verdict == OWN_STATE_UNKNOWN ? ctx->restored.applied > own->applied
                                                              : own->verdict == PEN_APPLIED;
    (void)loss_scale_update(l, !is_applied);
    return PEN_OK;
}
