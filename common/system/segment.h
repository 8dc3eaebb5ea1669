/* segment.h - host memory that other processes of the same user can map: memfd, never a name in a file system.
 *
 * A segment is zeroed, page-aligned and of fixed, sealed length. Small allocations share segments, so that a model
 * of thousands of tensors needs few descriptors. Its descriptor is named after its id, so that a peer can check
 * what it opens. Unused mappings stay cached until their owner has freed the segment, which the next reference of
 * that process reveals, or until there are too many. A forked child shares its parent's allocations byte for byte;
 * freeing them there does not affect the parent, and the child's own allocations lie elsewhere. All functions: any
 * thread.
 */
#ifndef COMMON_SEGMENT_H
#define COMMON_SEGMENT_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The place of bytes, for a process that maps them: POD, may lie in shared memory itself. */
typedef struct {
    uint64_t id;     /* random, drawn when the segment was made */
    uint64_t size;   /* of the whole segment */
    uint64_t offset; /* of the bytes */
    uint64_t closed; /* segments this process has freed so far */
    int32_t pid, fd; /* /proc/PID/fd/FD */
} segment_ref;

/* Zeroed, 64-byte aligned memory; NULL and *why if none is left.  bytes 0 counts as 1. */
void *segment_alloc(size_t bytes, pen_error *why);
/* The same in its own segment: after the free, peers that have it mapped can still read the last contents. */
void *segment_alloc_apart(size_t bytes, pen_error *why);
/* Frees memory of segment_alloc(), with its last owner; false and no effect for other memory.  Peers keep their
 * mapping. */
bool segment_free(void *data);
/* One more owner, who calls segment_free() too; false for other memory. */
bool segment_keep(const void *data);
/* Whether the allocation of `data` has one owner and is not detached: that owner may use it for something else. */
bool segment_is_sole(const void *data);

/* Populates the pages now, so that first use is fast.  Only advice. */
void segment_populate(void *data, size_t bytes);

/* Whether [data, data + bytes) lies in one live allocation of segment_alloc() of this process; then *ref says where. */
bool segment_find(const void *data, size_t bytes, segment_ref *ref);

/* Detaches the allocation of `data` from every peer that has it mapped: address and contents stay, but peers'
 * writes no longer reach it, and segment_find() no longer finds it.  Only for allocations of at least
 * SEGMENT_ALONE_BYTES, which share no page with others; false for others and without memory. */
enum { SEGMENT_ALONE_BYTES = 64 << 10 };
bool segment_detach(const void *data);

/* Maps a peer's segment for reading and writing, or returns the mapping it already has (counted).  The pointer is
 * to ref->offset.  *ref is not trusted: the process and the file must be this user's, the file a sealed segment of
 * that id and of exactly that size, with [offset, offset + bytes) inside. An existing mapping serves only
 * references of the same process, descriptor, id and size. UNREACHABLE: process or descriptor gone, another user,
 * another pid namespace. CORRUPT: not a segment of this size. */
pen_status segment_map(const segment_ref *ref, size_t bytes, void **data, pen_error *why);
void segment_unmap(
    const segment_ref *ref); /* the same reference; keep a copy if a peer can write to it */
/* Copies bytes of a peer's segment, with the checks and errors of segment_map(), and maps nothing: a mapping of a few
 * bytes costs a page of tables more. */
pen_status segment_read(const segment_ref *ref, void *to, size_t bytes, pen_error *why);
void segment_unmap_all_of(int32_t pid); /* a peer is gone */

#endif
