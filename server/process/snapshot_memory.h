/* snapshot_memory.h - bounds the memory of copies made for a snapshot during training.
 *
 * DESIGN.  A capture refers to the model as it was; an update first copies a chunk that the capture still holds.  So a
 * snapshot may double a server's memory.  The store thread reports what it holds and releases.  A shard asks before it
 * copies, and waits while copies would exceed bytes_max; the store thread writes in the order of the updates, so it
 * releases the next needed chunk.  A hanging disk must not stop training: after PATIENCE_MS, copies are made anyway
 * until the snapshot ends.  A low bytes_max saves memory and costs disk time.
 * Thread: any.
 */
#ifndef SERVER_SNAPSHOT_MEMORY_H
#define SERVER_SNAPSHOT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct snapshot_memory snapshot_memory;

/* most_at may be NULL: called with the lock held at each new maximum of copies.  NULL: no memory. */
snapshot_memory *snapshot_memory_create(uint64_t bytes_max,
                                        void (*most_at)(void *user, uint64_t bytes), void *user);
void snapshot_memory_destroy(snapshot_memory *self); /* NULL is fine; no thread may be waiting */

/* The store thread: a capture now holds this many bytes; it released this many, which its shard copied (was_copied) or
 * still uses. */
void snapshot_memory_hold(snapshot_memory *self, uint64_t bytes);
void snapshot_memory_release(snapshot_memory *self, uint64_t bytes, bool was_copied);

/* A shard, before it copies this many bytes.  Returns at once if nothing is held.  False: the wait timed out. */
bool snapshot_memory_take(snapshot_memory *self, uint64_t bytes);

enum { SNAPSHOT_MEMORY_PATIENCE_MS = 10000 };

#endif
