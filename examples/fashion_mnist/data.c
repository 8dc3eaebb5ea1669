/* data.c - reads the idx files of Fashion-MNIST and hands out batches. */
#include "data.h"
#include "rng.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { PATH_BYTES = 4096, IDX_DIMS_MAX = 3, IDX_U8 = 8 };

typedef struct {
    gzFile file;
    const char *path;
    uint32_t dims[IDX_DIMS_MAX];
    char *why;
} idx;

static bool refuse(char *why, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(char *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, DATA_WHY_BYTES, format, args);
    va_end(args);
    return false;
}

static bool read_exactly(idx *f, void *out, unsigned bytes)
{
    const int got = gzread(f->file, out, bytes);
    if (got == (int)bytes) return true;
    int code         = Z_OK;
    const char *text = gzerror(f->file, &code);
    if (got >= 0)
        return refuse(f->why, "%s is cut short: %u bytes are missing", f->path,
                      bytes - (unsigned)got);
    return refuse(f->why, "cannot read %s: %s", f->path, code == Z_ERRNO ? strerror(errno) : text);
}

static uint32_t big_endian(const uint8_t b[4])
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* Header: two zeros, the type, the number of dimensions, then each dimension big-endian. */
static bool read_header(idx *f, int ndim)
{
    uint8_t magic[4], dim[4];
    if (!read_exactly(f, magic, sizeof magic)) return false;
    if (magic[0] || magic[1] || magic[2] != IDX_U8 || magic[3] != ndim)
        return refuse(f->why, "%s is not an idx file of bytes with %d dimensions", f->path, ndim);
    for (int i = 0; i < ndim; i++) {
        if (!read_exactly(f, dim, sizeof dim)) return false;
        f->dims[i] = big_endian(dim);
    }
    if (f->dims[0] == 0 || f->dims[0] > DATA_SAMPLES_MAX)
        return refuse(f->why, "%s claims %u samples; 1 to %d are accepted", f->path, f->dims[0],
                      DATA_SAMPLES_MAX);
    return true;
}

static uint8_t *read_body(idx *f, size_t bytes)
{
    uint8_t *body = malloc(bytes);
    if (!body) {
        refuse(f->why, "no memory for the %zu bytes of %s", bytes, f->path);
        return NULL;
    }
    if (read_exactly(f, body, (unsigned)bytes)) return body;
    free(body);
    return NULL;
}

/* Debian ships compressed files; files from the authors' site may be unpacked. */
static bool find_file(char *path, const char *dir, const char *part, const char *kind, char *why)
{
    for (int zipped = 1; zipped >= 0; zipped--) {
        const int n =
            snprintf(path, PATH_BYTES, "%s/%s-%s-ubyte%s", dir, part, kind, zipped ? ".gz" : "");
        if (n < PATH_BYTES && access(path, F_OK) == 0) return true;
    }
    return refuse(why,
                  "no Fashion-MNIST files in %.300s: install the Debian package "
                  "dataset-fashion-mnist or give --data DIR",
                  dir);
}

static bool open_idx(idx *f, const char *path, char *why)
{
    *f = (idx){.path = path, .why = why, .file = gzopen(path, "rb")};
    return f->file || refuse(why, "cannot open %s: %s", path, strerror(errno));
}

static bool read_images(idx *f, data_set *set)
{
    if (!read_header(f, 3)) return false;
    if (f->dims[1] != DATA_SIDE || f->dims[2] != DATA_SIDE)
        return refuse(f->why, "%s holds images of %u x %u pixels; they must be %d x %d", f->path,
                      f->dims[1], f->dims[2], DATA_SIDE, DATA_SIDE);
    set->n      = (int)f->dims[0];
    set->images = read_body(f, (size_t)set->n * DATA_PIXELS);
    return set->images != NULL;
}

static bool read_labels(idx *f, data_set *set)
{
    if (!read_header(f, 1)) return false;
    if (f->dims[0] != (uint32_t)set->n)
        return refuse(f->why, "%s holds %u labels for %d images", f->path, f->dims[0], set->n);
    set->labels = read_body(f, (size_t)set->n);
    if (!set->labels) return false;
    for (int i = 0; i < set->n; i++)
        if (set->labels[i] >= DATA_CLASSES)
            return refuse(f->why, "%s: label %d of sample %d is above %d", f->path, set->labels[i],
                          i, DATA_CLASSES - 1);
    return true;
}

static bool load_file(data_set *set, const char *dir, const char *part, const char *kind,
                      bool (*read)(idx *, data_set *), char *why)
{
    char path[PATH_BYTES];
    idx f;
    if (!find_file(path, dir, part, kind, why) || !open_idx(&f, path, why)) return false;
    const bool ok = read(&f, set);
    gzclose(f.file);
    return ok;
}

bool data_load(data_set *set, const char *dir, const char *part, char why[DATA_WHY_BYTES])
{
    *set = (data_set){0};
    if (load_file(set, dir, part, "images-idx3", read_images, why) &&
        load_file(set, dir, part, "labels-idx1", read_labels, why))
        return true;
    data_free(set);
    return false;
}

void data_free(data_set *set)
{
    free(set->images);
    free(set->labels);
    *set = (data_set){0};
}

void data_shuffle(uint32_t *order, int n, uint64_t seed, int64_t epoch)
{
    rng r = rng_seeded(seed, (uint64_t)epoch);
    for (int i = 0; i < n; i++) {
        const uint32_t j = rng_below(&r, (uint32_t)i + 1);
        order[i]         = order[j];
        order[j]         = (uint32_t)i;
    }
}

void data_gather(const data_set *set, const uint32_t *index, int n, float *images, uint8_t *labels)
{
    const float mean = 0.2860f, deviation = 0.3530f; /* of the 60,000 training images, as 0..1 */
    const float scale = 1.0f / (255.0f * deviation), shift = -mean / deviation;
    for (int i = 0; i < n; i++) {
        const uint8_t *from = set->images + (size_t)index[i] * DATA_PIXELS;
        float *to           = images + (size_t)i * DATA_PIXELS;
        for (int p = 0; p < DATA_PIXELS; p++) to[p] = (float)from[p] * scale + shift;
        labels[i] = set->labels[index[i]];
    }
}
