/* safetensors.c - reading and writing safetensors files. */
#include "common/snapshot/safetensors.h"
#include "common/base/why.h"
#include "common/compute/simd/simd.h"
#include "common/snapshot/store_files.h"
#include "common/system/own_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BYTES_MAX = 100 << 20, NAME_BYTES_MAX = 255, PIECE = 65536 };

enum { F32, F16, BF16, F64, I8, U8, I16, U16, I32, U32, I64, U64 };
static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [F32] = {"F32", 4}, [F16] = {"F16", 2}, [BF16] = {"BF16", 2}, [F64] = {"F64", 8},
    [I8] = {"I8", 1},   [U8] = {"U8", 1},   [I16] = {"I16", 2},   [U16] = {"U16", 2},
    [I32] = {"I32", 4}, [U32] = {"U32", 4}, [I64] = {"I64", 8},   [U64] = {"U64", 8},
};
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

static int find_dtype(const char *name)
{
    for (int i = 0; i < N_DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) return i;
    return -1;
}

/* ---- writing --------------------------------------------------------------------------------- */
int safetensors_dtype_of(pen_dtype t)
{
    static const int of[] = {
        [PEN_F32] = F32, [PEN_F16] = F16, [PEN_BF16] = BF16, [PEN_F64] = F64, [PEN_I8] = I8,
        [PEN_U8] = U8,   [PEN_I32] = I32, [PEN_U32] = U32,   [PEN_I64] = I64, [PEN_U64] = U64};
    return of[t];
}

typedef struct {
    int dtype;
    uint64_t left; /* elements still to be written */
} writer_row;

struct safetensors_writer {
    char path[STORE_PATH_BYTES], making[STORE_PATH_BYTES];
    FILE *out;
    writer_row *row; /* [n] */
    size_t n, at;
    uint16_t *rounded; /* [PIECE] */
};

