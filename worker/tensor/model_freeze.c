/* model_freeze.c - pen_commit() checks the whole model and makes the contents of REGISTER. */
#include "common/base/log.h"
#include "common/base/why.h"
#include "common/containers/hash.h"
#include "worker/context.h"
#include "worker/tensor/model.h"
#include "worker/tensor/param_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory of the program ------------------------------------------------------------------- */
static int by_address(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)(*(pen_tensor *const *)a)->param;
    const uintptr_t y = (uintptr_t)(*(pen_tensor *const *)b)->param;
    return x < y ? -1 : x > y;
}

/* Tensors in the same memory would overwrite each other after every step. */
static pen_status check_overlap(const model *m, pen_error *why)
{
    pen_tensor **own = malloc((m->n_tensors + 1) * sizeof(pen_tensor *));
    uint32_t n       = 0;
    if (own == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to commit the model");
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (!m->tensor[i]->holds_param && m->tensor[i]->param != NULL) own[n++] = m->tensor[i];
    qsort(own, n, sizeof *own, by_address);
    pen_status status = PEN_OK;
    for (uint32_t i = 1; i < n && status == PEN_OK; i++) {
        const pen_tensor *a = own[i - 1], *b = own[i];
        if ((uintptr_t)b->param - (uintptr_t)a->param >= a->bytes) continue;
        status = why_set(why, PEN_INVALID_ARGUMENT,
                         "the parameters of '%.100s' and '%.100s' overlap; use separate memory, or "
                         "register the second with tied_to",
                         a->name, b->name);
    }
    free(own);
    return status;
}

/* Only values in memory of the SDK are fetched and dropped; the program's are whole on every rank. */
static void notice_memory_of_program(const model *m)
{
    const pen_tensor *first = NULL;
    uint32_t n              = 0;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const pen_tensor *t = m->tensor[i];
        const bool is_whole = t->ctx->stage == 3 && t->trained && !t->holds_param &&
                              t->elements >= t->ctx->settings.persistence_threshold;
        if (is_whole && n++ == 0) first = t;
    }
    if (n > 0 && first->ctx->env.rank <= 0)
        log_notice("zero3 saves no memory for %u of %u tensors, first '%.100s', because the "
                   "program owns them; register them with param NULL, or use zero2",
                   n, m->n_tensors, first->name);
}

/* ---- contents of REGISTER -------------------------------------------------------------------- */
static void add_pair(model *m, const worker_settings *s, const char *key)
{
    uint32_t at = m->wire.n_settings++;
    config_get(worker_settings_rows, s, key, m->pair_text[at], sizeof m->pair_text[at]);
    m->pair[at] = (wire_pair){key, m->pair_text[at]};
}

static pen_status freeze_groups(model *m, pen_error *why)
{
    for (uint32_t g = 0; g < m->n_groups; g++) {
        pen_params *p = m->group[g];
        pen_status status =
            optim_parse(p->optim[0] != '\0' ? p->optim : "sgd", &p->ops, &p->hyper, why);
        bool used                   = g > 0;
        const pen_tensor *of_tensor = NULL;
        for (uint32_t i = 0; i < m->n_tensors && of_tensor == NULL; i++)
            if (m->tensor[i]->trained && m->tensor[i]->desc.group == g) of_tensor = m->tensor[i];
        used |= of_tensor != NULL;
        for (uint32_t i = 0; i < m->n_tables && !used; i++)
            used = m->table[i]->desc.group == g && !plan_has_handler(&m->table[i]->desc);
        if (status != PEN_OK && used) return status;
        if (status == PEN_OK && of_tensor != NULL && p->ops->update_row != NULL)
            return why_set(why, PEN_BAD_SETTING,
                           "'%s': %s is a rule of tables by key (pen_table_new) only; use adagrad",
                           of_tensor->name, p->ops->name);
        if (status != PEN_OK) { /* the unused default group */
            free(p->optim);
            p->optim = strdup("sum");
            if (p->optim == NULL)
                return why_set(why, PEN_NO_MEMORY, "no memory to commit the model");
            status = optim_parse(p->optim, &p->ops, &p->hyper, why);
            if (status != PEN_OK) return status;
        }
        m->wire_groups[g] = (wire_group){.name     = p->name,
                                         .optim    = p->optim,
                                         .sync     = p->sync,
                                         .wire     = p->wire,
                                         .schedule = p->schedule};
    }
    return PEN_OK;
}

/* All ranks must register the same ones. */
static void add_buffers(model *m)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < m->n_buffers; i++) {
        const wire_tensor *d   = &m->buffer[i]->desc;
        const uint64_t parts[] = {all, hash_bytes(d->name, strlen(d->name)),
                                  hash_bytes(d->shape, sizeof d->shape), (uint64_t)d->dtype,
                                  (uint64_t)d->ndim};
        all                    = hash_bytes(parts, sizeof parts);
    }
    const uint32_t at = m->wire.n_settings++;
    snprintf(m->pair_text[at], sizeof m->pair_text[at],
             m->n_buffers > 0 ? "%u, hash %016" PRIx64 : "none", m->n_buffers, all);
    m->pair[at] = (wire_pair){"tensors with PEN_BUFFER", m->pair_text[at]};
}

