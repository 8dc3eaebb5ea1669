#include "scheduler/keep.h"
#include <stdlib.h>
#include <string.h>

struct keep_block {
    struct keep_block *next;
    max_align_t data[];
};

void keep_clear(keep *self)
{
    while (self->first) {
        struct keep_block *next = self->first->next;
        free(self->first);
        self->first = next;
    }
}

void *keep_bytes(keep *self, const void *data, size_t bytes)
{
    struct keep_block *block = malloc(sizeof *block + (bytes ? bytes : 1));
    if (!block) return NULL;

    block->next = self->first;
    self->first = block;
    if (bytes) memcpy(block->data, data, bytes);
    return block->data;
}

char *keep_text(keep *self, const char *text)
{
    if (!text) text = "";
    return keep_bytes(self, text, strlen(text) + 1);
}

const char *const *keep_texts(keep *self, const char *const *texts, uint32_t n)
{
    const char **copy = keep_bytes(self, texts, n * sizeof *texts);
    for (uint32_t i = 0; copy && i < n; i++)
        if (!(copy[i] = keep_text(self, texts[i]))) return NULL;
    return copy;
}

static bool keep_tensors(keep *self, const wire_model *model, wire_model *copy)
{
    wire_tensor *tensor = keep_bytes(self, model->tensor, model->n_tensors * sizeof *tensor);
    for (uint32_t i = 0; tensor && i < model->n_tensors; i++) {
        tensor[i].name = keep_text(self, tensor[i].name);
        tensor[i].init = keep_text(self, tensor[i].init);
        if (!tensor[i].name || !tensor[i].init) return false;
    }
    copy->tensor    = tensor;
    copy->n_tensors = model->n_tensors;
    return tensor != NULL;
}

static bool keep_groups(keep *self, const wire_model *model, wire_model *copy)
{
    wire_group *group = keep_bytes(self, model->group, model->n_groups * sizeof *group);
    for (uint32_t i = 0; group && i < model->n_groups; i++) {
        const char **texts[] = {&group[i].name, &group[i].optim, &group[i].sync, &group[i].wire,
                                &group[i].schedule};
        for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
            if (!(*texts[t] = keep_text(self, *texts[t]))) return false;
    }
    copy->group    = group;
    copy->n_groups = model->n_groups;
    return group != NULL;
}

static bool keep_settings(keep *self, const wire_model *model, wire_model *copy)
{
    wire_pair *pair = keep_bytes(self, model->setting, model->n_settings * sizeof *pair);
    for (uint32_t i = 0; pair && i < model->n_settings; i++) {
        pair[i].key   = keep_text(self, pair[i].key);
        pair[i].value = keep_text(self, pair[i].value);
        if (!pair[i].key || !pair[i].value) return false;
    }
    copy->setting    = pair;
    copy->n_settings = model->n_settings;
    return pair != NULL;
}

bool keep_model(keep *self, const wire_model *model, wire_model *copy)
{
    wire_model made = {0};
    if (!keep_tensors(self, model, &made)) return false;
    if (!keep_groups(self, model, &made)) return false;
    if (!keep_settings(self, model, &made)) return false;
    *copy = made;
    return true;
}
