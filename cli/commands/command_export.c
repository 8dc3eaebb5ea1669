/* command_export.c - `penstock export` and `penstock import`: parameters to and from safetensors files. */
#include "cli/command.h"
#include "common/base/why.h"
#include "common/snapshot/safetensors.h"
#include "proto/snapshot_part.h"
#include "common/snapshot/store.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { PIECE = 1 << 20 }; /* elements moved at a time: 4 MiB */

typedef struct {
    char store[CONFIG_TEXT_BYTES], out[CONFIG_TEXT_BYTES];
    int64_t step;
    int format;
} port_settings;

static const char *const formats[] = {"safetensors", NULL};

/* clang-format off */
static const config_row export_rows[] = {
    {"format", CONFIG_ENUM, offsetof(port_settings, format), "safetensors", 0, 0, formats, "File format."},
    {"store", CONFIG_TEXT, offsetof(port_settings, store), "", 0, 0, NULL, "Snapshot directory to read."},
    {"step", CONFIG_I64, offsetof(port_settings, step), "-1", -1, 9e15, NULL, "Step of the snapshot; -1: the newest complete one."},
    {"out", CONFIG_TEXT, offsetof(port_settings, out), "", 0, 0, NULL, "File to write; it appears only when complete."},
    {0},
};
static const config_row import_rows[] = {
    {"store", CONFIG_TEXT, offsetof(port_settings, store), "", 0, 0, NULL, "Snapshot directory to create; must not contain snapshots."},
    {0},
};
/* clang-format on */

/* ---- export ---------------------------------------------------------------------------------- */
/* Without tables by key, whose rows are not one array. */
static safetensors_row *rows_of(const store_manifest *m, uint32_t *n)
{
    safetensors_row *rows = calloc(m->n_tensors + 1, sizeof *rows);
    *n                    = 0;
    for (uint32_t t = 0; rows != NULL && t < m->n_tensors; t++) {
        const store_tensor *from = &m->tensor[t];
        if (describe_is_table(from)) continue;
        safetensors_row *to = &rows[(*n)++];
        *to = (safetensors_row){.name = from->name, .ndim = from->ndim, .elements = from->elements};
        memcpy(to->shape, from->shape, sizeof to->shape);
    }
    return rows;
}

typedef struct {
    store_reader *reader;
    const store_manifest *manifest;
    const safetensors_row *rows;
} exported;

static pen_status read_kept(void *user, size_t row, uint64_t start, size_t count, float *values,
                            pen_error *why)
{
    const exported *e = user;
    return store_read(e->reader, e->manifest->step, e->rows[row].name, "param", start, count,
                      values, why);
}

