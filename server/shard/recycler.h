/* recycler.h - memory of one size that is given up and wanted again, snapshot after snapshot.
 *
 * DESIGN.  A copy made for a snapshot takes the place of what the snapshot holds, and what it held is free once it is
 * written: as much memory as the next snapshot will want.  Memory fresh from the kernel has to be cleared, page by
 * page, while a step waits; so buffers come back here instead of going there.
 * What is kept is what one snapshot took, at most bytes_max.
 * Thread: any; buffers may outlive the recycler.
 */
#ifndef SERVER_RECYCLER_H
#define SERVER_RECYCLER_H

#include "common/base/buf.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct recycler recycler;

recycler *recycler_create(uint64_t bytes_max); /* NULL: no memory */
void recycler_destroy(recycler *self);         /* NULL is fine    */

/* size bytes of any content, that can be lent (common/net/transport/lend.h) or not.  NULL: no memory.  With self NULL a
 * plain buffer of the kind. */
buf *recycler_take(recycler *self, size_t size, bool lends);

#endif
