/* api_unit.c - pen_unit_get, pen_use, pen_release, pen_view: units, and memory of the SDK. */
#include "worker/api/api.h"

#include "common/base/why.h"
#include "common/compute/device/device.h"
#include "common/system/fp_env.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/tensor/grad_sum.h"
#include "worker/tensor/param_memory.h"
#include "worker/tensor/stack.h"
#include "worker/tensor/unit_use.h"

/* ---- units ----------------------------------------------------------------------------------- */
pen_unit *pen_unit_get(pen_ctx *ctx, const char *unit, int64_t index)
{
    FP_ENV_OURS();
    pen_error why;
    pen_unit *found;
    if (context_check(ctx, "pen_unit_get") != PEN_OK) return NULL;
    if (api_check_committed(ctx, "pen_unit_get") != PEN_OK) return NULL;
    if (units_find(&ctx->model.units, unit, index, &found, &why) == PEN_OK) {
        ctx->names_units = true;
        return found;
    }
    last_error_set(&why);
    return NULL;
}

/* NULL: *why, the handle does not belong to this context. */
static const pen_unit *handle_of(pen_ctx *ctx, const pen_unit *u, const char *call, pen_error *why)
{
    if (api_check_committed(ctx, call) != PEN_OK) {
        pen_last_error(why);
        return NULL;
    }
    if (u == NULL) return &ctx->model.units.handle[0];
    if (u->ctx == ctx) return u;
    why_set(why, PEN_INVALID_ARGUMENT, "%s: the unit belongs to another context", call);
    return NULL;
}

static pen_status check_phase(pen_phase phase, const char *call, pen_error *why)
{
    if (phase == PEN_FORWARD || phase == PEN_BACKWARD) return PEN_OK;
    return why_set(why, PEN_INVALID_ARGUMENT, "%s: invalid phase %d", call, (int)phase);
}

/* ---- use ------------------------------------------------------------------------------------- */
static int64_t step_in_progress(pen_ctx *ctx)
{
    pthread_mutex_lock(&ctx->step.lock);
    const int64_t step = ctx->step.is_begun ? ctx->step.next_index : -1;
    pthread_mutex_unlock(&ctx->step.lock);
    return step;
}

static pen_status remember(pen_ctx *ctx, const pen_error *why)
{
    pthread_mutex_lock(&ctx->step.lock);
    context_remember(&ctx->step.remembered, why);
    pthread_mutex_unlock(&ctx->step.lock);
    return why->status;
}

/* Without tensors on a device, no stream is used. */
static pen_status check_stream(const pen_ctx *ctx, const char *function, void *stream,
                               pen_error *why)
{
    return ctx->memory.device_copies != NULL ? api_check_stream(function, stream, why) : PEN_OK;
}

static pen_status use(pen_ctx *ctx, const pen_unit *u, pen_phase phase, void *stream,
                      pen_error *why)
{
    const pen_unit *handle = handle_of(ctx, u, "pen_use", why);
    if (handle == NULL || check_phase(phase, "pen_use", why) != PEN_OK) return why->status;
    char note[256];
    if (stream != NULL && device_beside_host(note, sizeof note) == NULL)
        return why_set(why, PEN_UNSUPPORTED, "pen_use: stream needs a CUDA device: %s", note);
    if (check_stream(ctx, "pen_use", stream, why) != PEN_OK) return why->status;
    if (api_wait_for_unit(ctx, handle, "pen_use") != PEN_OK) {
        pen_last_error(why);
        return why->status;
    }
    const pen_status status = unit_use(ctx, handle, phase, step_in_progress(ctx), why);
    if (status != PEN_OK || device_copies_use(ctx, handle, stream, why) == PEN_OK) return status;
    unit_release(ctx, handle, phase);
    return why->status;
}

pen_status pen_use(pen_ctx *ctx, pen_unit *u, pen_phase phase, void *stream)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_enter(ctx, "pen_use", true);
    if (status != PEN_OK) return status;
    status = use(ctx, u, phase, stream, &why);
    if (status != PEN_OK) status = remember(ctx, &why);
    return context_leave(ctx, status);
}

/* ---- release --------------------------------------------------------------------------------- */
/* Makes every gradient of the handle ready that is not yet; for the outermost handle, all that are left. */
static pen_status ready_all(pen_ctx *ctx, const pen_unit *handle)
{
    pen_status status = PEN_OK;
    if (handle->index == 0) return pen_ready(ctx, NULL, PEN_ALL);
    for (uint32_t i = handle->n_tensors;
         i-- > 0 && status == PEN_OK;) { /* the order that buckets start with */
        pen_tensor *t = ctx->model.tensor[handle->tensor[i]];
        if (t->trained && api_ask(ctx, t, GRAD_READY, NULL) == PEN_OK)
            status = pen_ready(ctx, t, PEN_ALL);
    }
    return status;
}

