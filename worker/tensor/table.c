/* table.c - checks and keeps a table by key. */
#include "worker/tensor/table.h"

#include "common/base/why.h"
#include "common/compute/init.h"
#include "common/containers/arrays.h"
#include "proto/plan.h"
#include "proto/rows.h"
#include "worker/context.h"

#include <stdlib.h>
#include <string.h>

/* In the flags of the wire's tensor, so that ranks that place keys differently are found. */
enum { BY_RANGE = 1 << 16, BY_PROGRAM = 1 << 17 };

static pen_status check(const model *m, const pen_ctx *ctx, const pen_table_desc *d, pen_error *why)
{
    const pen_dtype dtype = d->dtype != PEN_DTYPE_DEFAULT ? d->dtype : PEN_F32;
    init_rule unused;
    if (model_check_name(m, d->name, "table", why) != PEN_OK) return why->status;
    if (d->flags & ~(PEN_KEYS_ANY | PEN_KEYS_RANGE))
        return why_set(why, PEN_INVALID_ARGUMENT, "'%s': unknown flags 0x%x", d->name, d->flags);
    if (d->params != NULL && d->params->ctx != ctx)
        return why_set(why, PEN_INVALID_ARGUMENT, "'%s': params belong to another context",
                       d->name);
    if (d->handler != NULL && (d->params != NULL || d->init != NULL))
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "'%s': a handler makes and updates its values itself; set %s to NULL",
                       d->name, d->params != NULL ? "params" : "init");
    if (d->handler != NULL && (d->handler[0] == '\0' || strlen(d->handler) >= 128))
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "'%s': invalid name of a handler; expected 1 to 127 bytes", d->name);
    if (dtype != PEN_F32 && dtype != PEN_F16 && dtype != PEN_BF16)
        return why_set(why, PEN_UNSUPPORTED, "'%s': rows of %s; use f32, f16 or bf16", d->name,
                       plan_dtype_name(dtype));
    if (d->dim < 0 || d->dim > ROWS_LENGTH_MAX)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "'%s': invalid dim %lld; expected 1 to %d, or 0 if it differs by key",
                       d->name, (long long)d->dim, ROWS_LENGTH_MAX);
    if (!ctx->has_servers)
        return why_set(
            why, PEN_UNSUPPORTED,
            "'%s': tables are on servers, and this job has none; start it with `penstock "
            "run --servers 1`",
            d->name);
    return d->init != NULL ? init_parse(d->init, &unused, why) : PEN_OK;
}

static bool counts(const pen_params *p)
{
    return strncmp(p->sync, "async", 5) != 0;
}

/* A table's pushes belong to no step, so its rate cannot follow one. */
static pen_status check_schedule(const pen_params *p, const char *name, pen_error *why)
{
    if (strcmp(p->schedule, "constant") == 0) return PEN_OK;
    return why_set(why, PEN_UNSUPPORTED,
                   "'%s': the schedule '%.64s' of its group counts steps, and pushes of a table "
                   "belong to none; give it params with schedule=\"constant\"",
                   name, p->schedule);
}

/* A worker that comes later repeats steps of which others have pushed their rows, so its pushes would be counted in
 * later rounds than theirs. */
static pen_status check_members(const pen_ctx *ctx, const pen_params *p, const char *name,
                                pen_error *why)
{
    const bool grows = ctx->settings.workers_max > (uint64_t)ctx->env.world_size;
    if (!counts(p) || (!grows && ctx->settings.on_worker_loss != LOSS_WAIT)) return PEN_OK;
    return why_set(
        why, PEN_UNSUPPORTED,
        "'%s': sync=%s counts the pushes of all workers, and workers may come later (%s); "
        "give it params with sync=async",
        name, p->sync, grows ? "--nproc-per-node MIN:MAX" : "on_worker_loss=wait");
}

static void describe(pen_table *t, const pen_table_desc *d)
{
    wire_tensor *w = &t->desc;
    *w             = (wire_tensor){.name    = t->name,
                                   .dtype   = d->dtype != PEN_DTYPE_DEFAULT ? d->dtype : PEN_F32,
                                   .ndim    = d->dim > 0 ? 2 : 1,
                                   .shape   = {t->parts, d->dim},
                                   .group   = d->params != NULL ? d->params->index : 0,
                                   .flags   = PEN_FROZEN | WIRE_TABLE,
                                   .init    = t->init,
                                   .handler = t->handler};
    w->grad_dtype  = w->dtype;
    if (d->place != NULL)
        w->flags |= BY_PROGRAM;
    else if (d->flags & PEN_KEYS_RANGE)
        w->flags |= BY_RANGE;
}

pen_status table_add(struct model *m, pen_ctx *ctx, const pen_table_desc *d, pen_table **out,
                     pen_error *why)
{
    if (model_check_reserved(d->reserved, 8, "pen_table_desc", why) != PEN_OK ||
        check(m, ctx, d, why) != PEN_OK)
        return why->status;
    const pen_params *p = m->group[d->params != NULL ? d->params->index : 0];
    if (d->handler == NULL && (check_schedule(p, d->name, why) != PEN_OK ||
                               check_members(ctx, p, d->name, why) != PEN_OK))
        return why->status;
    pen_table *t = VEC_MORE(m->table, m->n_tables) ? calloc(1, sizeof *t) : NULL;
    if (t != NULL) {
        t->ctx      = ctx;
        t->index    = m->n_tables;
        t->name     = strdup(d->name);
        t->init     = strdup(d->init != NULL ? d->init : "");
        t->handler  = strdup(d->handler != NULL ? d->handler : "");
        t->dim      = (uint32_t)d->dim;
        t->parts    = (uint32_t)ctx->settings.table_parts;
        t->sorts    = (d->flags & PEN_KEYS_ANY) != 0;
        t->by_range = (d->flags & PEN_KEYS_RANGE) != 0;
        t->place    = d->place;
        t->user     = d->user;
        describe(t, d);
        const wire_group group = {.wire = m->group[t->desc.group]->wire};
        t->push_dtype          = plan_push_dtype(&group, &t->desc);
        t->counts              = d->handler == NULL && counts(m->group[t->desc.group]);
    }
    if (t == NULL || t->name == NULL || t->init == NULL || t->handler == NULL) {
        table_free(t);
        return why_set(why, PEN_NO_MEMORY, "no memory for another table");
    }
    m->table[m->n_tables++] = t;
    *out                    = t;
    return PEN_OK;
}

void table_free(pen_table *t)
{
    if (t == NULL) return;
    free(t->name);
    free(t->init);
    free(t->handler);
    free(t);
}
