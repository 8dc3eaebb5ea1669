/* model_check.c - checks of what a program registers. */
#include "common/base/utf8.h"
#include "common/base/why.h"
#include "worker/tensor/model.h"

#include <string.h>

pen_status model_check_reserved(const uint64_t *reserved, int n, const char *type, pen_error *why)
{
    for (int i = 0; i < n; i++)
        if (reserved[i] != 0)
            return why_set(why, PEN_INVALID_ARGUMENT,
                           "%s has garbage in reserved[%d]; initialise it with {0}", type, i);
    return PEN_OK;
}

static bool has_name(pen_tensor *const *all, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(all[i]->name, name) == 0) return true;
    return false;
}

pen_status model_check_name(const model *m, const char *name, const char *what, pen_error *why)
{
    if (name == NULL || name[0] == '\0')
        return why_set(why, PEN_INVALID_ARGUMENT, "a %s needs a name", what);
    if (!utf8_is_clean(name))
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "invalid %s name; expected UTF-8 without control characters", what);
    if (strlen(name) >= 128)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "'%.40s...': the name is too long; at most 127 bytes are allowed", name);
    bool is_there = has_name(m->tensor, m->n_tensors, name) ||
                    has_name(m->alias, m->n_aliases, name) ||
                    has_name(m->buffer, m->n_buffers, name);
    for (uint32_t i = 0; i < m->n_tables; i++) is_there |= strcmp(m->table[i]->name, name) == 0;
    if (!is_there) return PEN_OK;
    return why_set(why, PEN_INVALID_ARGUMENT, "'%s' is registered twice", name);
}
