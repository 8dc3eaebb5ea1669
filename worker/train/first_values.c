/* first_values.c - first values of a job without servers. */
#include "worker/train/first_values.h"

#include "common/base/why.h"

pen_status first_values_check(const model *m, pen_error *why)
{
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i]->trained && model_rule_of(m, m->tensor[i]) == STEP_ASYNC)
            return why_set(why, PEN_UNSUPPORTED,
                           "'%s' is in group '%s' with sync=%s, which needs servers; use sync=bsp, "
                           "or a mode with servers",
                           m->tensor[i]->name, m->group[m->tensor[i]->desc.group]->name,
                           m->group[m->tensor[i]->desc.group]->sync);
    return PEN_OK;
}

pen_status first_values_spread(group_calls *t, const bool *sharded_out, pen_error *why)
{
    const model *m = &t->ctx->model;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const pen_tensor *x = m->tensor[i];
        if ((sharded_out != NULL && sharded_out[i]) || x->has_init) continue;
        if (group_calls_broadcast(t, x->param, x->bytes, x->name, why) != PEN_OK)
            return why->status;
    }
    return PEN_OK;
}
