/* store.h - snapshots of parameters, slots and step on a disk: whole or not at all.
 *
 * DESIGN.  A store is a directory that all servers of a job can reach.  Each server has a folder in it,
 * part-<rank>/, and writes its part of a snapshot as one file, an LMDB environment (store_env.h) that has its name only
 * when everything in it is on the disk: a crash leaves the part or no part, never something between.  Files of
 * older snapshots are not touched meanwhile; they go by unlink(), so that a store never grows beyond what is kept.
 * Values are keyed by tensor, what ("param" or a slot's name) and first element, carry CRC32C and their count, and
 * can be read back by element range, onto any number of servers.
 * A snapshot is COMPLETE when the parts of one id together cover every element of every tensor in the manifest,
 * which each part carries whole: a property of the parts, found by reading them.
 * What is not promised: that a store on NFS works (its renames and locks are the server's affair), or that two jobs
 * may write into one.
 * docs/design/store.md has the layout byte by byte.
 * Thread: one thread per handle.  Every failure is a sentence that names the file and what to do.
 */
#ifndef COMMON_STORE_H
#define COMMON_STORE_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct store store;               /* one server's folder, open for writing      */
typedef struct store_reader store_reader; /* all parts of a store directory, read-only  */

enum {
    STORE_FORMAT     = 2, /* written; this and the one before are read */
    STORE_SLOTS_MAX  = 3,
    STORE_DIMS_MAX   = 8,
    STORE_NAME_BYTES = 256, /* longest name or setting, with its end */
    STORE_GROUP_BYTES =
        8 << 20 /* memory that writing a part takes, whatever its size; more is slower (store.md) */
};

/* One row per tensor: what a complete snapshot must cover. */
typedef struct {
    const char *name;
    uint64_t elements;
    int32_t slots; /* trained state vectors beside the parameters */
    const char *slot_names[STORE_SLOTS_MAX];
    const char *optim; /* the group's rule string, for sentences when it differs */
    int32_t dtype;     /* pen_dtype of the program's tensor; values are float32 always */
    int32_t ndim;      /* 0 with elements > 1: unknown (format 1) */
    int64_t shape[STORE_DIMS_MAX];
} store_tensor;

typedef struct {
    const char *key, *value;
} store_setting;

typedef struct {
    int64_t step;    /* the snapshot's name: steps ended before it */
    int64_t applied; /* updates applied (AdamW's t, and the position of schedules of the rate) */
    uint64_t id; /* equal on all parts of one snapshot                                            */
    const char *job;
    bool is_import; /* parameters only: slots begin as the rule begins them */
    uint32_t n_tensors, n_settings;
    const store_tensor *tensor;
    const store_setting *setting; /* what the workers agreed on, for people */
    /* Set by store_begin() and found by readers. */
    uint32_t format;
    int64_t written_ms;  /* since 1970 */
    const char *version; /* of the penstock that wrote it */
} store_manifest;

/* ---- writing: store.c ------------------------------------------------------------------------- */

/* Opens (and makes) DIR/part-<rank> for this process alone; leftovers of a crash are removed.
 * Errors     STORE: cannot be made, not permitted, in use by another server. */
pen_status store_open(const char *dir, int32_t rank, store **s, pen_error *why);
void store_close(store *s); /* NULL is fine; a part that was begun is aborted */

/* One snapshot part = begin, any number of puts, commit (durable when it returns) or abort.  After a failure of any
 * of them abort; nothing of the part is left.
 * Ownership  everything is copied.
 * Errors     STORE: no space, not permitted, failing disk.  NOT_FOUND: the manifest has no such tensor.
 * Cost       begin, put: memory of STORE_GROUP_BYTES and no waiting for the disk; commit waits for it. */
pen_status store_begin(store *s, const store_manifest *m, pen_error *why);
pen_status store_put(store *s, const char *tensor, const char *what, uint64_t start, uint64_t count,
                     const float *values, pen_error *why);
/* A small named blob of the part (counters per rank and chunk, and such). */
pen_status store_put_blob(store *s, const char *name, const void *data, size_t size,
                          pen_error *why);
