/* talk.c - the SDK's own group calls, and waiting for them. */
#include "worker/train/talk.h"

#include "common/base/why.h"

#include <stdlib.h>
#include <string.h>

void talk_init(talk *t, pen_ctx *ctx)
{
    t->ctx = ctx;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->ended, NULL);
}

void talk_fini(talk *t)
{
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->ended);
}

pen_status talk_submit(void *user, const coll_call *call, coll_done_fn done, void *done_user,
                       pen_error *why)
{
    const talk *t          = user;
    const int64_t patience = t->ctx->settings.deadline_ms;
    return coll_submit(t->group, call, patience > 0 ? (uint64_t)patience : 0, done, done_user, why);
}

void talk_count(talk *t)
{
    pthread_mutex_lock(&t->lock);
    t->in_progress++;
    pthread_mutex_unlock(&t->lock);
}

void talk_end(void *user, pen_status status, const pen_error *why)
{
    talk *t = user;
    pthread_mutex_lock(&t->lock);
    if (status != PEN_OK && t->failure.status == PEN_OK) {
        t->failure        = why != NULL ? *why : (pen_error){.rank = -1, .step = -1};
        t->failure.status = status;
    }
    t->in_progress--;
    pthread_cond_signal(&t->ended);
    pthread_mutex_unlock(&t->lock);
}

void talk_begin(talk *t, const coll_call *call)
{
    pen_error why;
    talk_count(t);
    const pen_status status = talk_submit(t, call, talk_end, t, &why);
    if (status != PEN_OK) talk_end(t, status, &why);
}

pen_status talk_wait(talk *t, pen_error *why)
{
    pthread_mutex_lock(&t->lock);
    while (t->in_progress > 0) pthread_cond_wait(&t->ended, &t->lock);
    const pen_status status = t->failure.status;
    if (status != PEN_OK) *why = t->failure;
    t->failure.status = PEN_OK;
    pthread_mutex_unlock(&t->lock);
    return status;
}

void talk_gather(talk *t, pen_dtype dtype, size_t n, const size_t *counts, const void *in,
                 void *out, const char *label)
{
    const coll_call call = {.kind   = COLL_ALL_GATHER,
                            .dtype  = dtype,
                            .n      = n,
                            .in     = in,
                            .out    = out,
                            .counts = counts,
                            .scale  = 1,
                            .label  = label};
    talk_begin(t, &call);
}

pen_status talk_lowest(talk *t, int32_t own, int32_t *lowest, const char *label, pen_error *why)
{
    const coll_call call = {.kind  = COLL_ALL_REDUCE,
                            .op    = PEN_MIN,
                            .dtype = PEN_I32,
                            .n     = 1,
                            .in    = &own,
                            .out   = lowest,
                            .scale = 1,
                            .label = label};
    talk_begin(t, &call);
    return talk_wait(t, why);
}

pen_status talk_broadcast(talk *t, void *data, size_t bytes, const char *label, pen_error *why)
{
    const coll_call call = {.kind  = COLL_BROADCAST,
                            .dtype = PEN_U8,
                            .n     = bytes,
                            .in    = data,
                            .out   = data,
                            .scale = 1,
                            .label = label};
    talk_begin(t, &call);
    return talk_wait(t, why);
}

/* ---- sums of gradients ----------------------------------------------------------------------- */
pen_status talk_wait_for_sums(talk *t, reducer *r, pen_error *why)
{
    pen_error later;
    const pen_status status = talk_wait(t, why);
    if (status == PEN_OK) return reducer_wait(r, why);
    (void)reducer_wait(r, &later); /* until no call uses the buckets */
    return status;
}

pen_status talk_arrange(talk *t, reducer *r, uint32_t n, bool *is_arranged, pen_error *why)
{
    if (*is_arranged || n == 0) return PEN_OK;
    const size_t bytes = n * sizeof(uint32_t);
    uint32_t *order    = malloc(bytes);
    if (order == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to order the gradients");
    memcpy(order, reducer_order(r), bytes);
    pen_status status = talk_broadcast(t, order, bytes, "order of gradients", why);
    if (status == PEN_OK) status = reducer_arrange(r, order, why);
    free(order);
    *is_arranged = status == PEN_OK;
    return status;
}
