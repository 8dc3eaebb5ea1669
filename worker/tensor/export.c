/* export.c - writes the parameters as a safetensors file. */
#include "worker/tensor/export.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/compute/simd/simd.h"
#include "common/snapshot/safetensors.h"
#include "worker/tensor/unit_use.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- formats ----------------------------------------------------------------------- */
static const char *const dtype_choices[] = {"as-is", "f32", "f16", "bf16", NULL};
static const config_row words[]          = {
             {"dtype", CONFIG_ENUM, 0, "as-is", 0, 0, dtype_choices, "Type of the values in the file."},
             {0}};

pen_status export_parse(const char *format, export_dtype *as, pen_error *why)
{
    static const char kind[] = "safetensors";
    const size_t n           = strcspn(format, " ");
    int chosen               = 0;
    if (n != sizeof kind - 1 || memcmp(format, kind, n) != 0)
        return why_set(
            why, PEN_BAD_SETTING,
            "there is no format '%.*s'; known is \"safetensors\", with dtype=f32, f16 or "
            "bf16 behind it",
            (int)(n < 64 ? n : 64), format);
    const pen_status status = config_from_words(words, &chosen, format + n, why);
    *as                     = (export_dtype)chosen;
    return status;
}

static pen_dtype type_of(const pen_ctx *ctx, const pen_tensor *t, export_dtype as)
{
    if (as == EXPORT_F32) return PEN_F32;
    if (as == EXPORT_F16) return PEN_F16;
    if (as == EXPORT_BF16) return PEN_BF16;
    if (as == EXPORT_AS_IT_IS || t->desc.dtype != PEN_F32) return t->desc.dtype;
    return ctx->settings.precision == PRECISION_FP16 ? PEN_F16 : PEN_BF16;
}

/* ---- writing --------------------------------------------------------------------------------- */
typedef struct {
    safetensors_writer *writer; /* NULL: not on this rank, or failed */
    float *piece;
    pen_error failure; /* of the disk; status OK: none */
} exporting;

static safetensors_row *rows_of(const pen_ctx *ctx, export_dtype as)
{
    const model *m        = &ctx->model;
    const uint32_t n      = m->n_tensors + m->n_buffers;
    safetensors_row *rows = calloc((size_t)n + 1, sizeof *rows);
    for (uint32_t i = 0; rows != NULL && i < n; i++) {
        const bool is_buffer = i >= m->n_tensors; /* they keep their type */
        const pen_tensor *t  = is_buffer ? m->buffer[i - m->n_tensors] : m->tensor[i];
        const pen_dtype type = is_buffer ? t->desc.dtype : type_of(ctx, t, as);
        rows[i]              = (safetensors_row){.name     = t->name,
                                                 .dtype    = safetensors_dtype_of(type),
                                                 .ndim     = t->desc.ndim,
                                                 .elements = t->elements};
        memcpy(rows[i].shape, t->desc.shape, sizeof rows[i].shape);
    }
    return rows;
}

static pen_status begin_file(exporting *e, pen_ctx *ctx, const char *path, export_dtype as)
{
    char step[24], applied[24];
    safetensors_row *rows = rows_of(ctx, as);
    e->piece              = malloc(SAFETENSORS_PIECE * sizeof *e->piece);
    if (rows == NULL || e->piece == NULL) {
        free(rows);
        return why_set(&e->failure, PEN_NO_MEMORY, "no memory to export");
    }
    snprintf(step, sizeof step, "%" PRId64, ctx->step.next_index);
    snprintf(applied, sizeof applied, "%" PRId64, ctx->step.applied);
    const char *const metadata[] = {
        "format", "pt", "penstock_job", ctx->job, "penstock_step", step, "penstock_applied",
        applied,  NULL};
    const pen_status status =
        safetensors_create(path, rows, (size_t)ctx->model.n_tensors + ctx->model.n_buffers,
                           metadata, &e->writer, &e->failure);
    free(rows);
    return status;
}