static pen_status export_step(store_reader *r, int64_t step, const char *path, uint32_t *n,
                              pen_error *why)
{
    const store_manifest *m;
    char steps[24], applied[24];
    pen_status status = store_reader_manifest(r, step, &m, why);
    if (status != PEN_OK) return status;
    safetensors_row *rows = rows_of(m, n);
    if (rows == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to export");
    snprintf(steps, sizeof steps, "%" PRId64, m->step);
    snprintf(applied, sizeof applied, "%" PRId64, m->applied);
    const char *const words[] = {
        "format", "pt", "penstock_job", m->job, "penstock_step", steps, "penstock_applied",
        applied,  NULL};
    exported e = {r, m, rows};
    status     = safetensors_write(path, rows, *n, words, read_kept, &e, why);
    free(rows);
    return status;
}

int command_export(int argc, char **argv)
{
    port_settings s;
    store_reader *r;
    pen_error why;
    int64_t step;
    uint32_t n     = 0;
    const int code = command_settings(
        export_rows, &s, argc, argv,
        "usage: penstock export [--format safetensors] --store DIR [--step N] --out FILE", NULL);
    if (code >= 0) return code;
    if (s.store[0] == '\0') return command_fail(EXIT_USAGE, "missing --store DIR");
    if (s.out[0] == '\0') return command_fail(EXIT_USAGE, "missing --out FILE");
    if (store_reader_open(s.store, &r, &why) != PEN_OK) return command_fail(1, "%s", why.text);
    pen_status status = command_choose_step(r, s.store, s.step, &step, &why);
    if (status == PEN_OK) status = export_step(r, step, s.out, &n, &why);
    store_reader_close(r);
    if (status != PEN_OK) return command_fail(1, "%s", why.text);
    printf("wrote %u tensors of step %" PRId64 " to %s\n", n, step, s.out);
    return 0;
}

/* ---- import ---------------------------------------------------------------------------------- */
static pen_status check_empty(const char *dir, pen_error *why)
{
    store_reader *r;
    pen_status status = store_reader_open(dir, &r, why);
    if (status != PEN_OK) return status;
    if (store_reader_list(r, NULL, 0) > 0)
        status =
            why_set(why, PEN_WRONG_STATE,
                    "%s already contains snapshots; use an empty directory, or remove them", dir);
    store_reader_close(r);
    return status;
}

static pen_status import_values(safetensors_reader *from, const safetensors_row *rows, size_t n,
                                store *to, pen_error *why)
{
    float *piece      = malloc(PIECE * sizeof *piece);
    pen_status status = PEN_OK;
    if (piece == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to import");
    for (size_t t = 0; t < n; t++)
        for (uint64_t at = 0; at < rows[t].elements && status == PEN_OK; at += PIECE) {
            const uint64_t left = rows[t].elements - at, count = left < PIECE ? left : PIECE;
            status = safetensors_read(from, &rows[t], at, count, piece, why);
            if (status == PEN_OK)
                status = store_put(to, rows[t].name, "param", at, count, piece, why);
        }
    free(piece);
    return status;
}

static pen_status import_into(safetensors_reader *from, const char *file, store *to, pen_error *why)
{
    size_t n = 0;
    uint64_t id;
    const safetensors_row *rows = safetensors_rows(from, &n);
    const char *slash           = strrchr(file, '/');
    store_tensor *tensors       = calloc(n, sizeof *tensors);
    if (tensors == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to import");
    for (size_t t = 0; t < n; t++) {
        tensors[t] = (store_tensor){.name     = rows[t].name,
                                    .elements = rows[t].elements,
                                    .optim    = "",
                                    .dtype    = PEN_F32,
                                    .ndim     = rows[t].ndim};
        memcpy(tensors[t].shape, rows[t].shape, sizeof tensors[t].shape);
    }
    if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id) id = n;
    const store_manifest m = {.id        = id,
                              .job       = slash != NULL ? slash + 1 : file,
                              .is_import = true,
                              .n_tensors = (uint32_t)n,
                              .tensor    = tensors};
    pen_status status      = store_begin(to, &m, why);
    free(tensors);
    if (status == PEN_OK) status = import_values(from, rows, n, to, why);
    return status == PEN_OK ? store_commit(to, why) : status;
}

static pen_status import_file(const char *file, const char *dir, size_t *n, pen_error *why)
{
    safetensors_reader *from;
    store *to;
    pen_status status = safetensors_open(file, &from, why);
    if (status != PEN_OK) return status;
    (void)safetensors_rows(from, n);
    status = check_empty(dir, why);
    if (status == PEN_OK) status = store_open(dir, 0, &to, why);
    if (status == PEN_OK) {
        status = import_into(from, file, to, why);
        store_close(to);
    }
    safetensors_close(from);
    return status;
}

int command_import(int argc, char **argv)
{
    port_settings s;
    pen_error why;
    size_t n = 0;
    int rest, first = argc > 1 && argv[1][0] != '-'; /* the file may come before the flags */
    const int code = command_settings(import_rows, &s, argc - first, argv + first,
                                      "usage: penstock import FILE --store DIR", &rest);
    if (code >= 0) return code;
    rest += first;
    const char *file = first ? argv[1] : rest < argc ? argv[rest++] : NULL;
    if (file == NULL)
        return command_fail(EXIT_USAGE, "missing FILE; use penstock import FILE --store DIR");
    if (rest < argc) return command_fail(EXIT_USAGE, "unexpected argument '%s'", argv[rest]);
    if (s.store[0] == '\0') return command_fail(EXIT_USAGE, "missing --store DIR");
    if (import_file(file, s.store, &n, &why) != PEN_OK) return command_fail(1, "%s", why.text);
    printf("imported %zu tensors into %s as step 0, with new optimizer state; start from them with "
           "penstock run --store %s --resume\n",
           n, s.store, s.store);
    return 0;
}
