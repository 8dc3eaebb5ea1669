/* describe.c - rows of a snapshot's manifest from what workers register. */
#include "proto/describe.h"

#include "common/compute/optim/optim.h"
#include "proto/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void describe_model(const wire_model *model, store_tensor *rows)
{
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const wire_tensor *tensor = &model->tensor[t];
        const char *given = model->group[tensor->group].optim, *words = given != NULL ? given : "";
        const optim_ops *optim = NULL;
        optim_hyper unused;
        rows[t] = (store_tensor){.name     = tensor->name,
                                 .elements = plan_tensor_elements(tensor),
                                 .optim    = words,
                                 .dtype    = (int32_t)tensor->dtype,
                                 .ndim     = tensor->ndim};
        memcpy(rows[t].shape, tensor->shape, sizeof rows[t].shape);
        if (plan_is_table(tensor)) {
            rows[t].dtype = PEN_DTYPE_DEFAULT;
            rows[t].ndim  = 1;
        }
        if (tensor->flags & PEN_FROZEN || optim_parse(words, &optim, &unused, NULL) != PEN_OK)
            continue;
        rows[t].slots = optim->slot_count;
        for (int k = 0; k < optim->slot_count; k++) rows[t].slot_names[k] = optim->slot_names[k];
    }
}

const char *describe_rows(char name[STORE_NAME_BYTES], const char *table, uint64_t part,
                          const uint32_t *block)
{
    const int n = snprintf(name, STORE_NAME_BYTES, "rows/%.127s/%" PRIu64, table, part);
    if (block != NULL) snprintf(name + n, STORE_NAME_BYTES - (size_t)n, "/%" PRIu32, *block);
    return name;
}
