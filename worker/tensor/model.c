/* model.c - checks and keeps the groups and tensors that a program registers. */
#include "worker/tensor/model.h"

#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "proto/plan.h"
#include "worker/context.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/tensor/grad_sum.h"
#include "worker/tensor/param_memory.h"
#include "worker/train/schedule/precision.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pen_status no_memory(pen_error *why)
{
    return why_set(why, PEN_NO_MEMORY, "no memory for another tensor");
}

static const char *or_usual(const char *given, const char *usual)
{
    return given != NULL && given[0] != '\0' ? given : usual;
}

static char *copy(const char *text)
{
    return strdup(text != NULL ? text : "");
}

/* ---- groups ---------------------------------------------------------------------------------- */
static void free_group(pen_params *p)
{
    if (p == NULL) return;
    free(p->name);
    free(p->optim);
    free(p->sync);
    free(p->wire);
    free(p->schedule);
    free(p);
}

/* The sync rules of server/shard/core/sync/, which workers do not link. */
static pen_status check_sync(const char *sync, pen_error *why)
{
    static const char *const names[]   = {"bsp", "ssp", "async"};
    static const config_row no_rows[]  = {{0}};
    static const config_row ssp_rows[] = {{.name = "s", .type = CONFIG_U64, .dfl = "1", .max = 1e6},
                                          {0}};
    const size_t n                     = strcspn(sync, " ");
    uint64_t s;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == n && memcmp(names[i], sync, n) == 0)
            return config_from_words(i == 1 ? ssp_rows : no_rows, &s, sync + n, why);
    return why_set(why, PEN_BAD_SETTING,
                   "unknown consistency rule '%.*s'; expected bsp, \"ssp s=N\" or async",
                   (int)(n < 64 ? n : 64), sync);
}

static pen_status check_wire(const char *group, const char *wire, pen_error *why)
{
    const wire_group asked = {.wire = wire};
    const wire_tensor any  = {.dtype = PEN_F32};
    if (plan_push_dtype(&asked, &any) != PEN_DTYPE_DEFAULT) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING,
                   "group '%s': unknown wire '%.64s'; expected raw, bf16 or f16", group, wire);
}

static pen_status check_group(const pen_params_desc *d, const pen_ctx *ctx, pen_error *why)
{
    const char *name = d->name != NULL ? d->name : "";
    if (model_check_reserved(d->reserved, 8, "pen_params_desc", why) != PEN_OK) return why->status;
    if (strlen(name) >= 128)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "invalid group name; at most 127 bytes are allowed");
    if (check_wire(name, or_usual(d->wire, ""), why) != PEN_OK) return why->status;
    return check_sync(or_usual(d->sync, ctx->sync), why);
}

pen_status model_add_group(model *m, pen_ctx *ctx, const pen_params_desc *d, pen_params **out,
                           pen_error *why)
{
    pen_status status = check_group(d, ctx, why);
    if (status != PEN_OK) return status;
    if (m->n_groups == MODEL_GROUPS_MAX)
        return why_set(why, PEN_INVALID_ARGUMENT, "more than %d groups", MODEL_GROUPS_MAX);
    pen_params *p = calloc(1, sizeof *p);
    if (p == NULL) return no_memory(why);
    p->ctx      = ctx;
    p->index    = m->n_groups;
    p->name     = copy(d->name);
    p->optim    = copy(or_usual(d->optim, ctx->settings.optim));
    p->sync     = copy(or_usual(d->sync, ctx->sync));
    p->wire     = copy(or_usual(d->wire, worker_wire_name(ctx->settings.wire)));
    p->schedule = copy(or_usual(d->schedule, or_usual(ctx->settings.schedule, "constant")));
    if (p->name == NULL || p->optim == NULL || p->sync == NULL || p->wire == NULL ||
        p->schedule == NULL) {
        free_group(p);
        return no_memory(why);
    }
    const wire_group rules = {.sync = p->sync};
    p->rule                = plan_group_averages(&rules) ? ctx->rule : STEP_ASYNC;
    status                 = lr_schedule_parse(p->schedule, &p->rates, why);
    if (status == PEN_OK) status = precision_check_group(ctx, p->name, p->rule, why);
    if (status != PEN_OK) {
        free_group(p);
        return status;
    }
    m->group[m->n_groups++] = p;
    if (out != NULL) *out = p;
    return PEN_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */
/* What a buffer cannot have. */
static pen_status check_buffer(const pen_ctx *ctx, const pen_tensor_desc *d, pen_error *why)
{
    const char *wrong = d->grad != NULL         ? "it is not trained; set grad to NULL"
                        : d->init != NULL       ? "it starts with rank 0's values; set init to NULL"
                        : d->tied_to != NULL    ? "it has values of its own; set tied_to to NULL"
                        : d->flags & PEN_FROZEN ? "it changes; leave out PEN_FROZEN"
                        : !device_is_host(device_of(d->param)) ? "it must be in host memory"
                        : d->param == NULL && ctx->settings.device == WORKER_DEVICE_CUDA
                            ? "with device=cuda pass param, in host memory"
                            : NULL;
    if (wrong == NULL) return PEN_OK;
    return why_set(why, PEN_INVALID_ARGUMENT, "'%s' is a PEN_BUFFER: %s", d->name, wrong);
}

static bool is_trainable(pen_dtype t)
{
    return t == PEN_F32 || t == PEN_F16 || t == PEN_BF16;
}

static pen_status check_tensor(const model *m, const pen_ctx *ctx, const pen_tensor_desc *d,
                               pen_error *why)
{
    const uint32_t known = PEN_FROZEN | PEN_BUFFER | PEN_ZERO_IF_UNUSED | PEN_NO_DECAY;
    if (model_check_reserved(d->reserved, 8, "pen_tensor_desc", why) != PEN_OK) return why->status;
    if (d->reserved32 != 0)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "pen_tensor_desc has garbage in reserved32; initialise it with {0}");
    if (model_check_name(m, d->name, "tensor", why) != PEN_OK) return why->status;
    if (d->flags & ~known)
        return why_set(why, PEN_INVALID_ARGUMENT, "'%s': unknown flags 0x%x", d->name,
                       d->flags & ~known);
    if (d->unit != NULL && strlen(d->unit) >= 128)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "'%s': the unit name is too long; at most 127 bytes are allowed", d->name);
    if (m->n_tensors == MODEL_TENSORS_MAX)
        return why_set(why, PEN_INVALID_ARGUMENT, "more than %d tensors", MODEL_TENSORS_MAX);
    return (d->flags & PEN_BUFFER) != 0 ? check_buffer(ctx, d, why) : PEN_OK;
}

