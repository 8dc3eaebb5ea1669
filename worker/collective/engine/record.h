/* record.h - the flight recorder: the last calls of this member, to find out which member hangs and where.
 *
 * A ring of RECORD_CALLS entries.  Its owner's lock guards it.
 */
#ifndef WORKER_COLL_RECORD_H
#define WORKER_COLL_RECORD_H

#include "worker/collective/coll.h"

enum { RECORD_CALLS = 1000 };

typedef struct {
    uint64_t group, seq, n;
    uint64_t begun_ms, ended_ms; /* ended 0: in progress */
    int32_t kind, op, dtype, root, size, status;
    char label[COLL_LABEL_BYTES];
} record_entry;

typedef struct {
    record_entry *entry; /* [RECORD_CALLS] */
    uint64_t n;          /* written so far */
} record;

pen_status record_init(record *r, pen_error *why);
void record_fini(record *r);

/* Returns a handle for record_end(). */
uint64_t record_begin(record *r, const record_entry *entry);
void record_end(record *r, uint64_t handle, pen_status status,
                uint64_t now_ms); /* ignores overwritten entries */

/* The newest `most`, one JSON object on each line, oldest first; malloc()ed, NULL: no memory. */
char *record_json(const record *r, int rank, uint64_t now_ms, uint64_t most);

#endif
