/* buffers.c - packs buffers by type, and makes them equal. */
#include "worker/train/buffers.h"

#include "common/base/why.h"
#include "common/containers/hash.h"
#include "proto/plan.h"
#include "worker/tensor/param_memory.h"
#include "worker/train/group_calls.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DTYPES = PEN_U64 + 1 };

typedef struct { /* all buffers of one type, in registration order */
    size_t elements;
    char *packed;
} batch;

typedef struct buffers {
    group_calls calls; /* calls.group NULL: this rank is alone */
    batch batch[DTYPES];
} buffers;

/* ---- checks ---------------------------------------------------------------------------------- */
static pen_status check(const pen_ctx *ctx, pen_error *why)
{
    const model *m   = &ctx->model;
    const char *name = m->buffer[0]->name;
    if (context_outlives_loss(ctx))
        return why_set(
            why, PEN_UNSUPPORTED,
            "'%s' is a PEN_BUFFER, which needs workers that neither come nor go; keep it in the "
            "program, or set on_worker_loss=fail and a fixed number of workers",
            name);
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const pen_tensor *t = m->tensor[i];
        if (t->trained && model_rule_of(m, t) == STEP_ASYNC)
            return why_set(
                why, PEN_UNSUPPORTED,
                "'%s' is a PEN_BUFFER, but '%s' is in group '%s' with sync=%s, whose ranks do not "
                "step together; use sync=bsp, or keep the buffer in the program",
                name, t->name, m->group[t->desc.group]->name, m->group[t->desc.group]->sync);
    }
    return PEN_OK;
}

/* ---- making them equal ----------------------------------------------------------------------- */
/* Copies between the program's memory and the batches. */
static void copy(buffers *b, const model *m, bool packs)
{
    size_t at[DTYPES] = {0};
    for (uint32_t i = 0; i < m->n_buffers; i++) {
        const pen_tensor *t = m->buffer[i];
        char *packed        = b->batch[t->desc.dtype].packed + at[t->desc.dtype];
        memcpy(packs ? packed : t->param, packs ? t->param : packed, t->bytes);
        at[t->desc.dtype] += t->bytes;
    }
}

static pen_status exchange(buffers *b, pen_ctx *ctx, bool is_mean, pen_error *why)
{
    if (b->calls.group == NULL) return PEN_OK;
    copy(b, &ctx->model, true);
    for (int dtype = 0; dtype < DTYPES; dtype++) {
        batch *x             = &b->batch[dtype];
        const bool averages  = is_mean && (dtype == PEN_F32 || dtype == PEN_F64 ||
                                          dtype == PEN_F16 || dtype == PEN_BF16);
        const coll_call call = {.kind       = averages ? COLL_ALL_REDUCE : COLL_BROADCAST,
                                .op         = PEN_AVG,
                                .dtype      = (pen_dtype)dtype,
                                .n          = x->elements,
                                .in         = x->packed,
                                .out        = x->packed,
                                .overwrites = true,
                                .scale      = 1,
                                .label      = "buffers of a step"};
        if (x->elements > 0) group_calls_begin(&b->calls, &call);
    }
    if (group_calls_wait(&b->calls, why) != PEN_OK) return why->status;
    copy(b, &ctx->model, false);
    return PEN_OK;
}

pen_status buffers_sync(pen_ctx *ctx, pen_error *why)
{
    if (ctx->memory.buffers == NULL || ctx->settings.buffers == BUFFERS_OWN) return PEN_OK;
    return exchange(ctx->memory.buffers, ctx, ctx->settings.buffers == BUFFERS_MEAN, why);
}

/* ---- snapshots ------------------------------------------------------------------------------- */
static pen_status add_states(pen_ctx *ctx, pen_error *why)
{
    const model *m = &ctx->model;
    for (uint32_t i = 0; i < m->n_buffers; i++) {
        const pen_tensor *t = m->buffer[i];
        char name[STATE_NAME_BYTES];
        pen_error reason;
        snprintf(name, sizeof name, "penstock.buffer.%016" PRIx64,
                 hash_bytes(t->name, strlen(t->name)));
        if (state_table_add(&ctx->states, name, t->param, t->bytes,
                            ctx->settings.buffers == BUFFERS_OWN, &reason) != PEN_OK)
            return why_set(why, reason.status, "the buffer '%s': %.300s", t->name, reason.text);
    }
    return PEN_OK;
}

/* ---- open and close -------------------------------------------------------------------------- */
static pen_status make_group(buffers *b, pen_ctx *ctx, pen_error *why)
{
    pen_group *world = ctx->world;
    if (world->size == 1) return PEN_OK;
    return group_new(world, world->ranks, world->size, context_patience(ctx, NULL), &b->calls.group,
                     why);
}

static pen_status make_batches(buffers *b, const model *m, pen_error *why)
{
    for (uint32_t i = 0; i < m->n_buffers; i++) {
        if (param_memory(m->buffer[i], why) != PEN_OK) return why->status;
        b->batch[m->buffer[i]->desc.dtype].elements += m->buffer[i]->elements;
    }
    for (int dtype = 0; dtype < DTYPES; dtype++) {
        batch *x = &b->batch[dtype];
        if (x->elements == 0) continue;
        x->packed = calloc(x->elements, plan_dtype_bytes((pen_dtype)dtype));
        if (x->packed == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for buffers");
    }
    return PEN_OK;
}

static pen_status open_buffers(buffers *b, pen_ctx *ctx, pen_error *why)
{
    if (check(ctx, why) != PEN_OK || make_batches(b, &ctx->model, why) != PEN_OK ||
        make_group(b, ctx, why) != PEN_OK)
        return why->status;
    const pen_status status = exchange(b, ctx, false, why);
    return status == PEN_OK ? add_states(ctx, why)
                            : status; /* a restored snapshot fills them at once */
}

pen_status buffers_open(pen_ctx *ctx, pen_error *why)
{
    if (ctx->model.n_buffers == 0) return PEN_OK;
    buffers *b = calloc(1, sizeof *b);
    if (b == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for buffers");
    group_calls_init(&b->calls, ctx);
    ctx->memory.buffers = b;
    return open_buffers(b, ctx, why);
}

void buffers_close(pen_ctx *ctx)
{
    buffers *b = ctx->memory.buffers;
    if (b == NULL) return;
    ctx->memory.buffers = NULL;
    for (int dtype = 0; dtype < DTYPES; dtype++) free(b->batch[dtype].packed);
    group_calls_fini(&b->calls);
    free(b);
}
