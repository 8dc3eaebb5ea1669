/* snapshot_memory.h - bounds what copies for a snapshot take while training goes on.
 *
 * DESIGN.  A cut refers to the model as it was; an update of a chunk that the cut still holds copies it first.  So a
 * snapshot may double the memory of a server.  The store thread says what it holds and what it has let go of; a shard
 * asks before it copies, and waits when copies would take more than bytes_max until the store thread, which writes in
 * the same order in which shards update, has let go of more.  A disk that hangs must not hold training up for long:
 * after PATIENCE_MS copies are made all the same, until the snapshot is done with.
 * Who is short of memory sets bytes_max low and pays with the time of the disk; else only memory is paid.
 * Thread: any.
 */
#ifndef SERVER_SNAPSHOT_MEMORY_H
#define SERVER_SNAPSHOT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct snapshot_memory snapshot_memory;

/* most_at may be NULL: called, with the lock held, whenever copies take more than ever before.  NULL: no memory. */
snapshot_memory *snapshot_memory_create(uint64_t bytes_max,
                                        void (*most_at)(void *user, uint64_t bytes), void *user);
void snapshot_memory_destroy(snapshot_memory *self); /* NULL is fine; nobody waits any more */

/* The store thread: so much of the model is now held by a cut; so much of that was let go of, and its shard had
 * made a copy of it (was_copied) or goes on with it. */
void snapshot_memory_hold(snapshot_memory *self, uint64_t bytes);
void snapshot_memory_release(snapshot_memory *self, uint64_t bytes, bool was_copied);

/* A shard: is about to copy so much.  Returns at once when nothing is held.  False: it waited in vain. */
bool snapshot_memory_take(snapshot_memory *self, uint64_t bytes);

enum { SNAPSHOT_MEMORY_PATIENCE_MS = 10000 };

#endif