pen_status model_freeze(model *m, const worker_settings *s, const char *mode, const char *sync,
                        pen_error *why)
{
    static const char *const agreed[] = {"commit",
                                         "deterministic",
                                         "seed",
                                         "clip",
                                         "skip",
                                         "steps",
                                         "park_bytes_max",
                                         "resume",
                                         "fresh",
                                         "snapshot_every",
                                         "on_worker_loss",
                                         "two_level",
                                         "buffers",
                                         "accum",
                                         "accum_reduce",
                                         "reduce_bucket",
                                         "bucket_first_bytes",
                                         "bucket_bytes",
                                         "coll_algorithm",
                                         "coll_lanes",
                                         "wrap",
                                         "wrap_match",
                                         "wrap_min_params",
                                         "prefetch_backward",
                                         "prefetch_forward",
                                         "prefetch_bucket",
                                         "persistence_threshold",
                                         "max_live",
                                         "max_reuse"};
    if (m->n_tensors + m->n_tables == 0)
        return why_set(why, PEN_WRONG_STATE,
                       "no tensor is registered; the order is: register, then commit, then step");
    m->wire_tensors = calloc((size_t)m->n_tensors + m->n_tables, sizeof *m->wire_tensors);
    m->wire_groups  = calloc(m->n_groups, sizeof *m->wire_groups);
    if (m->wire_tensors == NULL || m->wire_groups == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory to commit the model");
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const pen_tensor *t = m->tensor[i];
        m->wire_tensors[i]  = t->desc;
        m->n_free += t->trained && model_rule_of(m, t) == STEP_ASYNC;
    }
    for (uint32_t i = 0; i < m->n_tables; i++)
        m->wire_tensors[m->n_tensors + i] = m->table[i]->desc;
    pen_status status = freeze_groups(m, why);
    if (status == PEN_OK) status = check_overlap(m, why);
    if (status != PEN_OK) return status;
    notice_memory_of_program(m);

    m->pair[m->wire.n_settings++] = (wire_pair){"mode", mode};
    m->pair[m->wire.n_settings++] = (wire_pair){"sync", sync};
    for (size_t i = 0; i < sizeof agreed / sizeof agreed[0]; i++) add_pair(m, s, agreed[i]);
    add_buffers(m);
    m->wire.n_tensors = m->n_tensors + m->n_tables;
    m->wire.n_groups  = m->n_groups;
    m->wire.tensor    = m->wire_tensors;
    m->wire.group     = m->wire_groups;
    m->wire.setting   = m->pair;
    m->is_frozen      = true;
    return PEN_OK;
}

/* ---- units: which values are fetched and dropped, and their initial values ------------------- */
/* Values of other groups than decided ones always stay: they arrive with the answer to each push. */
static bool stays(const model *m, const pen_tensor *t)
{
    const bool is_moving = t->ctx->stage == 3 && t->holds_param &&
                           t->elements >= t->ctx->settings.persistence_threshold;
    return !is_moving || (t->trained && model_rule_of(m, t) != STEP_TWO_PHASE);
}

pen_status model_make_units(model *m, const worker_settings *s, pen_error *why)
{
    const unit_rules rules = {(unit_wrap)s->wrap, s->wrap_match, s->wrap_min_params};
    unit_tensor *tensor    = calloc(m->n_tensors, sizeof *tensor);
    if (tensor == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the units of %u tensors", m->n_tensors);
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        pen_tensor *t = m->tensor[i];
        t->stays      = stays(m, t);
        tensor[i]     = (unit_tensor){.name     = t->name,
                                      .label    = t->unit,
                                      .elements = t->elements,
                                      .bytes    = t->bytes,
                                      .is_tied  = t->next_alias != NULL,
                                      .stays    = t->stays};
    }
    pen_status status = units_make(&m->units, m->group[0]->ctx, tensor, m->n_tensors, &rules, why);
    free(tensor);
    return status;
}

void model_forget_init(model *m)
{
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        m->tensor[i]->has_init  = false;
        m->tensor[i]->desc.init = "";
    }
}

/* Every rank makes the values that stay; then rank 0 sends its own, unless all have init strings. */
pen_status model_first_values(model *m, pen_error *why)
{
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        pen_tensor *t = m->tensor[i];
        if (t->stays && param_memory(t, why) != PEN_OK) return why->status;
        if (t->param != NULL) (void)param_memory_init_as_is(t, 0, t->elements, t->param);
    }
    return PEN_OK;
}