static pen_status describe(const pen_tensor_desc *d, pen_tensor *t, pen_error *why)
{
    wire_tensor *w = &t->desc;
    *w             = (wire_tensor){.name     = t->name,
                                   .dtype    = d->dtype != PEN_DTYPE_DEFAULT ? d->dtype : PEN_F32,
                                   .ndim     = d->ndim,
                                   .group    = d->params != NULL ? d->params->index : 0,
                                   .flags    = d->flags,
                                   .priority = d->priority,
                                   .init     = ""};
    w->grad_dtype  = d->grad_dtype != PEN_DTYPE_DEFAULT ? d->grad_dtype : w->dtype;
    if (d->ndim < 0 || d->ndim > 8)
        return why_set(why, PEN_INVALID_ARGUMENT, "'%s': invalid ndim %d; expected 0 to 8", d->name,
                       d->ndim);
    memcpy(w->shape, d->shape, (size_t)d->ndim * sizeof d->shape[0]);
    const bool is_buffer = (d->flags & PEN_BUFFER) != 0;
    if (is_buffer && plan_dtype_bytes(w->dtype) == 0)
        return why_set(why, PEN_INVALID_ARGUMENT, "'%s': invalid dtype %d", d->name, (int)w->dtype);
    if (!is_buffer && (!is_trainable(w->dtype) || !is_trainable(w->grad_dtype)))
        return why_set(why, PEN_UNSUPPORTED,
                       "'%s': cannot train %s with gradients of %s; use f32, f16 or bf16", d->name,
                       plan_dtype_name(w->dtype), plan_dtype_name(w->grad_dtype));
    t->elements = plan_tensor_elements(w);
    if (t->elements == 0)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "'%s': invalid shape; it has no elements, or too many", d->name);
    t->bytes      = t->elements * plan_dtype_bytes(w->dtype);
    t->grad_bytes = t->elements * plan_dtype_bytes(w->grad_dtype);
    t->trained    = (d->flags & (PEN_FROZEN | PEN_BUFFER)) == 0;
    return PEN_OK;
}

static void free_tensor(pen_tensor *t)
{
    if (t == NULL) return;
    if (t->ctx != NULL) param_memory_free(t);
    if (t->ctx != NULL) grad_sum_free(t);
    if (t->ctx != NULL) device_copies_forget(t);
    free(t->init);
    free(t->unit);
    free(t->name);
    free(t);
}

static pen_status take_memory(pen_tensor *t, const pen_tensor_desc *d, pen_error *why)
{
    t->holds_param = d->param == NULL;
    if ((d->flags & PEN_BUFFER) != 0) {
        t->param = d->param;
        return PEN_OK;
    }
    if (device_copies_place(t, PEN_PARAM, d->param, why) != PEN_OK ||
        device_copies_place(t, PEN_GRAD, d->grad, why) != PEN_OK)
        return why->status;
    if (t->init[0] == '\0') return PEN_OK;
    if (init_parse(t->init, &t->draw, why) != PEN_OK) {
        const pen_error found = *why;
        return why_set(why, found.status, "'%s': %.300s", t->name, found.text);
    }
    t->has_init  = true;
    t->desc.init = t->init;
    return PEN_OK;
}

