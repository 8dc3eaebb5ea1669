/* export_read.c - parameters from a safetensors file, by name. */
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/tensor/export.h"
#include "worker/tensor/param_memory.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/compute/simd/simd.h"
#include "common/snapshot/safetensors.h"
#include "proto/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_BYTES = 200 };

typedef struct { /* "'a', 'b' and others", as many as fit */
    char text[NAMES_BYTES];
    size_t used;
    uint32_t n;
    const char *more; /* "", or " and others" */
} names;

static void add_name(names *all, const char *name)
{
    const int n = snprintf(all->text + all->used, NAMES_BYTES - all->used, "%s'%.60s'",
                           all->n++ > 0 ? ", " : "", name);
    if (n > 0 && all->used + (size_t)n < NAMES_BYTES) {
        all->used += (size_t)n;
        return;
    }
    all->text[all->used] = '\0';
    all->more            = " and others";
}

static const safetensors_row *find_row(const safetensors_row *rows, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

/* Tensors, then buffers. */
static pen_tensor *nth(const model *m, uint32_t i)
{
    return i < m->n_tensors ? m->tensor[i] : m->buffer[i - m->n_tensors];
}

static bool is_registered(const model *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_tensors + m->n_buffers; i++)
        if (strcmp(nth(m, i)->name, name) == 0) return true;
    for (uint32_t i = 0; i < m->n_aliases; i++) /* a second name of a tensor that is read anyway */
        if (strcmp(m->alias[i]->name, name) == 0) return true;
    return false;
}

static pen_status check_names(const model *m, const char *path, const safetensors_row *rows,
                              size_t n, pen_error *why)
{
    const uint32_t all = m->n_tensors + m->n_buffers;
    names missing = {.more = ""}, surplus = {.more = ""};
    for (uint32_t i = 0; i < all; i++)
        if (find_row(rows, n, nth(m, i)->name) == NULL) add_name(&missing, nth(m, i)->name);
    for (size_t i = 0; i < n; i++)
        if (!is_registered(m, rows[i].name)) add_name(&surplus, rows[i].name);
    if (missing.n > 0)
        return why_set(why, PEN_NOT_FOUND,
                       "%.200s lacks %u of %u tensors: %s%s; it has %u that the program does not "
                       "register%s%s%s; nothing was imported",
                       path, missing.n, all, missing.text, missing.more, surplus.n,
                       surplus.n > 0 ? ": " : "", surplus.text, surplus.more);
    if (surplus.n > 0)
        log_notice("ignored %u tensors of %s that the program does not register: %s%s", surplus.n,
                   path, surplus.text, surplus.more);
    return PEN_OK;
}

static pen_status check_shape(const pen_tensor *t, const safetensors_row *row, const char *path,
                              pen_error *why)
{
    const bool same =
        row->elements == t->elements && row->ndim == t->desc.ndim &&
        memcmp(row->shape, t->desc.shape, (size_t)row->ndim * sizeof row->shape[0]) == 0;
    if (same) return PEN_OK;
    return why_set(why, PEN_MISMATCH,
                   "'%s' has another shape in %.200s: %llu elements in %d dimensions there, %llu "
                   "in %d here; nothing was imported",
                   t->name, path, (unsigned long long)row->elements, row->ndim,
                   (unsigned long long)t->elements, t->desc.ndim);
}

static pen_status check_type(const pen_tensor *t, const safetensors_row *row, const char *path,
                             pen_error *why)
{
    if ((t->desc.flags & PEN_BUFFER) == 0 || row->dtype == safetensors_dtype_of(t->desc.dtype))
        return PEN_OK;
    return why_set(why, PEN_MISMATCH,
                   "the buffer '%s' has another type in %.200s than %s; nothing was imported",
                   t->name, path, plan_dtype_name(t->desc.dtype));
}

static pen_status read_tensor(safetensors_reader *r, const safetensors_row *row, pen_tensor *t,
                              float *piece, pen_error *why)
{
    const size_t width = t->desc.dtype == PEN_F32 ? 4 : 2;
    if (param_memory(t, why) != PEN_OK) return why->status;
    if ((t->desc.flags & PEN_BUFFER) != 0) return safetensors_read_row(r, row, t->param, why);
    char *to          = t->param;
    pen_status status = PEN_OK;
    for (uint64_t at = 0; at < t->elements && status == PEN_OK; at += SAFETENSORS_PIECE) {
        const uint64_t left = t->elements - at;
        const size_t n      = left < SAFETENSORS_PIECE ? (size_t)left : SAFETENSORS_PIECE;
        status              = safetensors_read(r, row, at, n, piece, why);
        if (status == PEN_OK) simd()->encode(to + at * width, piece, t->desc.dtype, n);
    }
    return status == PEN_OK ? device_copies_changed_one(t, why) : status;
}

static pen_status read_all(pen_ctx *ctx, const char *path, safetensors_reader *r, pen_error *why)
{
    size_t n;
    const model *m              = &ctx->model;
    const safetensors_row *rows = safetensors_rows(r, &n);
    pen_status status           = check_names(m, path, rows, n, why);
    for (uint32_t i = 0; i < m->n_tensors + m->n_buffers && status == PEN_OK; i++) {
        const safetensors_row *row = find_row(rows, n, nth(m, i)->name);
        status                     = check_shape(nth(m, i), row, path, why);
        if (status == PEN_OK) status = check_type(nth(m, i), row, path, why);
    }
    if (status != PEN_OK) return status;
    float *piece = malloc(SAFETENSORS_PIECE * sizeof *piece);
    if (piece == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to import %.200s", path);
    for (uint32_t i = 0; i < m->n_tensors + m->n_buffers && status == PEN_OK; i++)
        status = read_tensor(r, find_row(rows, n, nth(m, i)->name), nth(m, i), piece, why);
    free(piece);
    return status;
}

pen_status export_read(pen_ctx *ctx, const char *path, pen_error *why)
{
    safetensors_reader *r;
    pen_status status = safetensors_open(path, &r, why);
    if (status != PEN_OK) return status;
    status = read_all(ctx, path, r, why);
    safetensors_close(r);
    return status;
}
