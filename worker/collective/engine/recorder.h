/* recorder.h - the flight recorder: the last calls of this member, to find which member hangs, and where.
 *
 * A ring of RECORD_CALLS entries.  Its owner's lock guards it.
 */
#ifndef WORKER_COLL_RECORDER_H
#define WORKER_COLL_RECORDER_H

#include "worker/collective/coll.h"

enum { RECORD_CALLS = 1000 };

typedef struct {
    uint64_t group, seq, n;
    uint64_t begun_ms, ended_ms; /* ended 0: in progress */
    int32_t kind, op, dtype, root, size, status;
    char label[COLL_LABEL_BYTES];
} recorder_entry;

typedef struct {
    recorder_entry *entry; /* [RECORD_CALLS] */
    uint64_t n;            /* written so far */
} record;

pen_status recorder_init(record *r, pen_error *why);
void recorder_fini(record *r);

/* Returns a handle for recorder_end(). */
uint64_t recorder_begin(record *r, const recorder_entry *entry);
/* Ignores overwritten entries. */
void recorder_end(record *r, uint64_t handle, pen_status status, uint64_t now_ms);

/* The newest `most` entries, one JSON object a line, oldest first; malloc()ed; NULL: no memory. */
char *recorder_json(const record *r, int rank, uint64_t now_ms, uint64_t most);

#endif
