/* model_unit.c - which values of a model are fetched and dropped, in which units, and their initial values. */
#include "common/base/why.h"
#include "worker/context.h"
#include "worker/tensor/model.h"
#include "worker/tensor/param_memory.h"

#include <stdlib.h>

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
