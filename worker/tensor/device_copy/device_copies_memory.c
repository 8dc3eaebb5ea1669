/* device_copies_memory.c - where tensors lie on the device. */
#include "worker/tensor/device_copy/device_copies_internal.h"

#include "common/base/why.h"
#include "worker/tensor/grad_sum.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------ */
/* A pinned pair with `data` as its device side: the old pair with a new address, or a new pair. */
static pen_status place(pen_tensor *t, pinned_pair **w, void *data, size_t bytes, stat_id level,
                        pen_error *why)
{
    if (*w != NULL) {
        (*w)->device = data;
        (*w)->is_old = true;
        return PEN_OK;
    }
    *w = pinned_pair_new(&device_copies_of(t)->pinned_pairs, data, bytes, why);
    if (*w == NULL) return why->status;
    stat_hold(&t->ctx->stats, level, (int64_t)bytes);
    return PEN_OK;
}

static void unplace(pen_tensor *t, pinned_pair **w, stat_id level)
{
    if (*w == NULL) return;
    stat_hold(&t->ctx->stats, level, -(int64_t)(*w)->bytes);
    pinned_pair_free(&device_copies_of(t)->pinned_pairs, *w);
    *w = NULL;
}

pen_status device_copies_place(pen_tensor *t, pen_what what, void *data, pen_error *why)
{
    const bool is_param = what == PEN_PARAM;
    const size_t bytes  = is_param ? t->bytes : t->grad_bytes;
    const stat_id level = is_param ? STAT_PARAM_BYTES : STAT_GRAD_BYTES;
    void **at           = is_param ? &t->param : &t->grad;
    bool is_host;
    if (device_copies_meet(t, data, &is_host, why) != PEN_OK) return why->status;
    if (!is_host && device_copies_make_room(t, why) != PEN_OK) return why->status;
    pinned_pair **w = t->device_copies == NULL ? NULL
                      : is_param               ? &t->device_copies->values
                                               : &t->device_copies->grad;
    if (is_host) {
        if (w != NULL) unplace(t, w, level);
        *at = data;
        return PEN_OK;
    }
    const void *before = is_param && *w == NULL ? t->param : NULL;
    const bool moves   = is_param && *w != NULL && space_is_device(&t->ctx->memory.work);
    if (moves && device_copies_fetch_values(t, why) != PEN_OK) return why->status;
    if (place(t, w, data, bytes, level, why) != PEN_OK) return why->status;
    *at = (*w)->host;
    if (moves) return device_copies_changed_one(t, why);
    if (before == NULL) return PEN_OK;
    memcpy(*at, before, bytes);
    (*w)->is_old = true;
    return PEN_OK;
}

void device_copies_forget(pen_tensor *t)
{
    struct device_copies_tensor *x = t->device_copies;
    if (x == NULL) return;
    const device_ops *ops = device_copies_of(t)->pinned_pairs.ops;
    unplace(t, &x->values, STAT_PARAM_BYTES);
    unplace(t, &x->grad, STAT_GRAD_BYTES);
    ops->free(x->sum);
    ops->free(x->narrowed);
    free(x);
    t->device_copies = NULL;
}

bool device_copies_holds(const pen_ctx *ctx)
{
    return ctx->memory.device_copies != NULL && ctx->memory.device_copies->holds;
}

pinned_pair *device_copies_take(pen_tensor *t, size_t bytes, pen_error *why)
{
    if (device_copies_make_room(t, why) != PEN_OK) return NULL;
    return pinned_pair_take(&device_copies_of(t)->pinned_pairs, bytes, why);
}

void device_copies_put(pen_tensor *t, pinned_pair *w)
{
    pinned_pair_put(&device_copies_of(t)->pinned_pairs, w);
}

void device_copies_put_behind(pen_tensor *t, pinned_pair *w)
{
    pinned_pair_set *set = &device_copies_of(t)->pinned_pairs;
    pen_error why;
    if (pinned_pair_note_use(set, w, device_copies_stream(t), &why) == PEN_OK)
        pinned_pair_put(set, w);
    else
        pinned_pair_free(set, w);
}

/* Runs after the kernels that used these bytes for another tensor, on any stream. */
pen_status device_copies_zero(pen_tensor *t, pinned_pair *w, bool is_kept, pen_error *why)
{
    device_copies *m           = device_copies_of(t);
    const device_ops *ops      = m->pinned_pairs.ops;
    const device_stream stream = atomic_load(&m->stream);
    pen_status status          = PEN_OK;
    if (is_kept)
        status = pinned_pair_note_use(&m->pinned_pairs, w, device_copies_stream(tied_base(t)), why);
    if (status == PEN_OK) status = ops->enter(m->pinned_pairs.device, why);
    if (status != PEN_OK) return status;
    status = ops->stream_wait(stream, w->used, why);
    if (status == PEN_OK) status = ops->zero(w->device, w->bytes, stream, why);
    ops->leave();
    return status;
}
