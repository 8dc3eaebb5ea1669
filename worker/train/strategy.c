/* strategy.c - shared by all strategies. */
#include "worker/train/strategy.h"

#include "common/base/why.h"
#include "worker/context.h"

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
