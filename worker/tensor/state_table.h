/* state_table.h - bytes that belong to a snapshot and are no tensors: the program's (pen_state_add) and our own.
 *
 * DESIGN.  A row is a name and memory.  What a snapshot carries is a bundle (common/snapshot/bundle.h) with the bytes of
 * every row.  Those of all ranks alike are rank 0's; others are each rank's own.
 * A bundle that was read is kept, for rows that are added later.
 * Thread: any.
 */
#ifndef WORKER_STATE_TABLE_H
#define WORKER_STATE_TABLE_H

#include "common/snapshot/bundle.h"
#include "penstock.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    STATE_ROWS_MAX   = 256,
    STATE_NAME_BYTES = BUNDLE_NAME_BYTES,
    STATE_ROW_MAX    = BUNDLE_ROW_MAX, /* bytes of one row        */
    STATE_TABLE_MAX  = 512 << 10       /* of all rows of one rank */
};

typedef struct {
    char name[STATE_NAME_BYTES];
    void *data;
    size_t size;
    bool is_per_rank;
} state_row;

typedef struct {
    pthread_mutex_t lock;
    int32_t rank;
    uint32_t n;
    state_row *row; /* [STATE_ROWS_MAX]; made with the first */
    size_t bytes;
    void *kept; /* the bundle of the snapshot that was restored; NULL: none was */
    size_t kept_bytes;
    int64_t kept_step;
} state_table;

void state_table_init(state_table *t);
void state_table_fini(state_table *t);

/* data is the caller's, and read and written until it is removed.  What a restored snapshot has of it is written to it.
 * Errors  INVALID_ARGUMENT  the name, the size, or one that is there already.   NO_MEMORY */
pen_status state_table_add(state_table *t, const char *name, void *data, size_t size,
                           bool is_per_rank, pen_error *why);
void state_table_remove(state_table *t, const char *name); /* one that is not there is fine */

/* A bundle of the rows that this rank contributes: its own, and with `shares` those of all ranks.
 * Ownership  *bytes is the caller's: free(); NULL when there is nothing. */
pen_status state_table_pack(state_table *t, bool shares, void **bytes, size_t *size,
                            pen_error *why);

/* Writes what the bundle has for this rank to the rows, and keeps the bundle for those that come later.
 * Errors  CORRUPT  it makes no sense; no row was changed.  MISMATCH  a row has another size in it: which.
 *         NO_MEMORY */
pen_status state_table_restore(state_table *t, int64_t step, const void *bytes, size_t size,
                               pen_error *why);

#endif
