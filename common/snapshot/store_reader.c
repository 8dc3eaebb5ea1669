/* store_reader.c - reading: which snapshots a store holds, whether they are complete, and any range of their values.
 *
 * Opening a store reads the manifests and the location of each value.  Values are read from the file maps on
 * demand and verified.
 */
#include "common/snapshot/store_reader.h"
#include "common/base/crc.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "common/snapshot/store_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pen_status no_memory(const store_reader *r, pen_error *why)
{
    return why_set(why, PEN_NO_MEMORY, "no memory to read the store %s", r->dir);
}

static pen_status snapshot_of(store_reader *r, int64_t step, uint64_t id, reader_snapshot **out,
                              pen_error *why)
{
    for (size_t i = 0; i < r->n_snapshots; i++) {
        if (r->snapshot[i].step != step || r->snapshot[i].id != id) continue;
        *out = &r->snapshot[i];
        return PEN_OK;
    }
    if (!VEC_MORE(r->snapshot, r->n_snapshots)) return no_memory(r, why);
    *out  = &r->snapshot[r->n_snapshots++];
    **out = (reader_snapshot){.step = step, .id = id};
    return PEN_OK;
}

/* Keeps the first trouble. */
static void spoil(reader_snapshot *s, const pen_error *why)
{
    if (s->trouble.status == PEN_OK) s->trouble = *why;
}

/* ---- one part -------------------------------------------------------------------------------- */
typedef struct {
    store_reader *reader;
    reader_snapshot *snapshot;
    size_t file;
} collecting;

static pen_status collect(store_bytes key, store_bytes value, void *user, pen_error *why)
{
    collecting *c = user;
    if (key.size != STORE_VALUE_KEY_BYTES || value.size < STORE_VALUE_HEAD_BYTES)
        return PEN_OK; /* the coverage check reports it */
    const uint8_t *at = key.data;
    if (!VEC_MORE(c->snapshot->value, c->snapshot->n_values)) return no_memory(c->reader, why);
    c->snapshot->value[c->snapshot->n_values++] =
        (reader_value){.tensor = (uint32_t)store_get_be(at + 1, 4),
                       .what   = at[5],
                       .start  = store_get_be(at + 6, 8),
                       .count  = (value.size - STORE_VALUE_HEAD_BYTES) / sizeof(float),
                       .data   = value.data,
                       .size   = value.size,
                       .file   = c->file};
    return PEN_OK;
}

static pen_status add_part(store_reader *r, size_t file, reader_snapshot *s, store_manifest *m,
                           pen_error *why)
{
    if (!VEC_MORE(s->part, s->n_parts)) {
        free(m);
        return no_memory(r, why);
    }
    s->part[s->n_parts++] = file;
    s->bytes += r->file[file].bytes;
    if (m->written_ms > s->written_ms) s->written_ms = m->written_ms;
    if (s->manifest == NULL)
        s->manifest = m;
    else
        free(m);
    collecting c = {r, s, file};
    return store_txn_walk(r->file[file].txn, (store_bytes){"V", 1}, collect, &c, why);
}

static pen_status open_file(store_reader *r, const char *path, int32_t rank, pen_error *why)
{
    if (!VEC_MORE(r->file, r->n_files)) return no_memory(r, why);
    reader_file *f = &r->file[r->n_files];
    struct stat found;
    *f = (reader_file){.rank = rank};
    if (stat(path, &found) == 0) f->bytes = (uint64_t)found.st_size;
    snprintf(f->path, sizeof f->path, "%s", path);
    pen_status status = store_env_open(path, STORE_ENV_READ, &f->env, why);
    if (status == PEN_OK) status = store_txn_begin(f->env, false, 0, &f->txn, why);
    if (status != PEN_OK)
        store_env_close(f->env);
    else
        r->n_files++;
    return status;
}

/* ---- a file ---------------------------------------------------------------------------------- */
static pen_status read_manifest(const reader_file *f, const store_file *name, store_manifest **m,
                                pen_error *why)
{
    store_bytes value;
    pen_status status = store_txn_get(f->txn, (store_bytes){"M", 1}, &value, why);
    if (status == PEN_NOT_FOUND)
        return why_set(why, PEN_CORRUPT, "%s has no manifest; move it away", f->path);
    if (status == PEN_OK) status = store_manifest_decode(value, f->path, m, why);
    if (status != PEN_OK || ((*m)->step == name->step && (*m)->id == name->id)) return status;
    status = why_set(why, PEN_CORRUPT,
                     "%s is of step %" PRId64 ", which its name denies; give its own name back",
                     f->path, (*m)->step);
    free(*m);
    return status;
}

