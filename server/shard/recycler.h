/* recycler.h - buffers reused from snapshot to snapshot.
 *
 * DESIGN.  A copy made for a snapshot replaces what the snapshot holds, and that memory is free again once it is
 * written.  The next snapshot needs the same amount.  The kernel must clear fresh memory page by page while a step
 * waits, so buffers are kept here: as many as one snapshot took, at most bytes_max.
 * Thread: any; buffers may outlive the recycler.
 */
#ifndef SERVER_RECYCLER_H
#define SERVER_RECYCLER_H

#include "common/containers/buf.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct recycler recycler;

recycler *recycler_create(uint64_t bytes_max); /* NULL: no memory */
void recycler_destroy(recycler *self);         /* NULL is fine */

/* size bytes of arbitrary content, lendable (common/net/transport/lend.h) or not.  NULL: no memory.  Without self, a
 * plain buffer. */
buf *recycler_take(recycler *self, size_t size, bool lends);

#endif
