/* store_values.c - reading values and blobs, each with its checksum. */
#include "common/base/crc.h"
#include "common/base/why.h"
#include "common/snapshot/store_reader.h"

#include <inttypes.h>
#include <string.h>

/* ---- checksums ------------------------------------------------------------------------------- */
/* The checksum of key and count, which the values' checksum continues. */
static uint32_t seed(const reader_value *v)
{
    uint8_t key[STORE_VALUE_KEY_BYTES];
    const store_bytes k = store_value_key(key, v->tensor, v->what, v->start);
    return crc32c(crc32c(0, k.data, k.size), v->data + 8, 8);
}

pen_status store_value_check(const store_reader *r, const reader_snapshot *s, const reader_value *v,
                             pen_error *why)
{
    const reader_file *f = &r->file[v->file];
    const char *tensor   = s->manifest->tensor[v->tensor].name;
    const char *what     = store_what_name(&s->manifest->tensor[v->tensor], v->what);
    if (store_get_be(v->data + 8, 8) != v->count ||
        v->size != STORE_VALUE_HEAD_BYTES + v->count * sizeof(float))
        return why_set(why, PEN_CORRUPT,
                       "%s of '%s' from element %" PRIu64
                       " in %s has a wrong length; use an older snapshot",
                       what, tensor, v->start, f->path);
    const uint32_t crc =
        crc32c(seed(v), v->data + STORE_VALUE_HEAD_BYTES, v->count * sizeof(float));
    if (store_get_be(v->data, 8) == crc) return PEN_OK;
    return why_set(why, PEN_CORRUPT,
                   "the checksum of %s of '%s' from element %" PRIu64
                   " in %s does not match; use an "
                   "older snapshot",
                   what, tensor, v->start, f->path);
}

pen_status store_blob_check(const reader_file *f, const char *name, store_bytes key,
                            store_bytes value, pen_error *why)
{
    const uint8_t *data = value.data;
    if (value.size >= STORE_BLOB_HEAD_BYTES) {
        const uint32_t crc = crc32c(crc32c(0, key.data, key.size), data + STORE_BLOB_HEAD_BYTES,
                                    value.size - STORE_BLOB_HEAD_BYTES);
        if (store_get_be(data, 8) == crc) return PEN_OK;
    }
    return why_set(why, PEN_CORRUPT,
                   "the checksum of '%.80s' in %s does not match; use an older snapshot", name,
                   f->path);
}

/* ---- reading --------------------------------------------------------------------------------- */
pen_status store_read(store_reader *r, int64_t step, const char *tensor, const char *what,
                      uint64_t start, uint64_t count, float *values, pen_error *why)
{
    const reader_snapshot *s;
    pen_status status = store_reader_find(r, step, &s, why);
    if (status != PEN_OK) return status;
    const int t = store_find_tensor(s->manifest, tensor, 0);
    const int w = t < 0 ? -1 : store_find_what(&s->manifest->tensor[t], what);
    if (w < 0)
        return why_set(why, PEN_NOT_FOUND,
                       "the snapshot of step %" PRId64 " in %s has no %s of '%s'", step, r->dir,
                       what, tensor);
    uint64_t at             = start;
    const uint64_t end      = start + count;
    const reader_value *v   = store_reader_first(s, (uint32_t)t, w);
    const reader_value *all = store_reader_end(s);
    for (; at < end && v < all && v->tensor == (uint32_t)t && v->what == w && v->start <= at; v++) {
        if (v->start + v->count <= at) continue;
        status = store_value_check(r, s, v, why);
        if (status != PEN_OK) return status;
        const uint64_t last = v->start + v->count < end ? v->start + v->count : end;
        memcpy(values + (at - start),
               v->data + STORE_VALUE_HEAD_BYTES + (at - v->start) * sizeof *values,
               (last - at) * sizeof *values);
        at = last;
    }
    if (at >= end) return PEN_OK;
    return why_set(why, PEN_NOT_FOUND,
                   "the snapshot of step %" PRId64 " in %s has no element %" PRIu64
                   " of %s of '%s'",
                   step, r->dir, at, what, tensor);
}

static pen_status read_blob(const reader_file *f, const char *name, store_bytes *blob,
                            pen_error *why)
{
    uint8_t room[STORE_KEY_ROOM];
    const store_bytes key   = store_blob_key(room, name);
    const pen_status status = store_txn_get(f->txn, key, blob, why);
    return status == PEN_OK ? store_blob_check(f, name, key, *blob, why) : status;
}

pen_status store_read_blobs(store_reader *r, int64_t step, const char *name,
                            void (*fn)(const void *data, size_t size, void *user), void *user,
                            pen_error *why)
{
    const reader_snapshot *s;
    pen_status status = store_reader_find(r, step, &s, why);
    for (size_t i = 0; status == PEN_OK && i < s->n_parts; i++) {
        store_bytes blob;
        status = read_blob(&r->file[s->part[i]], name, &blob, why);
        if (status == PEN_OK)
            fn((const uint8_t *)blob.data + STORE_BLOB_HEAD_BYTES,
               blob.size - STORE_BLOB_HEAD_BYTES, user);
        else if (status == PEN_NOT_FOUND)
            status = PEN_OK;
    }
    return status;
}

/* ---- verifying ------------------------------------------------------------------------------- */
typedef struct {
    const reader_file *file;
    uint64_t *bytes;
} verifying;

static pen_status verify_blob(store_bytes key, store_bytes value, void *user, pen_error *why)
{
    const verifying *v = user;
    char name[STORE_NAME_BYTES];
    if (!store_blob_name(key, name)) return PEN_OK;
    *v->bytes += value.size;
    return store_blob_check(v->file, name, key, value, why);
}

pen_status store_verify(store_reader *r, int64_t step, uint64_t *bytes, pen_error *why)
{
    const reader_snapshot *s;
    uint64_t seen     = 0;
    pen_status status = store_reader_find(r, step, &s, why);
    if (status != PEN_OK) return status;
    for (size_t i = 0; i < s->n_values && status == PEN_OK; i++) {
        const reader_value *v = &s->value[i];
        if (v->tensor >= s->manifest->n_tensors || v->what > s->manifest->tensor[v->tensor].slots)
            return why_set(why, PEN_CORRUPT, "%s has a value of no tensor; use an older snapshot",
                           r->file[v->file].path);
        status = store_value_check(r, s, v, why);
        seen += v->size;
    }
    for (size_t i = 0; i < s->n_parts && status == PEN_OK; i++) {
        const reader_file *f = &r->file[s->part[i]];
        verifying v          = {f, &seen};
        status               = store_txn_walk(f->txn, (store_bytes){"B", 1}, verify_blob, &v, why);
    }
    if (status == PEN_OK && bytes != NULL) *bytes = seen;
    return status;
}
