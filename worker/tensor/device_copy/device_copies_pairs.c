/* device_copies_pairs.c - pairs of a strategy that works on the device: its own sums down, its own values up. */
#include "worker/tensor/device_copy/device_copies_internal.h"

#include "common/trace/trace.h"

void device_copies_fail_by(pen_ctx *ctx, pinned_pairs_failure_fn fn, void *user)
{
    pinned_pair_set *set = &ctx->memory.device_copies->pinned_pairs;
    set->failure         = fn;
    set->failure_user    = user;
}

pen_status device_copies_failure(pen_ctx *ctx, pen_error *why)
{
    const pinned_pair_set *set = &ctx->memory.device_copies->pinned_pairs;
    return set->failure != NULL ? set->failure(set->failure_user, why) : PEN_OK;
}

pinned_pair *device_copies_pair(pen_ctx *ctx, void *device, size_t bytes, pen_error *why)
{
    pinned_pair_set *set = &ctx->memory.device_copies->pinned_pairs;
    pinned_pair *w       = pinned_pair_new(set, device, bytes, why);
    if (w != NULL) pinned_pair_lock(set, w);
    return w;
}

void device_copies_drop_pair(pen_ctx *ctx, pinned_pair *w)
{
    if (w != NULL) pinned_pair_free(&ctx->memory.device_copies->pinned_pairs, w);
}

pen_status device_copies_take_sum(pen_tensor *t, pinned_pair *w, device_copies_done_fn done,
                                  void *user, pen_error *why)
{
    device_copies *m            = device_copies_of(t);
    const device_copies_job job = {.tensor = t, .pinned_pair = w, .done = done, .user = user};
    pthread_mutex_lock(&m->lock);
    pen_status status =
        pinned_pair_down(&m->pinned_pairs, w, w->device, TRAFFIC_GRAD, m->work, why);
    if (status == PEN_OK) status = device_copies_add_job(t->ctx, &job, why);
    pthread_mutex_unlock(&m->lock);
    return status;
}

pen_status device_copies_expect_values(pen_ctx *ctx, pinned_pair *w, pen_error *why)
{
    device_copies *m = ctx->memory.device_copies;
    pthread_mutex_lock(&m->lock);
    const pen_status status = pinned_pair_note_use(&m->pinned_pairs, w, m->work, why);
    pthread_mutex_unlock(&m->lock);
    return status;
}

pen_status device_copies_give_part(pen_ctx *ctx, pinned_pair *w, size_t from, size_t bytes,
                                   pen_error *why)
{
    device_copies *m = ctx->memory.device_copies;
    pthread_mutex_lock(&m->lock);
    const pen_status status = pinned_pair_up_part(&m->pinned_pairs, w, from, bytes, why);
    pthread_mutex_unlock(&m->lock);
    return status;
}

pen_status device_copies_take_values(pen_ctx *ctx, pinned_pair *w, pen_error *why)
{
    device_copies *m            = ctx->memory.device_copies;
    const device_copies_job job = {.pinned_pair = w, .is_up = true};
    pthread_mutex_lock(&m->lock);
    pen_status status = pinned_pair_see(&m->pinned_pairs, w, m->work, why);
    if (status == PEN_OK && trace_on()) status = device_copies_add_job(ctx, &job, why);
    pthread_mutex_unlock(&m->lock);
    return status;
}