pen_status pen_release(pen_ctx *ctx, pen_unit *u, pen_phase phase, void *stream)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_enter(ctx, "pen_release", false);
    if (status != PEN_OK) return status;
    const pen_unit *handle = handle_of(ctx, u, "pen_release", &why);
    if (handle == NULL || check_phase(phase, "pen_release", &why) != PEN_OK ||
        check_stream(ctx, "pen_release", stream, &why) != PEN_OK ||
        device_copies_release(ctx, handle, stream, &why) != PEN_OK)
        return remember(ctx, &why);
    unit_release(ctx, handle, phase);
    return phase == PEN_BACKWARD ? ready_all(ctx, handle) : PEN_OK;
}

/* ---- view ------------------------------------------------------------------------------------ */
static void *view_param(pen_ctx *ctx, pen_tensor *name, pen_error *why)
{
    pen_tensor *t = name->tied_to != NULL ? name->tied_to : name;
    if (ctx->phase == CONTEXT_OPEN)
        return param_memory(t, why) == PEN_OK ? device_copies_param_of(t) : NULL;
    pthread_mutex_lock(&ctx->memory.grad_lock);
    void *data = device_copies_param_of(t);
    pthread_mutex_unlock(&ctx->memory.grad_lock);
    if (data != NULL) return data;
    pthread_mutex_lock(&ctx->step.lock);
    *why = ctx->step.remembered; /* a pen_use() that failed is the reason */
    pthread_mutex_unlock(&ctx->step.lock);
    if (why->status != PEN_OK) return NULL;
    const unit_set *set = &ctx->model.units;
    const char *unit    = set->unit[set->of[t->index]].name;
    why_set(why, PEN_WRONG_STATE,
            "pen_view('%s'): its values are not here; call pen_use() on %s%s%s first", name->name,
            unit[0] != '\0' ? "'" : "NULL, the outermost unit", unit, unit[0] != '\0' ? "'" : "");
    return NULL;
}

static void *view_grad(pen_ctx *ctx, pen_tensor *t, pen_error *why)
{
    strategy *s = ctx->strategy;
    if (t->grad != NULL) return device_copies_grad_of(t);
    if (!t->trained) {
        why_set(why, PEN_INVALID_ARGUMENT, "pen_view('%s'): a frozen tensor has no gradient",
                t->name);
        return NULL;
    }
    if (api_ask(ctx, t, GRAD_VIEW, why) != PEN_OK) return NULL;
    if (s != NULL && s->ops->view != NULL && param_grad_seen(t) == NULL &&
        s->ops->view(s, t, why) != PEN_OK)
        return NULL;
    return param_grad(t, why);
}

/* The slices of a stack lie side by side in memory of the program, but not in the SDK's. */
static bool is_apart(const stack_part *part, pen_what what)
{
    const pen_tensor *first = part->tensor[0];
    if (!part->is_whole || part->n == 1) return false;
    return what == PEN_PARAM ? tied_base(part->tensor[0])->holds_param : first->grad == NULL;
}

void *pen_view(pen_ctx *ctx, pen_tensor *t, int64_t slice, pen_what what)
{
    FP_ENV_OURS();
    pen_error why;
    stack_part part;
    void *data = NULL;
    if (context_enter(ctx, "pen_view", true) != PEN_OK) return NULL;
    if (t == NULL || t->ctx != ctx)
        why_set(&why, PEN_INVALID_ARGUMENT, "pen_view: the tensor does not belong to this context");
    else if (stack_slices(&t, slice, "pen_view", &part, &why) != PEN_OK)
        data = NULL;
    else if (is_apart(&part, what))
        why_set(&why, PEN_INVALID_ARGUMENT,
                "pen_view('%s'): it is stacked, in memory of the SDK; name one of its %u slices",
                t->name, part.n);
    else if (what == PEN_PARAM)
        data = view_param(ctx, part.tensor[0], &why);
    else if (what == PEN_GRAD)
        data = view_grad(ctx, part.tensor[0], &why);
    else
        why_set(&why, PEN_INVALID_ARGUMENT,
                "pen_view('%s'): invalid what %d; expected PEN_PARAM or PEN_GRAD", t->name,
                (int)what);
    context_leave(ctx, PEN_OK);
    if (data == NULL) last_error_set(&why);
    return data;
}