static pen_status read_file(store_reader *r, const char *path, int32_t rank, const store_file *name,
                            reader_snapshot *s, pen_error *why)
{
    store_manifest *m;
    pen_status status = open_file(r, path, rank, why);
    if (status == PEN_OK) status = read_manifest(&r->file[r->n_files - 1], name, &m, why);
    if (status == PEN_OK) status = add_part(r, r->n_files - 1, s, m, why);
    return status;
}

/* An unreadable part affects its snapshot only; a part that was just deleted is not an error. */
static pen_status read_files(store_reader *r, const char *folder, int32_t rank, pen_error *why)
{
    store_file *files;
    size_t n;
    pen_status status = store_files_list(folder, &files, &n, why);
    if (status != PEN_OK) return status;
    for (size_t i = 0; i < n && status == PEN_OK; i++) {
        char path[STORE_PATH_BYTES], name[STORE_FILE_NAME_BYTES];
        reader_snapshot *s = NULL;
        pen_error trouble  = {0};
        store_file_name(&files[i], name);
        if (!store_files_join(path, folder, name)) continue;
        if (access(path, F_OK) != 0) continue;
        status = snapshot_of(r, files[i].step, files[i].id, &s, why);
        if (status != PEN_OK) break;
        if (read_file(r, path, rank, &files[i], s, &trouble) == PEN_OK) continue;
        if (access(path, F_OK) == 0) spoil(s, &trouble);
        if (trouble.status == PEN_NO_MEMORY) status = no_memory(r, why);
    }
    free(files);
    return status;
}

/* ---- completeness ---------------------------------------------------------------------------- */
static int by_place(const void *a, const void *b)
{
    const reader_value *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    if (x->what != y->what) return x->what < y->what ? -1 : 1;
    return (x->start > y->start) - (x->start < y->start);
}

const reader_value *store_reader_first(const reader_snapshot *s, uint32_t tensor, int what)
{
    size_t low = 0, high = s->n_values;
    while (low < high) {
        const size_t middle   = low + (high - low) / 2;
        const reader_value *v = &s->value[middle];
        if (v->tensor < tensor || (v->tensor == tensor && v->what < what))
            low = middle + 1;
        else
            high = middle;
    }
    return s->n_values > 0 ? &s->value[low] : s->value; /* an empty array has no element */
}

const reader_value *store_reader_end(const reader_snapshot *s)
{
    return s->n_values > 0 ? s->value + s->n_values : s->value;
}

/* How far the values of one tensor reach without a gap. */
static uint64_t covered(const reader_snapshot *s, uint32_t tensor, int what)
{
    uint64_t to             = 0;
    const reader_value *end = store_reader_end(s);
    for (const reader_value *v = store_reader_first(s, tensor, what);
         v < end && v->tensor == tensor && v->what == what && v->start <= to; v++)
        if (v->start + v->count > to) to = v->start + v->count;
    return to;
}

static void check_whole(const store_reader *r, reader_snapshot *s)
{
    pen_error why;
    if (s->trouble.status != PEN_OK || s->manifest == NULL) return;
    const store_manifest *m = s->manifest;
    for (uint32_t t = 0; t < m->n_tensors; t++)
        for (int what = 0; what <= m->tensor[t].slots; what++) {
            const uint64_t to = covered(s, t, what);
            if (to >= m->tensor[t].elements) continue;
            why_set(&why, PEN_NOT_FOUND,
                    "the snapshot of step %" PRId64 " in %s is not complete: %s of '%s' is missing "
                    "from element %" PRIu64 " on; a server did not finish its part",
                    s->step, r->dir, store_what_name(&m->tensor[t], what), m->tensor[t].name, to);
            spoil(s, &why);
            return;
        }
    s->is_complete = true;
}

static int by_step(const void *a, const void *b)
{
    const reader_snapshot *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    return (x->written_ms > y->written_ms) - (x->written_ms < y->written_ms);
}

static void finish(store_reader *r)
{
    for (size_t i = 0; i < r->n_snapshots; i++) {
        reader_snapshot *s = &r->snapshot[i];
        if (s->n_values > 0) qsort(s->value, s->n_values, sizeof *s->value, by_place);
        check_whole(r, s);
    }
    if (r->n_snapshots > 0) qsort(r->snapshot, r->n_snapshots, sizeof *r->snapshot, by_step);
    const reader_snapshot *later = NULL;
    for (size_t i = r->n_snapshots; i-- > 0;) {
        reader_snapshot *s = &r->snapshot[i];
        if (!s->is_complete) continue;
        s->is_superseded = later != NULL && later->step == s->step;
        later            = s;
    }
}