/* Continues after a failure of the disk, because other ranks take part in gathering the values. */
static pen_status append(pen_tensor *t, void *user, pen_error *why)
{
    exporting *e       = user;
    const size_t width = t->desc.dtype == PEN_F32 ? 4 : 2;
    (void)why;
    if (e->writer == NULL) return PEN_OK;
    for (uint64_t at = 0; at < t->elements && e->failure.status == PEN_OK;
         at += SAFETENSORS_PIECE) {
        const uint64_t left = t->elements - at;
        const size_t n      = left < SAFETENSORS_PIECE ? (size_t)left : SAFETENSORS_PIECE;
        simd()->decode(e->piece, (const char *)t->param + at * width, t->desc.dtype, n);
        (void)safetensors_append(e->writer, e->piece, n, &e->failure);
    }
    return PEN_OK;
}

static pen_status end_file(exporting *e, pen_status status, pen_error *why)
{
    if (status == PEN_OK && e->failure.status != PEN_OK) {
        *why   = e->failure;
        status = why->status;
    }
    if (e->writer == NULL) return status;
    if (status == PEN_OK) return safetensors_finish(e->writer, why);
    safetensors_abandon(e->writer);
    return status;
}

pen_status export_write(pen_ctx *ctx, const char *path, export_dtype as, pen_error *why)
{
    const model *m    = &ctx->model;
    const bool writes = ctx->world->rank == 0;
    bool is_all_here  = true;
    exporting e       = {0};
    for (uint32_t i = 0; i < m->n_tensors; i++) is_all_here &= m->tensor[i]->stays;
    if (!writes && is_all_here) return PEN_OK;
    if (writes) (void)begin_file(&e, ctx, path, as);
    pen_status status = unit_each_tensor(ctx, append, &e, why);
    for (uint32_t i = 0; i < m->n_buffers && e.writer != NULL && e.failure.status == PEN_OK; i++)
        (void)safetensors_append_row(e.writer, m->buffer[i]->param, &e.failure);
    status = end_file(&e, status, why);
    free(e.piece);
    return status;
}

/* ---- beside snapshots ------------------------------------------------------------------------ */
#define BESIDE_NAME "weights-%" PRId64 ".safetensors"

static int by_number(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static bool is_beside(const char *name, int64_t *step)
{
    char again[64];
    if (sscanf(name, "weights-%" SCNd64, step) != 1) return false;
    snprintf(again, sizeof again, BESIDE_NAME, *step);
    return strcmp(name, again) == 0;
}

/* Removes all but the newest `keep`; nothing if the folder cannot be read. */
static void forget_old(const char *folder, size_t keep)
{
    int64_t steps[256], step;
    size_t n             = 0;
    DIR *d               = opendir(folder);
    struct dirent *entry = NULL;
    while (d != NULL && n < sizeof steps / sizeof *steps && (entry = readdir(d)) != NULL)
        if (is_beside(entry->d_name, &step)) steps[n++] = step;
    if (d != NULL) closedir(d);
    qsort(steps, n, sizeof *steps, by_number);
    for (size_t i = 0; i + keep < n; i++) {
        char path[CONFIG_TEXT_BYTES + 64];
        snprintf(path, sizeof path, "%s/" BESIDE_NAME, folder, steps[i]);
        if (unlink(path) != 0) log_warning("cannot remove the old file %s: %m", path);
    }
}

pen_status export_beside(pen_ctx *ctx, int64_t step, pen_error *why)
{
    char path[CONFIG_TEXT_BYTES + 64];
    const worker_settings *s = &ctx->settings;
    snprintf(path, sizeof path, "%s/" BESIDE_NAME, s->store, step);
    const pen_status status = export_write(ctx, path, EXPORT_16_BITS, why);
    if (status == PEN_OK && ctx->world->rank == 0) forget_old(s->store, (size_t)s->snapshot_keep);
    return status;
}
