/* export.h - parameters to and from a safetensors file, in every mode.
 *
 * Rank 0 writes the file piece by piece, with the values as the program sees them.  When not all
 * values are on one rank (zero3), all ranks take part, unit by unit.
 */
#ifndef WORKER_EXPORT_H
#define WORKER_EXPORT_H

#include "worker/context.h"

typedef enum { EXPORT_AS_IT_IS, EXPORT_F32, EXPORT_F16, EXPORT_BF16, EXPORT_16_BITS } export_dtype;

/* "safetensors", "safetensors dtype=bf16".  BAD_SETTING. */
pen_status export_parse(const char *format, export_dtype *as, pen_error *why);

/* Thread  the program's, without the step's lock.  STORE names path and cause. */
pen_status export_write(pen_ctx *ctx, const char *path, export_dtype as, pen_error *why);

/* Writes the 16-bit file of the snapshot of `step` into the store and removes old ones.
 * EXPORT_16_BITS keeps a type of 16 bits; else it is f16 with precision=fp16, and bf16 otherwise. */
pen_status export_beside(pen_ctx *ctx, int64_t step, pen_error *why);

/* Before pen_commit() on rank 0: reads all tensors by name.  NOT_FOUND, MISMATCH: nothing was read; *why names them. */
pen_status export_read(pen_ctx *ctx, const char *path, pen_error *why);

#endif
