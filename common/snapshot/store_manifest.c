/* store_manifest.c - the bytes of keys and manifests. */
#include "common/snapshot/store_manifest.h"
#include "common/base/crc.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers and keys ------------------------------------------------------------------------ */
void store_put_be(uint8_t *out, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
}

uint64_t store_get_be(const uint8_t *in, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value = value << 8 | in[i];
    return value;
}

store_bytes store_value_key(uint8_t key[STORE_VALUE_KEY_BYTES], uint32_t tensor, int what,
                            uint64_t start)
{
    key[0] = 'V';
    store_put_be(key + 1, tensor, 4);
    key[5] = (uint8_t)what;
    store_put_be(key + 6, start, 8);
    return (store_bytes){key, STORE_VALUE_KEY_BYTES};
}

store_bytes store_blob_key(uint8_t key[STORE_KEY_ROOM], const char *name)
{
    const size_t size = strnlen(name, STORE_NAME_BYTES - 1);
    key[0]            = 'B';
    memcpy(key + 1, name, size);
    return (store_bytes){key, 1 + size};
}

bool store_blob_name(store_bytes key, char name[STORE_NAME_BYTES])
{
    if (key.size < 1 || key.size > STORE_NAME_BYTES) return false;
    memcpy(name, (const char *)key.data + 1, key.size - 1);
    name[key.size - 1] = '\0';
    return true;
}

/* ---- encoding -------------------------------------------------------------------------------- */
typedef struct {
    uint8_t *data;
    size_t size, capacity;
    bool failed;
} writer;

static void write_bytes(writer *w, const void *data, size_t size)
{
    w->failed = w->failed || !VEC_ROOM(w->data, w->capacity, w->size + size);
    if (w->failed) return;
    memcpy(w->data + w->size, data, size);
    w->size += size;
}

static void write_u64(writer *w, uint64_t value)
{
    uint8_t bytes[8];
    store_put_be(bytes, value, 8);
    write_bytes(w, bytes, 8);
}

static void write_text(writer *w, const char *text)
{
    size_t size = text == NULL ? 0 : strnlen(text, STORE_NAME_BYTES - 1);
    write_u64(w, size);
    if (size > 0) write_bytes(w, text, size);
}

static void write_tensor(writer *w, const store_tensor *row)
{
    write_text(w, row->name);
    write_text(w, row->optim);
    write_u64(w, row->elements);
    write_u64(w, (uint64_t)row->slots);
    for (int k = 0; k < row->slots; k++) write_text(w, row->slot_names[k]);
    write_u64(w, (uint64_t)row->dtype);
    const bool is_flat = row->ndim == 0 && row->elements != 1; /* shape unknown */
    write_u64(w, is_flat ? 1 : (uint64_t)row->ndim);
    if (is_flat) write_u64(w, row->elements);
    for (int k = 0; k < row->ndim; k++) write_u64(w, (uint64_t)row->shape[k]);
}

/* CRC, format and version come first in every format, now and later. */
uint8_t *store_manifest_encode(const store_manifest *m, size_t *size)
{
    writer w = {0};
    write_u64(&w, 0); /* room for the CRC, which is written last */
    write_u64(&w, m->format);
    write_text(&w, m->version);
    write_u64(&w, (uint64_t)m->step);
    write_u64(&w, (uint64_t)m->applied);
    write_u64(&w, m->id);
    write_u64(&w, (uint64_t)m->written_ms);
    write_u64(&w, m->is_import);
    write_text(&w, m->job);
    write_u64(&w, m->n_settings);
    for (uint32_t i = 0; i < m->n_settings; i++) {
        write_text(&w, m->setting[i].key);
        write_text(&w, m->setting[i].value);
    }
    write_u64(&w, m->n_tensors);
    for (uint32_t t = 0; t < m->n_tensors; t++) write_tensor(&w, &m->tensor[t]);
    if (w.failed) {
        free(w.data);
        return NULL;
    }
    store_put_be(w.data, crc32c(0, w.data + 8, w.size - 8), 8);
    *size = w.size;
    return w.data;
}

/* ---- decoding -------------------------------------------------------------------------------- */
/* Parses twice: once to count, then into one block: the struct, its rows, then all strings. */
typedef struct {
    const uint8_t *at, *end;
    store_tensor *tensor;   /* NULL while counting */
    store_setting *setting; /* likewise */
    char *text;
    size_t text_bytes;
    bool failed;
} parser;

static uint64_t read_u64(parser *p)
{
    if (p->end - p->at < 8) {
        p->failed = true;
        return 0;
    }
    p->at += 8;
    return store_get_be(p->at - 8, 8);
}