/* ---- opening --------------------------------------------------------------------------------- */
static pen_status read_all(store_reader *r, pen_error *why)
{
    int32_t *ranks;
    size_t n;
    pen_status status = store_files_parts(r->dir, &ranks, &n, why);
    if (status != PEN_OK) return status;
    for (size_t i = 0; i < n && status == PEN_OK; i++) {
        char folder[STORE_PATH_BYTES];
        if ((size_t)snprintf(folder, sizeof folder, "%s/part-%d", r->dir, ranks[i]) >=
            sizeof folder)
            continue;
        status = read_files(r, folder, ranks[i], why);
    }
    free(ranks);
    return status;
}

pen_status store_reader_open(const char *dir, store_reader **out, pen_error *why)
{
    store_reader *r = calloc(1, sizeof *r);
    if (r == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to read the store %s", dir);
    snprintf(r->dir, sizeof r->dir, "%s", dir);
    const pen_status status = read_all(r, why);
    if (status != PEN_OK) {
        store_reader_close(r);
        return status;
    }
    finish(r);
    *out = r;
    return PEN_OK;
}

void store_reader_close(store_reader *r)
{
    if (r == NULL) return;
    for (size_t i = 0; i < r->n_files; i++) store_env_close(r->file[i].env);
    for (size_t i = 0; i < r->n_snapshots; i++) {
        free(r->snapshot[i].manifest);
        free(r->snapshot[i].value);
        free(r->snapshot[i].part);
    }
    free(r->snapshot);
    free(r->file);
    free(r);
}

/* ---- queries --------------------------------------------------------------------------------- */
size_t store_reader_steps(store_reader *r, int64_t *steps, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_snapshots; i++) {
        if (!r->snapshot[i].is_complete || r->snapshot[i].is_superseded) continue;
        if (n < cap) steps[n] = r->snapshot[i].step;
        n++;
    }
    return n;
}

size_t store_reader_list(store_reader *r, store_entry *entries, size_t cap)
{
    for (size_t i = 0; i < r->n_snapshots && i < cap; i++) {
        const reader_snapshot *s = &r->snapshot[i];
        const store_manifest *m  = s->manifest;
        entries[i]               = (store_entry){.step          = s->step,
                                                 .written_ms    = s->written_ms,
                                                 .applied       = m != NULL ? m->applied : -1,
                                                 .id            = s->id,
                                                 .bytes         = s->bytes,
                                                 .parts         = (uint32_t)s->n_parts,
                                                 .format        = m != NULL ? m->format : 0,
                                                 .n_tensors     = m != NULL ? m->n_tensors : 0,
                                                 .is_complete   = s->is_complete,
                                                 .is_superseded = s->is_superseded,
                                                 .is_import     = m != NULL && m->is_import,
                                                 .job           = m != NULL ? m->job : "",
                                                 .version       = m != NULL ? m->version : "",
                                                 .trouble       = s->is_complete ? NULL : &s->trouble};
    }
    return r->n_snapshots;
}

pen_status store_reader_trouble(store_reader *r, pen_error *why)
{
    for (size_t i = r->n_snapshots; i-- > 0;) {
        const reader_snapshot *s = &r->snapshot[i];
        if (s->is_complete) return PEN_OK;
        if (s->trouble.status == PEN_NOT_FOUND) continue;
        if (why != NULL) *why = s->trouble;
        return s->trouble.status;
    }
    return PEN_OK;
}

pen_status store_reader_find(const store_reader *r, int64_t step, const reader_snapshot **out,
                             pen_error *why)
{
    const reader_snapshot *part = NULL;
    for (size_t i = 0; i < r->n_snapshots; i++) {
        const reader_snapshot *s = &r->snapshot[i];
        if (s->step != step || s->is_superseded) continue;
        part = s;
        if (!s->is_complete) continue;
        *out = s;
        return PEN_OK;
    }
    if (part != NULL) {
        if (why != NULL) *why = part->trouble;
        return part->trouble.status;
    }
    return why_set(why, PEN_NOT_FOUND, "%s has no snapshot of step %" PRId64, r->dir, step);
}

pen_status store_reader_manifest(store_reader *r, int64_t step, const store_manifest **m,
                                 pen_error *why)
{
    const reader_snapshot *s = NULL;
    const pen_status status  = store_reader_find(r, step, &s, why);
    if (status == PEN_OK) *m = s->manifest;
    return status;
}
