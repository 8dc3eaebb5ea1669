/* strategy.c - what all strategies share. */
#include "worker/train/strategy.h"

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

void strategy_end(request *r, pen_status status, const pen_error *why)
{
    pen_ctx *ctx = r->ctx; /* it may be gone as soon as it has ended */
    request_end(r, status, status != PEN_OK ? why : NULL);
    request_tell(&ctx->requests);
}