static const char *read_text(parser *p)
{
    uint64_t size = read_u64(p);
    if (p->failed || size >= STORE_NAME_BYTES || (uint64_t)(p->end - p->at) < size) {
        p->failed = true;
        return "";
    }
    const char *result = "";
    if (p->text != NULL) {
        memcpy(p->text, p->at, size);
        p->text[size] = '\0';
        result        = p->text;
        p->text += size + 1;
    }
    p->text_bytes += size + 1;
    p->at += size;
    return result;
}

/* A count that the remaining bytes can hold, at row_bytes each. */
static uint32_t read_count(parser *p, size_t row_bytes)
{
    const uint64_t n = read_u64(p);
    if (!p->failed && n <= (uint64_t)(p->end - p->at) / row_bytes && n <= UINT32_MAX)
        return (uint32_t)n;
    p->failed = true;
    return 0;
}

static void read_shape(parser *p, store_tensor *row)
{
    const uint64_t dtype = read_u64(p), ndim = read_u64(p);
    if (ndim > STORE_DIMS_MAX || dtype > 255) {
        p->failed = true;
        return;
    }
    row->dtype        = (int32_t)dtype;
    row->ndim         = (int32_t)ndim;
    uint64_t elements = 1;
    for (int k = 0; k < row->ndim; k++) {
        row->shape[k] = (int64_t)read_u64(p);
        if (row->shape[k] < 1 ||
            __builtin_mul_overflow(elements, (uint64_t)row->shape[k], &elements))
            p->failed = true;
    }
    if (elements != row->elements) p->failed = true;
}

static void read_tensor(parser *p, store_tensor *row)
{
    *row           = (store_tensor){.dtype = PEN_F32};
    row->name      = read_text(p);
    row->optim     = read_text(p);
    row->elements  = read_u64(p);
    uint64_t slots = read_u64(p);
    if (slots > STORE_SLOTS_MAX || row->elements > UINT64_MAX / 64) {
        p->failed = true;
        return;
    }
    row->slots = (int32_t)slots;
    for (int k = 0; k < row->slots; k++) row->slot_names[k] = read_text(p);
    read_shape(p, row);
}

static void read_settings(parser *p, store_manifest *m)
{
    m->n_settings = read_count(p, 16);
    m->setting    = p->setting;
    for (uint32_t i = 0; i < m->n_settings && !p->failed; i++) {
        store_setting row;
        row.key   = read_text(p); /* one by one: initialisers have no evaluation order */
        row.value = read_text(p);
        if (p->setting != NULL) p->setting[i] = row;
    }
}

static bool read_manifest(parser *p, store_manifest *m)
{
    *m            = (store_manifest){.format = (uint32_t)read_u64(p)};
    m->version    = read_text(p);
    m->step       = (int64_t)read_u64(p);
    m->applied    = (int64_t)read_u64(p);
    m->id         = read_u64(p);
    m->written_ms = (int64_t)read_u64(p);
    m->is_import  = read_u64(p) != 0;
    m->job        = read_text(p);
    read_settings(p, m);
    m->n_tensors = read_count(p, 32);
    m->tensor    = p->tensor;
    for (uint32_t t = 0; t < m->n_tensors && !p->failed; t++) {
        store_tensor row;
        read_tensor(p, &row);
        if (p->tensor != NULL) p->tensor[t] = row;
    }
    return !p->failed && p->at == p->end;
}

static pen_status check_format(const uint8_t *data, size_t size, const char *file, pen_error *why)
{
    parser p              = {.at = data + 8, .end = data + size};
    char version[64]      = "?";
    const uint64_t format = read_u64(&p);
    if (format == STORE_FORMAT) return PEN_OK;
    const uint64_t length = read_u64(&p);
    if (!p.failed && length < sizeof version && length <= (uint64_t)(p.end - p.at)) {
        memcpy(version, p.at, length);
        version[length] = '\0';
    }
    return why_set(why, PEN_UNSUPPORTED,
                   "%s is of format %" PRIu64
                   ", written by penstock %s; this is penstock %d.%d.%d, which reads format "
                   "%d; use that version",
                   file, format, version, PEN_VERSION_MAJOR, PEN_VERSION_MINOR, PEN_VERSION_PATCH,
                   STORE_FORMAT);
}

static store_manifest *build(const parser *start, const store_manifest *counted, size_t text_bytes)
{
    const size_t tensors  = counted->n_tensors * sizeof(store_tensor),
                 settings = counted->n_settings * sizeof(store_setting);
    char *block           = calloc(1, sizeof(store_manifest) + tensors + settings + text_bytes);
    if (block == NULL) return NULL;
    store_manifest *m = (store_manifest *)(void *)block;
    parser p          = *start;
    p.tensor          = (store_tensor *)(void *)(block + sizeof *m);
    p.setting         = (store_setting *)(void *)(block + sizeof *m + tensors);
    p.text            = block + sizeof *m + tensors + settings;
    read_manifest(&p, m);
    return m;
}