static json_t *describe(const safetensors_row *row, uint64_t begin)
{
    json_t *shape = json_array();
    for (int32_t i = 0; i < row->ndim; i++)
        json_array_append_new(shape, json_integer(row->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtypes[row->dtype].name, "shape", shape,
                     "data_offsets", (json_int_t)begin,
                     (json_int_t)(begin + row->elements * dtypes[row->dtype].bytes));
}

/* The header with its length before it, padded so that the data begins at a multiple of 8. */
static char *make_header(const safetensors_row *rows, size_t n, const char *const *metadata,
                         size_t *size)
{
    json_t *all = json_object(), *words = json_object();
    uint64_t begin = 0;
    for (size_t i = 0; metadata[i] != NULL; i += 2)
        json_object_set_new(words, metadata[i], json_string(metadata[i + 1]));
    json_object_set_new(all, "__metadata__", words);
    for (size_t i = 0; i < n; i++) {
        json_object_set_new(all, rows[i].name, describe(&rows[i], begin));
        begin += rows[i].elements * dtypes[rows[i].dtype].bytes;
    }
    char *text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    if (text == NULL) return NULL;
    const size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    char *header = malloc(8 + padded);
    if (header != NULL) {
        for (int i = 0; i < 8; i++) header[i] = (char)((uint64_t)padded >> 8 * i);
        memcpy(header + 8, text, length);
        memset(header + 8 + length, ' ', padded - length);
        *size = 8 + padded;
    }
    free(text);
    return header;
}

static pen_status write_bytes(safetensors_writer *w, const void *data, size_t size, pen_error *why)
{
    if (fwrite(data, 1, size, w->out) == size) return PEN_OK;
    return why_set(why, PEN_STORE, "cannot write %s: %m", w->path);
}

static void free_writer(safetensors_writer *w)
{
    if (w->out != NULL) fclose(w->out);
    free(w->row);
    free(w->rounded);
    free(w);
}

static safetensors_writer *new_writer(const safetensors_row *rows, size_t n)
{
    safetensors_writer *w = calloc(1, sizeof *w);
    if (w == NULL) return NULL;
    w->n       = n;
    w->row     = calloc(n + 1, sizeof *w->row);
    w->rounded = malloc(PIECE * sizeof *w->rounded);
    if (w->row == NULL || w->rounded == NULL) {
        free_writer(w);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) w->row[i] = (writer_row){rows[i].dtype, rows[i].elements};
    return w;
}

static pen_status begin_file(safetensors_writer *w, const char *path, pen_error *why)
{
    snprintf(w->path, sizeof w->path, "%s", path);
    w->out = own_file_beside(path, w->making, sizeof w->making);
    return w->out != NULL ? PEN_OK : why_set(why, PEN_STORE, "cannot write %s: %m", path);
}

pen_status safetensors_create(const char *path, const safetensors_row *rows, size_t n,
                              const char *const *metadata, safetensors_writer **out, pen_error *why)
{
    safetensors_writer *w = new_writer(rows, n);
    if (w == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to write %s", path);
    if (begin_file(w, path, why) != PEN_OK) {
        free_writer(w);
        return why->status;
    }
    size_t size       = 0;
    char *header      = make_header(rows, n, metadata, &size);
    pen_status status = header != NULL
                            ? write_bytes(w, header, size, why)
                            : why_set(why, PEN_NO_MEMORY, "no memory for the header of %s", path);
    free(header);
    if (status != PEN_OK) {
        safetensors_abandon(w);
        return status;
    }
    *out = w;
    return PEN_OK;
}

static pen_status write_rounded(safetensors_writer *w, const float *values, size_t count,
                                pen_dtype as, pen_error *why)
{
    pen_status status = PEN_OK;
    for (size_t i = 0; i < count && status == PEN_OK; i += PIECE) {
        const size_t n = count - i < PIECE ? count - i : PIECE;
        simd()->encode(w->rounded, values + i, as, n);
        status = write_bytes(w, w->rounded, n * sizeof *w->rounded, why);
    }
    return status;
}

pen_status safetensors_append(safetensors_writer *w, const float *values, size_t count,
                              pen_error *why)
{
    pen_status status = PEN_OK;
    while (count > 0 && status == PEN_OK) {
        while (w->at < w->n && w->row[w->at].left == 0) w->at++;
        if (w->at == w->n)
            return why_set(why, PEN_INTERNAL, "%s has room for fewer values than came", w->path);
        writer_row *row = &w->row[w->at];
        if (row->dtype > BF16)
            return why_set(why, PEN_INTERNAL, "%s has a row of another type than floats", w->path);
        const size_t n = count < row->left ? count : (size_t)row->left;
        if (row->dtype == F32)
            status = write_bytes(w, values, n * sizeof *values, why);
        else
            status = write_rounded(w, values, n, row->dtype == F16 ? PEN_F16 : PEN_BF16, why);
        row->left -= n;
        values += n;
        count -= n;
    }
    return status;
}

pen_status safetensors_append_row(safetensors_writer *w, const void *values, pen_error *why)
{
    while (w->at < w->n && w->row[w->at].left == 0) w->at++;
    if (w->at == w->n)
        return why_set(why, PEN_INTERNAL, "%s has room for fewer values than came", w->path);
    writer_row *row    = &w->row[w->at];
    const size_t bytes = (size_t)row->left * dtypes[row->dtype].bytes;
    row->left          = 0;
    return write_bytes(w, values, bytes, why);
}

pen_status safetensors_finish(safetensors_writer *w, pen_error *why)
{
    if (fflush(w->out) != 0 || fsync(fileno(w->out)) != 0) {
        const pen_status status = why_set(why, PEN_STORE, "cannot write %s: %m", w->path);
        safetensors_abandon(w);
        return status;
    }
    const pen_status status = store_files_put_in_place(w->making, w->path, why);
    free_writer(w);
    return status;
}

void safetensors_abandon(safetensors_writer *w)
{
    if (w == NULL) return;
    unlink(w->making);
    free_writer(w);
}

static pen_status write_all(safetensors_writer *w, const safetensors_row *rows, size_t n,
                            safetensors_source source, void *user, pen_error *why)
{
    float *piece      = malloc(SAFETENSORS_PIECE * sizeof *piece);
    pen_status status = PEN_OK;
    if (piece == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to write %s", w->path);
    for (size_t t = 0; t < n; t++)
        for (uint64_t at = 0; at < rows[t].elements && status == PEN_OK; at += SAFETENSORS_PIECE) {
            const uint64_t left = rows[t].elements - at;
            const size_t count  = left < SAFETENSORS_PIECE ? (size_t)left : SAFETENSORS_PIECE;
            status              = source(user, t, at, count, piece, why);
            if (status == PEN_OK) status = safetensors_append(w, piece, count, why);
        }
    free(piece);
    return status;
}

pen_status safetensors_write(const char *path, const safetensors_row *rows, size_t n,
                             const char *const *metadata, safetensors_source source, void *user,
                             pen_error *why)
{
    safetensors_writer *w;
    pen_status status = safetensors_create(path, rows, n, metadata, &w, why);
    if (status != PEN_OK) return status;
    status = write_all(w, rows, n, source, user, why);
    if (status == PEN_OK) return safetensors_finish(w, why);
    safetensors_abandon(w);
    return status;
}

/* ---- the header of a file -------------------------------------------------------------------- */
struct safetensors_reader {
    char path[STORE_PATH_BYTES];
    int fd;
    uint64_t data_at, data_bytes;
    json_t *header; /* owns the names */
    safetensors_row *row;
    size_t n;
};

static pen_status refuse(const safetensors_reader *r, const char *tensor, const char *what,
                         pen_error *why)
{
    return why_set(why, PEN_CORRUPT, "%s is not a complete safetensors file: '%.80s' %s", r->path,
                   tensor, what);
}

static pen_status read_shape(const safetensors_reader *r, const json_t *shape, safetensors_row *row,
                             pen_error *why)
{
    const size_t ndim = json_array_size(shape);
    if (!json_is_array(shape)) return refuse(r, row->name, "has no shape", why);
    if (ndim > SAFETENSORS_DIMS_MAX)
        return why_set(why, PEN_UNSUPPORTED,
                       "'%.80s' in %s has %zu dimensions; at most %d are kept", row->name, r->path,
                       ndim, SAFETENSORS_DIMS_MAX);
    row->ndim     = (int32_t)ndim;
    row->elements = 1;
    for (size_t i = 0; i < ndim; i++) {
        const json_t *size = json_array_get(shape, i);
        row->shape[i]      = json_integer_value(size);
        if (!json_is_integer(size) || row->shape[i] < 1 ||
            __builtin_mul_overflow(row->elements, (uint64_t)row->shape[i], &row->elements) ||
            row->elements > (uint64_t)1 << 48)
            return refuse(r, row->name, "has a shape that cannot be", why);
    }
    return PEN_OK;
}

static pen_status read_offsets(const safetensors_reader *r, const json_t *offsets,
                               safetensors_row *row, pen_error *why)
{
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (!json_is_integer(begin) || !json_is_integer(end) || json_integer_value(begin) < 0 ||
        json_integer_value(end) < json_integer_value(begin))
        return refuse(r, row->name, "has no data_offsets", why);
    row->begin = (uint64_t)json_integer_value(begin);
    row->end   = (uint64_t)json_integer_value(end);
    if (row->end > r->data_bytes) return refuse(r, row->name, "ends behind the file", why);
    if (row->end - row->begin != row->elements * dtypes[row->dtype].bytes)
        return refuse(r, row->name, "has another size than its shape says", why);
    return PEN_OK;
}

static pen_status read_row(const safetensors_reader *r, const char *name, const json_t *value,
                           safetensors_row *row, pen_error *why)
{
    *row              = (safetensors_row){.name = name};
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    if (name[0] == '\0' || strlen(name) > NAME_BYTES_MAX)
        return why_set(why, PEN_UNSUPPORTED,
                       "%s has a tensor whose name has %zu letters; 1 to %d are kept", r->path,
                       strlen(name), NAME_BYTES_MAX);
    if (dtype == NULL) return refuse(r, name, "has no dtype", why);
    row->dtype = find_dtype(dtype);
    if (row->dtype < 0)
        return why_set(
            why, PEN_UNSUPPORTED,
            "'%.80s' in %s is of %.20s, which cannot be taken in; convert it to F32 first", name,
            r->path, dtype);
    const pen_status status = read_shape(r, json_object_get(value, "shape"), row, why);
    if (status != PEN_OK) return status;
    return read_offsets(r, json_object_get(value, "data_offsets"), row, why);
}

static int by_begin(const void *a, const void *b)
{
    const safetensors_row *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static pen_status read_rows(safetensors_reader *r, pen_error *why)
{
    const char *name;
    json_t *value;
    r->row = calloc(json_object_size(r->header) + 1, sizeof *r->row);
    if (r->row == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to read %s", r->path);
    json_object_foreach(r->header, name, value)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        const pen_status status = read_row(r, name, value, &r->row[r->n], why);
        if (status != PEN_OK) return status;
        r->n++;
    }
    if (r->n == 0) return why_set(why, PEN_CORRUPT, "%s holds no tensor", r->path);
    qsort(r->row, r->n, sizeof *r->row, by_begin);
    uint64_t at = 0;
    for (size_t i = 0; i < r->n; at = r->row[i++].end)
        if (r->row[i].begin != at)
            return refuse(r, r->row[i].name, "does not begin where the one before it ends", why);
    if (at != r->data_bytes)
        return refuse(r, r->row[r->n - 1].name, "does not end with the file", why);
    return PEN_OK;
}

static pen_status read_exactly(const safetensors_reader *r, uint64_t offset, void *into,
                               size_t size, pen_error *why)
{
    for (size_t done = 0; done < size;) {
        const ssize_t got = pread(r->fd, (char *)into + done, size - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return why_set(why, PEN_STORE, "cannot read %s: %m", r->path);
        if (got == 0)
            return why_set(why, PEN_CORRUPT, "%s became shorter while it was read", r->path);
        done += (size_t)got;
    }
    return PEN_OK;
}

static pen_status read_header(safetensors_reader *r, pen_error *why)
{
    struct stat file;
    uint8_t length[8];
    uint64_t size = 0;
    json_error_t error;
    if (fstat(r->fd, &file) != 0) return why_set(why, PEN_STORE, "cannot read %s: %m", r->path);
    if (!S_ISREG(file.st_mode) || file.st_size < 8)
        return why_set(why, PEN_CORRUPT, "%s is not a safetensors file: it is too short", r->path);
    pen_status status = read_exactly(r, 0, length, sizeof length, why);
    if (status != PEN_OK) return status;
    for (int i = 0; i < 8; i++) size |= (uint64_t)length[i] << 8 * i;
    if (size > HEADER_BYTES_MAX || size > (uint64_t)file.st_size - 8)
        return why_set(why, PEN_CORRUPT,
                       "%s is not a safetensors file: its header would have %" PRIu64 " bytes",
                       r->path, size);
    char *text = malloc(size + 1);
    if (text == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the header of %s", r->path);
    status = read_exactly(r, 8, text, size, why);
    if (status == PEN_OK) r->header = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (status != PEN_OK) return status;
    if (!json_is_object(r->header))
        return why_set(why, PEN_CORRUPT,
                       "%s is not a safetensors file: its header is not valid JSON (%s)", r->path,
                       r->header == NULL ? error.text : "not an object");
    r->data_at    = 8 + size;
    r->data_bytes = (uint64_t)file.st_size - r->data_at;
    return read_rows(r, why);
}

pen_status safetensors_open(const char *path, safetensors_reader **out, pen_error *why)
{
    safetensors_reader *r = calloc(1, sizeof *r);
    if (r == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to read %s", path);
    snprintf(r->path, sizeof r->path, "%s", path);
    r->fd = open(path, O_RDONLY | O_CLOEXEC);
    pen_status status =
        r->fd >= 0 ? read_header(r, why) : why_set(why, PEN_NOT_FOUND, "cannot read %s: %m", path);
    if (status != PEN_OK) {
        safetensors_close(r);
        return status;
    }
    *out = r;
    return PEN_OK;
}

void safetensors_close(safetensors_reader *r)
{
    if (r == NULL) return;
    if (r->fd >= 0) close(r->fd);
    json_decref(r->header);
    free(r->row);
    free(r);
}

const safetensors_row *safetensors_rows(const safetensors_reader *r, size_t *n)
{
    *n = r->n;
    return r->row;
}

/* ---- values ---------------------------------------------------------------------------------- */
/* Converts an element of a type wider than float32; false: float32 cannot hold the value. */
static bool convert_one(int type, const uint8_t *from, float *to)
{
    int64_t i  = 0;
    uint64_t u = 0;
    double d   = 0;
    switch (type) {
    case F64:
        memcpy(&d, from, sizeof d);
        *to = (float)d;
        return (double)*to == d || d != d;
    case I32:
    case I64:
        memcpy(&i, from, dtypes[type].bytes);
        if (type == I32) i = (int32_t)i;
        *to = (float)i;
        return *to < 0x1p63f && (int64_t)*to == i;
    case U32:
    case U64:
        memcpy(&u, from, dtypes[type].bytes);
        *to = (float)u;
        return *to < 0x1p64f && (uint64_t)*to == u;
    default: break;
    }
    memcpy(&u, from, dtypes[type].bytes);
    *to = type == I8 ? (float)(int8_t)u : type == I16 ? (float)(int16_t)u : (float)u;
    return true;
}

static pen_status convert(const safetensors_reader *r, const safetensors_row *row, uint64_t start,
                          const uint8_t *from, size_t count, float *to, pen_error *why)
{
    if (row->dtype == F32) memcpy(to, from, count * sizeof *to);
    if (row->dtype == F16) simd()->decode(to, from, PEN_F16, count);
    if (row->dtype == BF16) simd()->decode(to, from, PEN_BF16, count);
    if (row->dtype <= BF16) return PEN_OK;
    for (size_t i = 0; i < count; i++)
        if (!convert_one(row->dtype, from + i * dtypes[row->dtype].bytes, &to[i]))
            return why_set(why, PEN_UNSUPPORTED,
                           "element %" PRIu64 " of '%.80s' in %s, of %s, cannot be held in float32 "
                           "exactly; convert the file to F32 first",
                           start + i, row->name, r->path, dtypes[row->dtype].name);
    return PEN_OK;
}

pen_status safetensors_read(safetensors_reader *r, const safetensors_row *row, uint64_t start,
                            size_t count, float *values, pen_error *why)
{
    static const size_t widest = 8;
    const size_t bytes         = dtypes[row->dtype].bytes;
    uint8_t *piece             = malloc(PIECE * widest);
    pen_status status          = PEN_OK;
    if (piece == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to read %s", r->path);
    for (size_t done = 0; done < count && status == PEN_OK;) {
        const size_t n = count - done < PIECE ? count - done : PIECE;
        status = read_exactly(r, r->data_at + row->begin + (start + done) * bytes, piece, n * bytes,
                              why);
        if (status == PEN_OK) status = convert(r, row, start + done, piece, n, values + done, why);
        done += n;
    }
    free(piece);
    return status;
}

pen_status safetensors_read_row(safetensors_reader *r, const safetensors_row *row, void *values,
                                pen_error *why)
{
    return read_exactly(r, r->data_at + row->begin, values,
                        (size_t)row->elements * dtypes[row->dtype].bytes, why);
}
