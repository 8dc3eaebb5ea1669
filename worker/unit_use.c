/* unit_use.c - the units that a handle covers, used and released where values come and go. */
#include "worker/unit_use.h"

pen_status unit_use(pen_ctx *ctx, const pen_unit *handle, pen_phase phase, int64_t step,
                    pen_error *why)
{
    strategy *s         = ctx->strategy;
    const unit_set *set = &ctx->model.units;
    pen_status status   = PEN_OK;
    if (s == NULL || s->ops->use == NULL) return PEN_OK;
    pthread_mutex_lock(&ctx->use_lock);
    for (uint32_t i = 0; i < handle->n_covers && status == PEN_OK; i++) {
        status = s->ops->use(s, &set->unit[handle->covers[i]], phase, step, why);
        for (uint32_t k = 0; status != PEN_OK && k < i; k++)
            s->ops->release(s, &set->unit[handle->covers[k]], phase);
    }
    pthread_mutex_unlock(&ctx->use_lock);
    return status;
}

void unit_release(pen_ctx *ctx, const pen_unit *handle, pen_phase phase)
{
    strategy *s         = ctx->strategy;
    const unit_set *set = &ctx->model.units;
    if (s == NULL || s->ops->release == NULL) return;
    pthread_mutex_lock(&ctx->use_lock);
    for (uint32_t i = 0; i < handle->n_covers; i++)
        s->ops->release(s, &set->unit[handle->covers[i]], phase);
    pthread_mutex_unlock(&ctx->use_lock);
}

/* What is here anyway needs no use. */
pen_status unit_each_tensor(pen_ctx *ctx, unit_tensor_fn fn, void *user, pen_error *why)
{
    const unit_set *set  = &ctx->model.units;
    const pen_unit *used = NULL;
    pen_status status    = PEN_OK;
    for (uint32_t i = 0; i < ctx->model.n_tensors && status == PEN_OK; i++) {
        pen_tensor *t        = ctx->model.tensor[i];
        const pen_unit *unit = t->stays ? used : &set->unit[set->of[i]];
        if (unit != used) {
            if (used != NULL) unit_release(ctx, used, PEN_FORWARD);
            status = unit_use(ctx, unit, PEN_FORWARD, -1, why);
            used   = status == PEN_OK ? unit : NULL;
        }
        if (status == PEN_OK) status = fn(t, user, why);
    }
    if (used != NULL) unit_release(ctx, used, PEN_FORWARD);
    return status;
}
