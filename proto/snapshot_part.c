/* snapshot_part.c - opens, begins and ends a part; compares a kept model with the present one. */
#include "proto/snapshot_part.h"

#include "common/base/why.h"
#include "common/compute/optim/optim.h"
#include "proto/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t snapshot_id(uint64_t run, int64_t step)
{
    return run * 0x9e3779b97f4a7c15u + (uint64_t)step;
}

pen_status part_writer_open(part_writer *w, pen_error *why)
{
    if (w->store != NULL) return PEN_OK;
    pen_status status = store_open(w->dir, w->rank, &w->store, why);
    if (status != PEN_OK || w->is_settled || w->restored < 0) return status;
    status        = store_forget_after(w->store, w->restored, why);
    w->is_settled = status == PEN_OK;
    return status;
}

pen_status part_writer_begin(part_writer *w, const wire_model *model, const store_manifest *head,
                             pen_error *why)
{
    store_manifest all     = *head;
    store_setting *setting = calloc(model->n_settings + 1, sizeof *setting);
    pen_status status      = part_writer_open(w, why);
    w->row                 = calloc(model->n_tensors + 1, sizeof *w->row);
    if (status == PEN_OK && (w->row == NULL || setting == NULL))
        status = why_set(why, PEN_NO_MEMORY, "no memory for the manifest of a snapshot");
    if (status == PEN_OK) {
        describe_model(model, w->row);
        for (uint32_t i = 0; i < model->n_settings; i++)
            setting[i] = (store_setting){model->setting[i].key, model->setting[i].value};
        all.n_tensors  = model->n_tensors;
        all.tensor     = w->row;
        all.n_settings = model->n_settings;
        all.setting    = setting;
        status         = store_begin(w->store, &all, why);
    }
    free(setting);
    return status;
}

pen_status part_writer_end(part_writer *w, pen_status status, pen_error *why)
{
    if (status == PEN_OK) status = store_commit(w->store, why);
    free(w->row);
    w->row = NULL;
    if (status == PEN_OK) return PEN_OK;
    store_close(w->store);
    w->store = NULL;
    return status;
}

pen_status snapshot_is_of(const store_manifest *kept, const wire_model *model, const char *dir,
                          pen_error *why)
{
    store_tensor *rows = calloc(model->n_tensors + 1, sizeof *rows);
    if (rows == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to compare a snapshot");
    describe_model(model, rows);
    const store_manifest wanted = {.n_tensors = model->n_tensors, .tensor = rows};
    const pen_status status     = store_compare(kept, &wanted, dir, why);
    free(rows);
    return status;
}

/* ---- rows of a manifest ---------------------------------------------------------------------- */
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