static pen_status make_tensor(const pen_tensor_desc *d, pen_ctx *ctx, pen_tensor **out,
                              pen_error *why)
{
    pen_tensor *t = calloc(1, sizeof *t);
    if (t == NULL) return no_memory(why);
    t->ctx            = ctx;
    t->name           = copy(d->name);
    t->unit           = copy(d->unit);
    t->init           = copy(d->init);
    pen_status status = t->name == NULL || t->unit == NULL || t->init == NULL ? no_memory(why)
                                                                              : describe(d, t, why);
    if (status == PEN_OK) status = take_memory(t, d, why);
    if (status != PEN_OK) {
        free_tensor(t);
        return status;
    }
    *out = t;
    return PEN_OK;
}

/* ---- second names ---------------------------------------------------------------------------- */
static pen_status check_alias(const pen_tensor_desc *d, const pen_tensor *t, pen_error *why)
{
    const pen_tensor *base = d->tied_to;
    if (base->ctx != t->ctx)
        return why_set(why, PEN_INVALID_ARGUMENT, "'%s': tied_to belongs to another context",
                       t->name);
    if (base->slice != NULL)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "'%s' is tied to '%s', which is a stack; register it as one, too", t->name,
                       base->name);
    if (d->param != NULL || t->init[0] != '\0')
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "'%s' is tied to '%s', which has the values; set param and init to NULL",
                       t->name, base->name);
    if (t->elements == base->elements && t->desc.dtype == base->desc.dtype &&
        t->desc.grad_dtype == base->desc.grad_dtype)
        return PEN_OK;
    return why_set(why, PEN_INVALID_ARGUMENT,
                   "'%s' is tied to '%s', but has another type or number of elements", t->name,
                   base->name);
}

/* Aliases of aliases become aliases of the tensor itself. */
static void tie(pen_tensor *t, pen_tensor *base)
{
    while (base->tied_to != NULL) base = base->tied_to;
    t->tied_to        = base;
    t->index          = base->index;
    t->trained        = t->trained && base->trained;
    t->holds_param    = false;
    pen_tensor **last = &base->next_alias;
    while (*last != NULL) last = &(*last)->next_alias;
    *last = t;
}

static pen_status add_alias(model *m, const pen_tensor_desc *d, pen_tensor *t, pen_error *why)
{
    pen_status status = check_alias(d, t, why);
    if (status != PEN_OK) return status;
    if (!VEC_MORE(m->alias, m->n_aliases)) return no_memory(why);
    tie(t, d->tied_to);
    m->alias[m->n_aliases++] = t;
    return PEN_OK;
}

pen_status model_add_tensor(model *m, pen_ctx *ctx, const pen_tensor_desc *d, pen_tensor **out,
                            pen_error *why)
{
    pen_tensor *t     = NULL;
    pen_status status = check_tensor(m, ctx, d, why);
    if (status == PEN_OK &&
        (!VEC_MORE(m->tensor, m->n_tensors) || !VEC_MORE(m->buffer, m->n_buffers)))
        status = no_memory(why);
    if (status == PEN_OK) status = make_tensor(d, ctx, &t, why);
    if (status != PEN_OK) return status;
    if (d->tied_to != NULL) {
        status = add_alias(m, d, t, why);
        if (status != PEN_OK) free_tensor(t);
    } else if ((d->flags & PEN_BUFFER) != 0) {
        m->buffer[m->n_buffers++] = t;
    } else {
        t->index = m->n_tensors;
        m->n_trained += t->trained;
        m->tensor[m->n_tensors++] = t;
    }
    if (status == PEN_OK && out != NULL) *out = t;
    return status;
}

ps_client_rule model_rule_of(const model *m, const pen_tensor *t)
{
    return m->group[t->desc.group]->rule;
}

pen_dtype model_push_dtype(const model *m, const pen_tensor *t)
{
    const wire_group group = {.wire = m->group[t->desc.group]->wire};
    return plan_push_dtype(&group, &t->desc);
}

bool model_is_decided(const model *m)
{
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i]->trained && model_rule_of(m, m->tensor[i]) == STEP_TWO_PHASE) return true;
    return false;
}

/* ---- create and destroy ---------------------------------------------------------------------- */
pen_status model_init(model *m, pen_ctx *ctx, pen_error *why)
{
    const pen_params_desc usual = {.name = "default"};
    return model_add_group(m, ctx, &usual, NULL, why);
}

void model_fini(model *m)
{
    units_fini(&m->units);
    for (uint32_t i = 0; i < m->n_aliases; i++) free_tensor(m->alias[i]);
    for (uint32_t i = 0; i < m->n_tensors; i++) free_tensor(m->tensor[i]);
    for (uint32_t i = 0; i < m->n_buffers; i++) free_tensor(m->buffer[i]);
    for (uint32_t i = 0; i < m->n_tables; i++) table_free(m->table[i]);
    free(m->table);
    free(m->buffer);
    for (uint32_t i = 0; i < m->n_stacks; i++) {
        free(m->stack[i]->slice);
        free(m->stack[i]->name);
        free(m->stack[i]);
    }
    free(m->stack);
    free(m->alias);
    for (uint32_t g = 0; g < m->n_groups; g++) free_group(m->group[g]);
    free(m->tensor);
    free(m->registered);
    free(m->wire_tensors);
    free(m->wire_groups);
}
