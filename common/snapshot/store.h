/* store.h - atomic snapshots of parameters, slots and step on disk.
 *
 * DESIGN.  A store is a directory that all servers of a job can reach.  Each server has a folder in it,
 * part-<rank>/, and writes its part of a snapshot as one file, an LMDB environment (store_env.h).  The file gets
 * its name only when its content is on the disk, so a crash leaves a whole part or none.  Older files are never
 * modified; unlink() removes them, so a store never grows beyond what is kept.  Values are keyed by tensor, what
 * ("param" or a slot's name) and first element.  They carry CRC32C and their count, and can be read back by
 * element range, onto any number of servers.
 * A snapshot is COMPLETE when the parts of one id together cover every element of every tensor in the manifest.
 * Each part carries the whole manifest; readers find out by reading the parts.
 * Not promised: that a store on NFS works (it depends on the NFS server's renames and locks), or that two jobs may
 * write into one store.  docs/design/store.md has the layout byte by byte.
 * Thread: one thread per handle.  Every failure is a sentence that names the file and the remedy.
 */
#ifndef COMMON_STORE_H
#define COMMON_STORE_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct store store;               /* one server's folder, open for writing */
typedef struct store_reader store_reader; /* all parts of a store directory, read-only */

enum {
    STORE_FORMAT     = 2, /* the version written; it and the previous one can be read */
    STORE_SLOTS_MAX  = 3,
    STORE_DIMS_MAX   = 8,
    STORE_NAME_BYTES = 256, /* longest name or setting, including the terminator */
    STORE_GROUP_BYTES =
        8 << 20 /* memory for writing a part of any size; more is slower (store.md) */
};

/* One row per tensor: what a complete snapshot must cover. */
typedef struct {
    const char *name;
    uint64_t elements;
    int32_t slots; /* trained state vectors beside the parameters */
    const char *slot_names[STORE_SLOTS_MAX];
    const char *optim; /* the group's rule string, for error messages */
    int32_t dtype;     /* pen_dtype of the program's tensor; stored values are always float32 */
    int32_t ndim;      /* 0 with elements > 1: unknown */
    int64_t shape[STORE_DIMS_MAX];
} store_tensor;

typedef struct {
    const char *key, *value;
} store_setting;

typedef struct {
    int64_t step;    /* the snapshot's name: number of steps completed before it */
    int64_t applied; /* updates applied: t of AdamW, and the position of rate schedules */
    uint64_t id;     /* equal on all parts of one snapshot */
    const char *job;
    bool is_import; /* parameters only: slots start as the rule initialises them */
    uint32_t n_tensors, n_settings;
    const store_tensor *tensor;
    const store_setting *setting; /* what the workers agreed on, for human readers */
    /* Set by store_begin() and by readers. */
    uint32_t format;
    int64_t written_ms;  /* ms since 1970 */
    const char *version; /* penstock version that wrote it */
} store_manifest;

/* ---- writing: store.c ------------------------------------------------------------------------- */

/* Opens or creates DIR/part-<rank> for this process only; removes leftovers of a crash.
 * Errors     STORE: cannot be created, not permitted, in use by another server. */
pen_status store_open(const char *dir, int32_t rank, store **s, pen_error *why);
void store_close(store *s); /* NULL is fine; aborts an open part */

/* One snapshot part = begin, any number of puts, commit (durable when it returns) or abort.  After any failure,
 * call abort; nothing of the part remains.
 * Ownership  everything is copied.
 * Errors     STORE: no space, not permitted, failing disk.  NOT_FOUND: the manifest has no such tensor.
 * Cost       begin, put: STORE_GROUP_BYTES of memory, without waiting for the disk; commit waits for it. */
pen_status store_begin(store *s, const store_manifest *m, pen_error *why);
pen_status store_put(store *s, const char *tensor, const char *what, uint64_t start, uint64_t count,
                     const float *values, pen_error *why);
/* A small named blob of the part, for example counters per rank and chunk. */
pen_status store_put_blob(store *s, const char *name, const void *data, size_t size,
                          pen_error *why);
