/* segment.h - host memory that other processes of the same user can map: memfd, never a name in a file system.
 *
 * A segment is zeroed, aligned to pages and as long as it was made; nobody can change its length (sealed).
 * Small allocations share segments, so that a model of thousands of tensors needs few descriptors.
 * Its descriptor is named after its id, so that a peer sees whether what it opens is still what was meant.
 * Mappings that nobody counts any more are kept for the next call; they go when their owner has freed the segment,
 * which the next reference of that process tells, or when there are too many.
 * A forked child shares what its parent had allocated, byte for byte; freeing it there changes nothing for the parent,
 * and the child's own allocations lie elsewhere.
 * All functions: any thread.
 */
#ifndef COMMON_SEGMENT_H
#define COMMON_SEGMENT_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where bytes lie, for a process that wants to map them: POD, may lie in shared memory itself. */
typedef struct {
    uint64_t id;     /* drawn at random when the segment was made; written into nothing else */
    uint64_t size;   /* of the whole segment */
    uint64_t offset; /* of the bytes meant */
    uint64_t closed; /* segments this process has given back so far */
    int32_t pid, fd; /* /proc/PID/fd/FD */
} segment_ref;

/* Zeroed, 64-byte aligned memory; NULL and *why when there is none.  bytes 0 counts as 1. */
void *segment_alloc(size_t bytes, pen_error *why);
/* The same in a segment of its own: what it holds when it is freed, peers that have it mapped can still read. */
void *segment_alloc_apart(size_t bytes, pen_error *why);
/* What segment_alloc() gave; false, and nothing done, for all else.  Peers that have it mapped keep their view. */
bool segment_free(void *data);

/* Makes the pages present now, so that first use is not slow.  Only advice. */
void segment_populate(void *data, size_t bytes);

/* Whether [data, data + bytes) lies in one live allocation of segment_alloc() of this process; then *ref says where. */
bool segment_find(const void *data, size_t bytes, segment_ref *ref);

/* Takes the allocation that holds `data` away from every peer that has it mapped: it keeps its address and contents,
 * but what they write from now on goes nowhere, and segment_find() no longer finds it.  Only allocations of at least
 * SEGMENT_ALONE_BYTES, which share no page with others; false for all else and when memory is short. */
enum { SEGMENT_ALONE_BYTES = 64 << 10 };
bool segment_detach(const void *data);

/* Maps a peer's segment for reading and writing, or returns the mapping it already has (counted).  The pointer is to
 * ref->offset.  Nothing that *ref says is believed: the process and the file must be this user's, the file a sealed
 * segment of that id and of exactly that size, and [offset, offset + bytes) lies inside what the kernel says of it.
 * A mapping that is there already serves only a reference of the same process, descriptor, id and size.
 * UNREACHABLE: no such process or descriptor any more, another user, another pid namespace.
 * CORRUPT: what is there is no segment of this size. */
pen_status segment_map(const segment_ref *ref, size_t bytes, void **data, pen_error *why);
void segment_unmap(
    const segment_ref
        *ref); /* the same reference, also when it lay where a peer writes: keep a copy */
void segment_unmap_all_of(int32_t pid); /* a peer is gone */

#endif
