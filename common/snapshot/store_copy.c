/* store_copy.c - a snapshot from one store into another, part by part. */
#include "common/base/why.h"
#include "common/snapshot/store_reader.h"

#include <inttypes.h>
#include <string.h>

static pen_status check_goal(const char *dir, int64_t step, pen_error *why)
{
    store_reader *there;
    pen_status status = store_reader_open(dir, &there, why);
    if (status != PEN_OK) return status;
    for (size_t i = 0; i < there->n_snapshots && status == PEN_OK; i++)
        if (there->snapshot[i].step >= step)
            status = why_set(why, PEN_WRONG_STATE,
                             "%s has a snapshot of step %" PRId64 " already, and a job would go on "
                             "from that instead of step %" PRId64 "; give --to an empty folder",
                             dir, there->snapshot[i].step, step);
    store_reader_close(there);
    return status;
}

typedef struct {
    const reader_file *file;
    store *to;
} copying;

static pen_status copy_blob(store_bytes key, store_bytes value, void *user, pen_error *why)
{
    const copying *c = user;
    char name[STORE_NAME_BYTES];
    if (!store_blob_name(key, name)) return PEN_OK;
    const pen_status status = store_blob_check(c->file, name, key, value, why);
    if (status != PEN_OK) return status;
    return store_put_blob(c->to, name, (const uint8_t *)value.data + STORE_BLOB_HEAD_BYTES,
                          value.size - STORE_BLOB_HEAD_BYTES, why);
}

static pen_status copy_values(const store_reader *r, const reader_snapshot *s, size_t file,
                              store *to, pen_error *why)
{
    pen_status status = PEN_OK;
    for (size_t i = 0; i < s->n_values && status == PEN_OK; i++) {
        const reader_value *v = &s->value[i];
        if (v->file != file || v->tensor >= s->manifest->n_tensors) continue;
        const store_tensor *row = &s->manifest->tensor[v->tensor];
        if (v->what > row->slots) continue;
        status = store_value_check(r, s, v, why);
        if (status == PEN_OK)
            status =
                store_put(to, row->name, store_what_name(row, v->what), v->start, v->count,
                          (const float *)(const void *)(v->data + STORE_VALUE_HEAD_BYTES), why);
    }
    return status;
}

static pen_status copy_part(const store_reader *r, const reader_snapshot *s, size_t part,
                            const char *dir, pen_error *why)
{
    const reader_file *f = &r->file[s->part[part]];
    store *to;
    pen_status status = store_open(dir, (int32_t)part, &to, why);
    if (status != PEN_OK) return status;
    copying c = {f, to};
    status    = store_begin(to, s->manifest, why);
    if (status == PEN_OK) status = copy_values(r, s, s->part[part], to, why);
    if (status == PEN_OK)
        status = store_txn_walk(f->txn, (store_bytes){"B", 1}, copy_blob, &c, why);
    if (status == PEN_OK) status = store_commit(to, why);
    store_close(to);
    return status;
}

static void drop_parts(const reader_snapshot *s, size_t n, const char *dir)
{
    for (size_t i = 0; i < n; i++) {
        store *to;
        if (store_open(dir, (int32_t)i, &to, NULL) != PEN_OK) continue;
        (void)store_drop(to, s->step, s->id, NULL);
        store_close(to);
    }
}

pen_status store_copy(store_reader *r, int64_t step, const char *dir, pen_error *why)
{
    const reader_snapshot *s;
    pen_status status = store_reader_find(r, step, &s, why);
    if (status == PEN_OK) status = check_goal(dir, step, why);
    if (status != PEN_OK) return status;
    for (size_t i = 0; i < s->n_parts; i++) {
        status = copy_part(r, s, i, dir, why);
        if (status == PEN_OK) continue;
        drop_parts(s, i, dir);
        return status;
    }
    return PEN_OK;
}
