/* safetensors.h - files of named tensors, as the safetensors tools of other systems read and write them.
 *
 * A file is the length of its header (8 bytes, little-endian), the header (JSON: name -> dtype, shape,
 * data_offsets; "__metadata__" -> strings), and the tensors' bytes, concatenated without gaps.
 * Source  https://huggingface.co/docs/safetensors, "Format".
 */
#ifndef COMMON_STORE_SAFETENSORS_H
#define COMMON_STORE_SAFETENSORS_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_DIMS_MAX = 8, SAFETENSORS_PIECE = 1 << 20 };

typedef struct {
    const char *name;
    int dtype; /* as safetensors_dtype_of() */
    int32_t ndim;
    int64_t shape[SAFETENSORS_DIMS_MAX];
    uint64_t elements, begin, end; /* begin, end: bytes from the start of the data */
} safetensors_row;

int safetensors_dtype_of(pen_dtype t); /* the dtype of a row; F32 is 0 */

/* ---- writing ---------------------------------------------------------------------------------- */
typedef struct safetensors_writer safetensors_writer;

/* Begins PATH with these rows; begin and end need not be set.  metadata: key, value, ..., NULL.  PATH changes only when
 * safetensors_finish() succeeds.
 * Errors     STORE: path and cause. */
pen_status safetensors_create(const char *path, const safetensors_row *rows, size_t n,
                              const char *const *metadata, safetensors_writer **w, pen_error *why);
/* The next values of rows of F32, F16 and BF16, in the order of the rows; rounded to nearest even for 16-bit rows.  They
 * may span several rows. */
pen_status safetensors_append(safetensors_writer *w, const float *values, size_t count,
                              pen_error *why);
/* The whole next row, of any type, in that type. */
pen_status safetensors_append_row(safetensors_writer *w, const void *values, pen_error *why);
/* Durable on PEN_OK.  w is freed in any case. */
pen_status safetensors_finish(safetensors_writer *w, pen_error *why);
void safetensors_abandon(safetensors_writer *w); /* NULL is fine */

/* Elements [start, start + count) of a row, at most SAFETENSORS_PIECE of them. */
typedef pen_status (*safetensors_source)(void *user, size_t row, uint64_t start, size_t count,
                                         float *values, pen_error *why);

/* Writes a whole file from what `source` returns, piece by piece. */
pen_status safetensors_write(const char *path, const safetensors_row *rows, size_t n,
                             const char *const *metadata, safetensors_source source, void *user,
                             pen_error *why);

/* ---- reading ---------------------------------------------------------------------------------- */
typedef struct safetensors_reader safetensors_reader;

/* Opens PATH and checks its header, which is not trusted.  CORRUPT, UNSUPPORTED: file, tensor, cause. */
pen_status safetensors_open(const char *path, safetensors_reader **r, pen_error *why);
void safetensors_close(safetensors_reader *r); /* NULL is fine */

/* In file order.  BORROWED until the reader is closed. */
const safetensors_row *safetensors_rows(const safetensors_reader *r, size_t *n);

/* Elements [start, start + count) of a row as float32.  UNSUPPORTED: float32 cannot hold a value exactly. */
pen_status safetensors_read(safetensors_reader *r, const safetensors_row *row, uint64_t start,
                            size_t count, float *values, pen_error *why);
/* A whole row, in its own type. */
pen_status safetensors_read_row(safetensors_reader *r, const safetensors_row *row, void *values,
                                pen_error *why);

#endif
