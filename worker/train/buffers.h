/* buffers.h - PEN_BUFFER: tensors that are not trained but kept equal, such as the running means of a BatchNorm.
 *
 * DESIGN.  Buffers are no part of the model that strategies and servers know; REGISTER has only a hash of their
 * descriptions, for comparison.  All workers keep them, of any type, in host memory.  At pen_commit() all get rank 0's values.  pen_step_end() makes them equal again, so the next forward pass
 * reads equal values: by one call for each type that occurs, on a group of their own, since small buffers are many.
 *   Snapshots have them as states of the program (state_table.h): rank 0's, or with buffers=own each rank's.
 * Threads: as pen_commit() and pen_step_end().
 */
#ifndef WORKER_TRAIN_BUFFERS_H
#define WORKER_TRAIN_BUFFERS_H

#include "worker/context.h"

/* After the strategy was opened.  Sets ctx->memory.buffers, or leaves it NULL: there are none. */
pen_status buffers_open(pen_ctx *ctx, pen_error *why);
void buffers_close(pen_ctx *ctx); /* once no call is in progress */

/* Waits for all ranks. */
pen_status buffers_sync(pen_ctx *ctx, pen_error *why);

#endif
