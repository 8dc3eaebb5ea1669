/* group_calls.c - starts the SDK's own group calls and waits for them. */
#include "worker/train/group_calls.h"

#include "common/base/why.h"
#include "worker/tensor/device_copy/device_copies.h"

#include <stdlib.h>
#include <string.h>

void group_calls_init(group_calls *t, pen_ctx *ctx)
{
    t->ctx = ctx;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->ended, NULL);
}

void group_calls_fini(group_calls *t)
{
    if (t->stop != NULL) device_copies_fail_by(t->ctx, NULL, NULL);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->ended);
}

pen_status group_calls_failure(const group_calls *t, pen_error *why)
{
    if (t->stop == NULL || __atomic_load_n(t->stop, __ATOMIC_ACQUIRE) == 0) return PEN_OK;
    if (coll_failure(t->group, why) != PEN_OK) return why->status;
    return why_set(why, PEN_PEER_LOST,
                   "a sum was given up: a rank of its group has stopped, or is too slow");
}

static pen_status failure(void *user, pen_error *why)
{
    return group_calls_failure(user, why);
}

pen_status group_calls_take_space(group_calls *t, const memory_space *p, pen_error *why)
{
    const pen_status status = coll_stop_word(t->group, p->ops, p->device, &t->stop, why);
    if (status == PEN_OK) device_copies_fail_by(t->ctx, failure, t);
    return status;
}

static pen_status submit_on(group_calls *t, pen_group *group, const coll_call *call,
                            coll_done_fn done, void *done_user, pen_error *why)
{
    if (atomic_load(&t->is_out_of_step))
        return why_set(why, PEN_NO_MEMORY, "no memory for an earlier call of this group");
    const pen_status status =
        coll_submit(group, call, context_patience(t->ctx, NULL), done, done_user, why);
    if (status == PEN_NO_MEMORY) atomic_store(&t->is_out_of_step, true);
    return status;
}

pen_status group_calls_submit(void *user, const coll_call *call, coll_done_fn done, void *done_user,
                              pen_error *why)
{
    group_calls *t = user;
    return submit_on(t, t->group, call, done, done_user, why);
}

pen_status group_calls_sum(void *user, const coll_call *call, coll_done_fn done, void *done_user,
                           pen_error *why)
{
    group_calls *t       = user;
    const bool is_second = t->second != NULL && !call->in_stream_order && t->n_sums++ % 2 == 1;
    return submit_on(t, is_second ? t->second : t->group, call, done, done_user, why);
}

void group_calls_await(void *user, const atomic_ullong *ended, pthread_mutex_t *lock,
                       pthread_cond_t *changed)
{
    const group_calls *t          = user;
    pen_group *const group[]      = {t->group, t->second};
    const int n                   = t->group == NULL ? 0 : t->second == NULL ? 1 : 2;
    const unsigned long long seen = atomic_load(ended);
    pthread_mutex_unlock(lock);
    const bool has_more = n > 0 && coll_attend(group, n, ended, seen, 0);
    pthread_mutex_lock(lock);
    if (!has_more && atomic_load(ended) == seen) pthread_cond_wait(changed, lock);
}

void group_calls_count(group_calls *t)
{
    pthread_mutex_lock(&t->lock);
    t->in_progress++;
    pthread_mutex_unlock(&t->lock);
}

void group_calls_end(void *user, pen_status status, const pen_error *why)
{
    group_calls *t = user;
    pthread_mutex_lock(&t->lock);
    if (status != PEN_OK && t->failure.status == PEN_OK) {
        t->failure        = why != NULL ? *why : (pen_error){.rank = -1, .step = -1};
        t->failure.status = status;
    }
    t->in_progress--;
    atomic_fetch_add(&t->n_ended, 1);
    pthread_cond_signal(&t->ended);
    pthread_mutex_unlock(&t->lock);
}

void group_calls_begin(group_calls *t, const coll_call *call)
{
    pen_error why;
    group_calls_count(t);
    const pen_status status = group_calls_submit(t, call, group_calls_end, t, &why);
    if (status != PEN_OK) group_calls_end(t, status, &why);
}

pen_status group_calls_wait(group_calls *t, pen_error *why)
{
    pthread_mutex_lock(&t->lock);
    while (t->in_progress > 0) group_calls_await(t, &t->n_ended, &t->lock, &t->ended);
    const pen_status status = t->failure.status;
    if (status != PEN_OK) *why = t->failure;
    t->failure.status = PEN_OK;
    pthread_mutex_unlock(&t->lock);
    return status;
}

void group_calls_gather(group_calls *t, pen_dtype dtype, size_t n, const size_t *counts,
                        const void *in, void *out, const char *label)
{
    const coll_call call = {.kind   = COLL_ALL_GATHER,
                            .dtype  = dtype,
                            .n      = n,
                            .in     = in,
                            .out    = out,
                            .counts = counts,
                            .scale  = 1,
                            .label  = label};
    group_calls_begin(t, &call);
}

pen_status group_calls_lowest(group_calls *t, int32_t own, int32_t *lowest, const char *label,
                              pen_error *why)
{
    const coll_call call = {.kind  = COLL_ALL_REDUCE,
                            .op    = PEN_MIN,
                            .dtype = PEN_I32,
                            .n     = 1,
                            .in    = &own,
                            .out   = lowest,
                            .scale = 1,
                            .label = label};
    group_calls_begin(t, &call);
    return group_calls_wait(t, why);
}

pen_status group_calls_broadcast(group_calls *t, void *data, size_t bytes, const char *label,
                                 pen_error *why)
{
    const coll_call call = {.kind  = COLL_BROADCAST,
                            .dtype = PEN_U8,
                            .n     = bytes,
                            .in    = data,
                            .out   = data,
                            .scale = 1,
                            .label = label};
    group_calls_begin(t, &call);
    return group_calls_wait(t, why);
}

/* ---- sums of gradients ----------------------------------------------------------------------- */
pen_status group_calls_wait_for_sums(group_calls *t, reducer *r, pen_error *why)
{
    pen_error later;
    const pen_status status = group_calls_wait(t, why);
    if (status == PEN_OK) return reducer_wait(r, why);
    (void)reducer_wait(r, &later); /* until no call uses the buckets */
    return status;
}

pen_status group_calls_arrange(group_calls *t, reducer *r, uint32_t n, bool *is_arranged,
                               pen_error *why)
{
    if (*is_arranged || n == 0) return PEN_OK;
    const size_t bytes = n * sizeof(uint32_t);
    uint32_t *order    = malloc(bytes);
    if (order == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to order the gradients");
    memcpy(order, reducer_order(r), bytes);
    pen_status status = group_calls_broadcast(t, order, bytes, "order of gradients", why);
    if (status == PEN_OK) status = reducer_arrange(r, order, why);
    free(order);
    *is_arranged = status == PEN_OK;
    return status;
}