pen_status store_manifest_decode(store_bytes bytes, const char *file, store_manifest **m,
                                 pen_error *why)
{
    const uint8_t *data = bytes.data;
    if (bytes.size < 24 || store_get_be(data, 8) != crc32c(0, data + 8, bytes.size - 8))
        return why_set(why, PEN_CORRUPT,
                       "the checksum of the manifest in %s does not match; move it away", file);
    const pen_status status = check_format(data, bytes.size, file, why);
    if (status != PEN_OK) return status;
    store_manifest counted;
    const parser start = {.at = data + 8, .end = data + bytes.size};
    parser first       = start;
    if (!read_manifest(&first, &counted))
        return why_set(why, PEN_CORRUPT, "the manifest in %s makes no sense; move it away", file);
    *m = build(&start, &counted, first.text_bytes);
    return *m != NULL ? PEN_OK
                      : why_set(why, PEN_NO_MEMORY, "no memory for the manifest of %s", file);
}

/* ---- looking up ------------------------------------------------------------------------------ */
int store_find_tensor(const store_manifest *m, const char *name, uint32_t hint)
{
    if (hint < m->n_tensors && strcmp(m->tensor[hint].name, name) == 0) return (int)hint;
    for (uint32_t t = 0; t < m->n_tensors; t++)
        if (strcmp(m->tensor[t].name, name) == 0) return (int)t;
    return -1;
}

int store_find_what(const store_tensor *row, const char *what)
{
    if (strcmp(what, "param") == 0) return 0;
    for (int k = 0; k < row->slots; k++)
        if (strcmp(row->slot_names[k], what) == 0) return 1 + k;
    return -1;
}

const char *store_what_name(const store_tensor *row, int what)
{
    return what == 0 ? "param" : row->slot_names[what - 1];
}

/* ---- comparing ------------------------------------------------------------------------------- */
/* Of a table by key, whose slots are in its rows. */
static bool is_same_rule(const store_tensor *a, const store_tensor *b)
{
    static const char blanks[] = " \t\r\n";
    const char *x = a->optim + strspn(a->optim, blanks), *y = b->optim + strspn(b->optim, blanks);
    const size_t n = strcspn(x, blanks);
    return n == strcspn(y, blanks) && strncmp(x, y, n) == 0;
}

static pen_status compare_slots(const store_manifest *kept, const store_tensor *a,
                                const store_tensor *b, const char *dir, pen_error *why)
{
    if (kept->is_import) return PEN_OK;
    bool same = a->slots == b->slots && (b->dtype != PEN_DTYPE_DEFAULT || is_same_rule(a, b));
    for (int k = 0; same && k < b->slots; k++)
        same = strcmp(a->slot_names[k], b->slot_names[k]) == 0;
    if (same) return PEN_OK;
    return why_set(why, PEN_MISMATCH,
                   "the snapshot of step %" PRId64
                   " in %s keeps the state of '%.80s' for '%s', and the job trains it with "
                   "'%.80s'; train as before, or import exported parameters",
                   kept->step, dir, a->optim, b->name, b->optim);
}

pen_status store_compare(const store_manifest *kept, const store_manifest *wanted, const char *dir,
                         pen_error *why)
{
    for (uint32_t t = 0; t < wanted->n_tensors; t++) {
        const store_tensor *b = &wanted->tensor[t];
        const int found       = store_find_tensor(kept, b->name, t);
        if (found < 0)
            return why_set(why, PEN_MISMATCH,
                           "the snapshot of step %" PRId64
                           " in %s, of job '%s', is of another model: it has no '%s'",
                           kept->step, dir, kept->job, b->name);
        const store_tensor *a = &kept->tensor[found];
        if (a->elements != b->elements)
            return why_set(why, PEN_MISMATCH,
                           "the snapshot of step %" PRId64
                           " in %s, of job '%s', is of another model: '%s' has %" PRIu64
                           " %s there and %" PRIu64 " here",
                           kept->step, dir, kept->job, b->name, a->elements,
                           b->dtype != PEN_DTYPE_DEFAULT ? "elements" : "parts (table_parts)",
                           b->elements);
        const pen_status status = compare_slots(kept, a, b, dir, why);
        if (status != PEN_OK) return status;
    }
    for (uint32_t t = 0; t < kept->n_tensors; t++)
        if (store_find_tensor(wanted, kept->tensor[t].name, t) < 0)
            return why_set(why, PEN_MISMATCH,
                           "the snapshot of step %" PRId64
                           " in %s, of job '%s', is of another model: it has '%s', which the "
                           "program does not register",
                           kept->step, dir, kept->job, kept->tensor[t].name);
    return PEN_OK;
}