pen_status store_commit(store *s, pen_error *why);
void store_abort(store *s);

/* Whether the calling thread's latest store failure was a full disk or an exceeded quota. */
bool store_lacked_room(void);

/* Deletes this server's parts older than its newest part of step keep[n - 1], which is known to be complete on all
 * servers.  The newest part of each step in keep stays, as does everything written later.  A server without a part
 * of keep[n - 1] deletes the parts of lower steps. */
pen_status store_forget(store *s, const int64_t *keep, size_t n, pen_error *why);

/* Deletes this server's parts newer than its newest part of `step`: training has gone back to that step, so later
 * steps are void. */
pen_status store_forget_after(store *s, int64_t step, pen_error *why);

/* Deletes this server's part of a snapshot that another server could not write. */
pen_status store_drop(store *s, int64_t step, uint64_t id, pen_error *why);

/* Like store_forget(), for the folders of ranks from n_servers on, left by an earlier run with more servers.  Skips
 * folders in use.  Steps in keep stay. */
pen_status store_forget_strays(const char *dir, int32_t n_servers, const int64_t *keep, size_t n,
                               pen_error *why);

/* ---- reading: store_reader.c -------------------------------------------------------------------- */

/* All parts of DIR.  A missing directory has none.  A damaged part is not an error here: its snapshot is
 * incomplete and carries the reason.
 * Errors     STORE: the directory cannot be read. */
pen_status store_reader_open(const char *dir, store_reader **r, pen_error *why);
void store_reader_close(store_reader *r); /* NULL is fine */

/* Steps of the complete snapshots, ascending, at most cap; returns how many there are. */
size_t store_reader_steps(store_reader *r, int64_t *steps, size_t cap);

/* Every snapshot, complete or not, by step; snapshots of one step in the order they were written. */
typedef struct {
    int64_t step, written_ms, applied;
    uint64_t id, bytes; /* size of its files */
    uint32_t parts, format, n_tensors;
    bool is_complete;
    bool is_superseded; /* complete, but a later one of this step exists */
    bool is_import;
    const char *job, *version; /* BORROWED until the reader is closed */
    const pen_error *trouble;  /* why it is incomplete; NULL if complete */
} store_entry;
size_t store_reader_list(store_reader *r, store_entry *entries, size_t cap);

/* The newest damaged snapshot if it is newer than the newest complete one: CORRUPT or UNSUPPORTED, and its
 * sentence.  OK otherwise. */
pen_status store_reader_trouble(store_reader *r, pen_error *why);

/* BORROWED until the reader is closed. */
pen_status store_reader_manifest(store_reader *r, int64_t step, const store_manifest **m,
                                 pen_error *why);
/* Fills values[count] from the parts that hold the range; verifies every checksum.  NOT_FOUND names what is
 * missing, CORRUPT names tensor and file. */
pen_status store_read(store_reader *r, int64_t step, const char *tensor, const char *what,
                      uint64_t start, uint64_t count, float *values, pen_error *why);
/* Calls fn for each part's blob of this name. */
pen_status store_read_blobs(store_reader *r, int64_t step, const char *name,
                            void (*fn)(const void *data, size_t size, void *user), void *user,
                            pen_error *why);
/* Reads and verifies a whole snapshot: values, blobs, coverage.  An incomplete snapshot returns its trouble. */
pen_status store_verify(store_reader *r, int64_t step, uint64_t *bytes, pen_error *why);

/* Writes one complete snapshot into another store, part by part, in the current format.
 * Errors     those of reading and writing; WRONG_STATE: `dir` has a snapshot of this step or a later one, from
 * which a job would resume. */
pen_status store_copy(store_reader *r, int64_t step, const char *dir, pen_error *why);

/* Whether a snapshot fits this model: same tensors, sizes and slots.
 * MISMATCH: the first difference, by name. */
pen_status store_compare(const store_manifest *kept, const store_manifest *wanted, const char *dir,
                         pen_error *why);

#endif
