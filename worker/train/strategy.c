/* strategy.c - shared by all strategies. */
#include "worker/train/strategy.h"

#include "common/base/why.h"
#include "worker/context.h"
#include "worker/tensor/device_copy/device_copies.h"

void strategy_init(strategy *s, const strategy_ops *ops, pen_ctx *ctx)
{
    s->ops = ops;
    pthread_mutex_init(&s->lock, NULL);
    ctx->strategy = s;
}

void strategy_close(pen_ctx *ctx)
{
    strategy *s = ctx->strategy;
    if (s == NULL) return;
    ctx->strategy = NULL;
    pthread_mutex_destroy(&s->lock);
    s->ops->close(s);
}

pen_status strategy_refuse_push(const pen_tensor *t, pen_error *why)
{
    return why_set(why, PEN_UNSUPPORTED,
                   "cannot push '%s': mode=%s has no servers; use pen_ready() and pen_step_end(), "
                   "or a mode with servers",
                   t->name, context_mode_name(t->ctx));
}

void strategy_end(request *r, pen_status status, const pen_error *why)
{
    pen_ctx *ctx = r->ctx; /* r may be freed as soon as it has ended */
    request_end(r, status, status != PEN_OK ? why : NULL);
    request_notify(&ctx->requests);
}

static bool is_on_device(const pen_ctx *ctx, const pen_tensor *t)
{
    const struct device_copies_tensor *x = t->device_copies;
    const bool has_values =
        t->param != NULL ? x != NULL && x->values != NULL : device_copies_holds(ctx);
    const bool has_grad = t->grad != NULL ? x != NULL && x->grad != NULL : has_values;
    return has_values && has_grad;
}

bool strategy_may_be_on_device(const pen_ctx *ctx)
{
    const model *m = &ctx->model;
    bool may = ctx->memory.device_copies != NULL && m->n_trained > 0 && !context_outlives_loss(ctx);
    for (uint32_t i = 0; i < m->n_tensors && may; i++)
        may = !m->tensor[i]->trained ||
              (model_rule_of(m, m->tensor[i]) == STEP_TWO_PHASE && is_on_device(ctx, m->tensor[i]));
    return may;
}
