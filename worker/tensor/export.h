/* export.h - parameters as a safetensors file, and from one: whatever mode holds them.
 *
 * A file is written by rank 0, piece by piece, of the values as the program sees them; where they are not all there
 * (zero3) every rank takes part, unit by unit.
 */
#ifndef WORKER_EXPORT_H
#define WORKER_EXPORT_H

#include "worker/context.h"

typedef enum { EXPORT_AS_IT_IS, EXPORT_F32, EXPORT_F16, EXPORT_BF16, EXPORT_16_BITS } export_dtype;

/* "safetensors", "safetensors dtype=bf16".  BAD_SETTING. */
pen_status export_parse(const char *format, export_dtype *as, pen_error *why);

/* Thread  the program's, without the step's lock.  STORE: path and cause. */
pen_status export_write(pen_ctx *ctx, const char *path, export_dtype as, pen_error *why);

/* The file of 16 bits that belongs to the snapshot of `step`, in the store; old ones go.  EXPORT_16_BITS is a tensor's
 * own type where it has 16 bits, else f16 with precision=fp16, else bf16. */
pen_status export_beside(pen_ctx *ctx, int64_t step, pen_error *why);

/* Before pen_commit(), on rank 0: all tensors, by name.  NOT_FOUND, MISMATCH: nothing was written, and which. */
pen_status export_read(pen_ctx *ctx, const char *path, pen_error *why);

#endif
