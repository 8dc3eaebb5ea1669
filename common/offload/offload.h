/* offload.h - arrays stored outside of memory, loaded only while in use.
 *
 * DESIGN.  An EXTENT is an array of fixed size.  A MEMBER of the family (a file, or memory) stores all extents of
 * a tier.  The owner's thread processes one extent after the other:
 *
 *   offload_prefetch(i + 1)   starts reading the next one, in a thread of the tier
 *   offload_load(i)           returns the content in memory
 *   ... the owner changes it ...
 *   offload_store(i)          returns it: another thread of the tier writes it while the owner continues
 *
 * so that i + 1 is read and i - 1 written while i is in use.  The memory in use at a time is STAGING, and bounded.
 * Nothing is cached after a write.
 *
 *   checked    every version of an extent has a CRC32C, made before it is written and compared after it was read
 *   held       offload_hold() keeps the present version for a snapshot; later stores go to another
 *              place, and the old one is reused when it is released.  Without room for another place the
 *              held version is lost, not the one being stored; reading it then fails with that reason
 *   zero       unstored extents are zeros, without a read
 *   failing    a failed write ends the tier: every later call returns the reason.  Held versions stay readable
 *
 * A tier is scratch: it starts empty and leaves nothing behind.  Snapshots hold what must survive.
 * Thread: all functions of a tier belong to its owner; buffers and holds may be used and released in any thread,
 * also after offload_close().  Every wait for the medium ends after OFFLOAD_PATIENCE_MS.
 */
#ifndef COMMON_OFFLOAD_H
#define COMMON_OFFLOAD_H

#include "common/containers/buf.h"
#include "common/base/stat.h"
#include "penstock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    OFFLOAD_ALIGN       = 4096, /* of addresses, offsets and sizes that a member sees */
    OFFLOAD_PATIENCE_MS = 120000
};
#define OFFLOAD_NO_EXTENT UINT32_MAX

typedef struct {
    const char *name;  /* "file" */
    const char *doc;   /* one sentence for docs/families.md */
    size_t state_size; /* the caller allocates, zeroes and frees this many bytes */

    /* Creates an empty place in folder dir (unused by memory).  Must leave *state safe for close() even if it
     * fails. */
    pen_status (*open)(void *state, const char *dir, pen_error *why);
    /* Reserves room for bytes in total.  PEN_STORE: no room; contents unchanged. */
    pen_status (*grow)(void *state, uint64_t bytes, pen_error *why);
    /* Transfer all n bytes, or fail.  to, from, at and n are multiples of OFFLOAD_ALIGN; several threads may call
     * at once, but never for bytes being written. */
    pen_status (*read)(void *state, uint64_t at, void *to, size_t n, pen_error *why);
    pen_status (*write)(void *state, uint64_t at, const void *from, size_t n, pen_error *why);
    void (*close)(void *state); /* removes everything it created */
} offload_ops;

extern const offload_ops *const offload_all[]; /* NULL-terminated; tests walk this */
const offload_ops *offload_find(const char *name);

typedef struct offload offload;
typedef struct offload_hold offload_hold;

typedef struct {
    const offload_ops *ops;
    const char *dir;            /* BORROWED for the call */
    uint64_t staging_bytes_max; /* buffers in use at a time; one extent is always admitted */
    /* tier.bytes, tier.read.bytes, tier.write.bytes; BORROWED until offload_close() */
    stat_set *stats;
} offload_options;

/* Opens an empty tier and starts its threads. */
pen_status offload_open(const offload_options *options, offload **out, pen_error *why);

/* Waits until everything stored is written (or has failed).  NULL is fine. */
void offload_close(offload *self);

/* Adds an extent of `bytes` zeros.  OFFLOAD_NO_EXTENT: no memory.  Call before offload_reserve(). */
uint32_t offload_add(offload *self, size_t bytes);

/* Reserves room for all extents, once.  PEN_STORE: not enough disk space. */
pen_status offload_reserve(offload *self, pen_error *why);

/* Starts reading if staging has room and no read is under way. */
void offload_prefetch(offload *self, uint32_t extent);

/* Returns the content for exclusive use, to be changed and stored again (released only when abandoning the tier).
 * To read only, call offload_look().  Ownership  *content is OWNED by the caller, on PEN_OK.
 * Errors     PEN_STORE, PEN_CORRUPT (checksum mismatch), PEN_NO_MEMORY, PEN_TIMED_OUT. */
pen_status offload_load(offload *self, uint32_t extent, buf **content, pen_error *why);

/* Like offload_load(), for reading only: the content may be shared with a write in progress. */
pen_status offload_look(offload *self, uint32_t extent, buf **content, pen_error *why);

/* Returns memory for completely new content. */
pen_status offload_blank(offload *self, uint32_t extent, buf **content, pen_error *why);

/* Sets the extent's content; another thread writes it later.  Ownership  content is OWNED by the callee on any
 * status; it came from this tier and must not change any more. */
pen_status offload_store(offload *self, uint32_t extent, buf *content, pen_error *why);

/* ---- held versions --------------------------------------------------------------------------- */
/* Holds the current content; not between offload_load() and offload_store().  NULL: no memory. */
offload_hold *offload_hold_take(offload *self, uint32_t extent);

/* Reads the held content, once it is written.  Thread: any.  PEN_STORE: it was lost, or could not be written. */
pen_status offload_hold_read(offload_hold *held, buf **content, pen_error *why);
void offload_hold_release(offload_hold *held); /* any thread; NULL is fine */

#endif
