/* stack.c - registers slices, finds them, and puts them in the order of layers. */
#include "worker/tensor/stack.h"

#include "common/base/why.h"
#include "common/containers/arrays.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NAME_BYTES = 160
}; /* longer names than a tensor may have are refused by model_add_tensor() */

/* "h.{}.w" is "h.3.w", "w" is "w.3". */
static void name_slice(const char *pattern, int64_t i, char name[NAME_BYTES])
{
    const char *hole = strstr(pattern, "{}");
    if (hole != NULL)
        snprintf(name, NAME_BYTES, "%.*s%lld%s", (int)(hole - pattern), pattern, (long long)i,
                 hole + 2);
    else
        snprintf(name, NAME_BYTES, "%s.%lld", pattern, (long long)i);
}

static pen_tensor *new_stack(model *m, pen_ctx *ctx, const pen_tensor_desc *d)
{
    if (!VEC_MORE(m->stack, m->n_stacks)) return NULL;
    pen_tensor *t = calloc(1, sizeof *t);
    if (t == NULL) return NULL;
    m->stack[m->n_stacks++] = t;
    t->ctx                  = ctx;
    t->name                 = strdup(d->name);
    t->slice                = calloc((size_t)d->shape[0], sizeof(pen_tensor *));
    return t->name != NULL && t->slice != NULL ? t : NULL;
}

static void *slice_at(void *base, uint32_t i, size_t bytes)
{
    return base != NULL ? (char *)base + i * bytes : NULL;
}

pen_status stack_add(model *m, pen_ctx *ctx, const pen_tensor_desc *d, pen_tensor **stack,
                     pen_error *why)
{
    if (d->name == NULL || d->name[0] == '\0')
        return why_set(why, PEN_INVALID_ARGUMENT, "a tensor needs a name");
    if (d->ndim < 1 || d->ndim > 8)
        return why_set(
            why, PEN_INVALID_ARGUMENT,
            "'%s': invalid ndim %d; a stack has 1 to 8, of which the first counts slices", d->name,
            d->ndim);
    if (d->shape[0] < 1 || d->shape[0] > MODEL_TENSORS_MAX - (int64_t)m->n_tensors)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "'%s': invalid number of slices %lld; a model has 1 to %d tensors", d->name,
                       (long long)d->shape[0], MODEL_TENSORS_MAX);
    if (d->tied_to != NULL && (int64_t)d->tied_to->n_slices != d->shape[0])
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "'%s' is tied to '%s', which is no stack of %lld slices", d->name,
                       d->tied_to->name, (long long)d->shape[0]);
    pen_tensor *t = new_stack(m, ctx, d);
    if (t == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for another tensor");
    for (uint32_t i = 0; i < (uint64_t)d->shape[0]; i++) {
        char name[NAME_BYTES], unit[NAME_BYTES];
        const pen_tensor *first = t->slice[0];
        pen_tensor_desc one     = *d;
        name_slice(d->name, i, name);
        one.name  = name;
        one.flags = d->flags & ~PEN_STACKED;
        one.ndim  = d->ndim - 1;
        memmove(one.shape, d->shape + 1, 7 * sizeof one.shape[0]);
        if (d->unit != NULL) {
            name_slice(d->unit, i, unit);
            one.unit = unit;
        }
        if (i > 0) one.param = slice_at(d->param, i, first->bytes);
        if (i > 0) one.grad = slice_at(d->grad, i, first->grad_bytes);
        if (d->tied_to != NULL) one.tied_to = d->tied_to->slice[i];
        if (model_add_tensor(m, ctx, &one, &t->slice[i], why) != PEN_OK) return why->status;
        t->slice[i]->stack = t;
        t->n_slices        = i + 1;
    }
    if (stack != NULL) *stack = t;
    return PEN_OK;
}

pen_status stack_slices(pen_tensor *const *t, int64_t slice, const char *call, stack_part *part,
                        pen_error *why)
{
    const pen_tensor *of = *t;
    const bool is_stack = of->slice != NULL, is_whole = slice == PEN_ALL;
    const int64_t n = is_stack ? of->n_slices : 1;
    if (!is_whole && (slice < 0 || slice >= n))
        return is_stack
                   ? why_set(why, PEN_INVALID_ARGUMENT,
                             "%s('%s'): invalid slice %lld; expected 0 to %lld, or PEN_ALL", call,
                             of->name, (long long)slice, (long long)n - 1)
                   : why_set(why, PEN_INVALID_ARGUMENT,
                             "%s('%s'): invalid slice %lld; use PEN_ALL, because it is not stacked",
                             call, of->name, (long long)slice);
    *part = (stack_part){.tensor   = is_stack ? of->slice + (is_whole ? 0 : slice) : t,
                         .n        = is_whole ? (uint32_t)n : 1,
                         .is_whole = is_stack && is_whole};
    return PEN_OK;
}

/* tensor[from ..]: neighbouring stacks of one height.  Returns how many. */
static uint32_t neighbours(const model *m, uint32_t from)
{
    const pen_tensor *first = m->tensor[from]->stack;
    uint32_t n              = 0;
    for (uint32_t i = from; i < m->n_tensors; i += first->n_slices, n++)
        if (m->tensor[i]->stack == NULL || m->tensor[i]->stack->n_slices != first->n_slices) break;
    return n;
}

pen_status stack_arrange(model *m, pen_error *why)
{
    if (m->n_stacks == 0) return PEN_OK;
    pen_tensor **turn = calloc((size_t)m->n_tensors + 1, sizeof(pen_tensor *));
    uint32_t at       = 0;
    if (turn == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %u tensors", m->n_tensors);
    for (uint32_t i = 0; i < m->n_tensors; i = at) {
        const bool is_slice   = m->tensor[i]->stack != NULL;
        const uint32_t height = is_slice ? m->tensor[i]->stack->n_slices : 1;
        const uint32_t n      = is_slice ? neighbours(m, i) : 1;
        for (uint32_t layer = 0; layer < height; layer++)
            for (uint32_t k = 0; k < n; k++) turn[at++] = m->tensor[i + k * height + layer];
    }
    m->registered = m->tensor;
    m->tensor     = turn;
    for (uint32_t i = 0; i < m->n_tensors; i++) m->tensor[i]->index = i;
    for (uint32_t i = 0; i < m->n_aliases; i++) m->alias[i]->index = m->alias[i]->tied_to->index;
    return PEN_OK;
}
