/* unit_use.c - uses and releases the units of a handle. */
#include "worker/tensor/unit_use.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/tensor/param_memory.h"

#include <stdlib.h>

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

/* Tensors that stay need no use. */
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
        if (status == PEN_OK) status = device_copies_fetch_values(t, why);
        if (status == PEN_OK) status = fn(t, user, why);
    }
    if (used != NULL) unit_release(ctx, used, PEN_FORWARD);
    return status;
}

/* ---- for strategies that fetch and drop values ----------------------------------------------- */
pen_status unit_make(pen_ctx *ctx, uint32_t number, pen_error *why)
{
    const pen_unit *unit = &ctx->model.units.unit[number];
    pen_status status    = PEN_OK;
    for (uint32_t i = 0; i < unit->n_tensors && status == PEN_OK; i++) {
        pen_tensor *t = ctx->model.tensor[unit->tensor[i]];
        if (!t->stays) status = param_memory(t, why);
    }
    return status;
}

void unit_drop(pen_ctx *ctx, uint32_t number)
{
    const pen_unit *unit = &ctx->model.units.unit[number];
    for (uint32_t i = 0; i < unit->n_tensors; i++) {
        pen_tensor *t = ctx->model.tensor[unit->tensor[i]];
        if (!t->stays) param_memory_drop(t);
    }
}

static void warn(void *user, const char *line)
{
    (void)user;
    log_line(LOG_WARNING, "%s", line);
}

residency *unit_residency(const pen_ctx *ctx, unit_number_fn fetch, unit_number_fn drop, void *user,
                          pen_error *why)
{
    const residency_actions actions = {fetch, drop, warn};
    const worker_settings *s        = &ctx->settings;
    const unit_set *set             = &ctx->model.units;
    uint64_t *moving                = calloc(set->n, sizeof *moving);
    if (moving == NULL) {
        why_set(why, PEN_NO_MEMORY, "no memory for %u units", set->n);
        return NULL;
    }
    for (uint32_t i = 0; i < set->n; i++) moving[i] = set->unit[i].moving;
    const residency_setup setup = {.n_units         = set->n,
                                   .moving          = moving,
                                   .backward        = (residency_prefetch)s->prefetch_backward,
                                   .forward         = s->prefetch_forward,
                                   .max_live        = s->max_live,
                                   .prefetch_bucket = s->prefetch_bucket,
                                   .max_reuse       = s->max_reuse};
    residency *made             = residency_create(&setup, &actions, user, why);
    free(moving);
    return made;
}
