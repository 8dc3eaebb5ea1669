/* store.h - the one door to LMDB: snapshots of parameters, slots and step, whole or not at all.
 *
 * DESIGN.  A store is a directory that all servers of a job can reach.  Each server writes one LMDB
 * environment in it (part-<rank>/); a snapshot's part is written in one transaction, so a crash leaves the
 * part before or the part after, never a mixture.  Values are keyed by snapshot step, tensor name, what ("param" or
 * a slot's name) and first element, and carry CRC32C and their element count, so they can be read back by
 * element range, onto any number of servers.
 * A snapshot is COMPLETE when the parts of one id together cover every element of every tensor in the
 * manifest, which each part carries whole: a property of the parts, found by reading them.
 * What is not promised: that a store on NFS works (LMDB's locks do not), or that two jobs may share one:
 * a store remembers its job.
 * Thread: one thread per handle.  Every failure is a sentence that names the file and what to do.
 */
#ifndef COMMON_STORE_H
#define COMMON_STORE_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct store store;               /* one server's environment, open for writing   */
typedef struct store_reader store_reader; /* all parts of a store directory, read-only     */

enum { STORE_KEEP = 2 }; /* complete snapshots kept */

/* One row per tensor: what a complete snapshot must cover. */
typedef struct {
    const char *name;
    uint64_t elements;
    int32_t slots; /* trained state vectors beside the parameters */
    const char *slot_names[3];
    const char *optim; /* the group's rule string, for sentences when it differs */
} store_tensor;

typedef struct {
    int64_t step;    /* the snapshot's name: steps ended before it            */
    int64_t applied; /* updates applied (AdamW's t)                           */
    uint64_t id;     /* equal on all parts of one snapshot                    */
    const char *job;
    uint32_t n_tensors;
    const store_tensor *tensor;
} store_manifest;

/* Opens (and makes) DIR/part-<rank>.  The map grows as needed; disk full is STORE with a sentence. */
pen_status store_open(const char *dir, int32_t rank, store **s, pen_error *why);
void store_close(store *s); /* NULL is fine */

/* One snapshot part = begin, any number of puts, commit (durable when it returns) or abort. */
pen_status store_begin(store *s, const store_manifest *m, pen_error *why);
pen_status store_put(store *s, const char *tensor, const char *what, uint64_t start, uint64_t count,
                     const float *values, pen_error *why);
/* A small named blob of the part (counters per rank and chunk, and such). */
pen_status store_put_blob(store *s, const char *name, const void *data, size_t size,
                          pen_error *why);
pen_status store_commit(store *s, pen_error *why);
void store_abort(store *s);

/* Deletes this server's parts of all snapshots older than `step`. */
pen_status store_forget_before(store *s, int64_t step, pen_error *why);

/* Reading: all parts of DIR, whoever wrote them. */
pen_status store_reader_open(const char *dir, store_reader **r, pen_error *why);
void store_reader_close(store_reader *r);
/* Steps of the complete snapshots, ascending, at most cap; returns how many there are.  Incomplete ones are skipped. */
size_t store_reader_steps(store_reader *r, int64_t *steps, size_t cap);
/* BORROWED until the reader is closed. */
pen_status store_reader_manifest(store_reader *r, int64_t step, const store_manifest **m,
                                 pen_error *why);
/* Fills values[count] from whatever parts hold the range; checks every checksum.  NOT_FOUND names what is missing, CORRUPT
 * names tensor and file. */
pen_status store_read(store_reader *r, int64_t step, const char *tensor, const char *what,
                      uint64_t start, uint64_t count, float *values, pen_error *why);
/* The blob of every part that has one: calls fn for each. */
pen_status store_read_blobs(store_reader *r, int64_t step, const char *name,
                            void (*fn)(const void *data, size_t size, void *user), void *user,
                            pen_error *why);
/* Reads everything of one snapshot and checks it. */
pen_status store_verify(store_reader *r, int64_t step, pen_error *why);

#endif