pen_status store_commit(store *s, pen_error *why);
void store_abort(store *s);

/* Whether the newest failure of them in this thread was that the disk, or a quota on it, has no room for more. */
bool store_lacked_room(void);

/* Deletes this server's parts that were written before its newest of step keep[n - 1], which is known to be
 * complete on all servers, except the newest of each step in keep.  What was written after is left alone.
 * A server that has no part of keep[n - 1] deletes those of lower steps. */
pen_status store_forget(store *s, const int64_t *keep, size_t n, pen_error *why);

/* Deletes this server's parts that were written after its newest of `step`: training has gone back to that step,
 * and they are of steps that never happened. */
pen_status store_forget_after(store *s, int64_t step, pen_error *why);

/* Deletes this server's part of a snapshot that another server could not write. */
pen_status store_drop(store *s, int64_t step, uint64_t id, pen_error *why);

/* The same as store_forget() in the folders of ranks from n_servers on, which an earlier run with more servers left.
 * Folders in use are passed over.  Steps in keep stay. */
pen_status store_forget_strays(const char *dir, int32_t n_servers, const int64_t *keep, size_t n,
                               pen_error *why);

/* ---- reading: store_reader.c -------------------------------------------------------------------- */

/* All parts of DIR, whoever wrote them.  A directory that is not there has none.  A part that is damaged is no error
 * here: its snapshot is not complete, and says why.
 * Errors     STORE: the directory cannot be read.  CORRUPT: a file of format 1 is damaged. */
pen_status store_reader_open(const char *dir, store_reader **r, pen_error *why);
void store_reader_close(store_reader *r); /* NULL is fine */

/* Steps of the complete snapshots, ascending, at most cap; returns how many there are. */
size_t store_reader_steps(store_reader *r, int64_t *steps, size_t cap);

/* Every snapshot, complete or not, in the order of steps; two of one step in the order they were written. */
typedef struct {
    int64_t step, written_ms, applied;
    uint64_t id, bytes; /* of its files; format 1: of the values */
    uint32_t parts, format, n_tensors;
    bool is_complete;
    bool is_superseded; /* complete, but another of this step was written later */
    bool is_import;
    const char *job, *version; /* BORROWED until the reader is closed */
    const pen_error *trouble;  /* why it is not complete; NULL when it is */
} store_entry;
size_t store_reader_list(store_reader *r, store_entry *entries, size_t cap);

/* The newest damaged snapshot, should it be newer than the newest complete one: CORRUPT or UNSUPPORTED, and its
 * sentence.  OK otherwise. */
pen_status store_reader_trouble(store_reader *r, pen_error *why);

/* BORROWED until the reader is closed. */
pen_status store_reader_manifest(store_reader *r, int64_t step, const store_manifest **m,
                                 pen_error *why);
/* Fills values[count] from whatever parts hold the range; checks every checksum.  NOT_FOUND names what is missing,
 * CORRUPT names tensor and file. */
pen_status store_read(store_reader *r, int64_t step, const char *tensor, const char *what,
                      uint64_t start, uint64_t count, float *values, pen_error *why);
/* The blob of every part that has one: calls fn for each. */
pen_status store_read_blobs(store_reader *r, int64_t step, const char *name,
                            void (*fn)(const void *data, size_t size, void *user), void *user,
                            pen_error *why);
/* Reads everything of one snapshot and checks it: values, blobs, and that nothing is missing.  A snapshot that is
 * not complete: its trouble. */
pen_status store_verify(store_reader *r, int64_t step, uint64_t *bytes, pen_error *why);

/* Writes one complete snapshot into another store, part by part, in today's format.
 * Errors     as those of reading and writing; WRONG_STATE: `dir` has a snapshot of this step or a later one, and a job
 *            would go on from that. */
pen_status store_copy(store_reader *r, int64_t step, const char *dir, pen_error *why);

/* Whether a snapshot is of this model: the same tensors with the same sizes and the same slots.
 * MISMATCH: the first difference, by name. */
pen_status store_compare(const store_manifest *kept, const store_manifest *wanted, const char *dir,
                         pen_error *why);

#endif
