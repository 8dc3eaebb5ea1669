/* state_table.h - snapshot state that is not a tensor: the program's (pen_state_add) and the SDK's.
 *
 * DESIGN.  A row is a name and memory.  A snapshot has the bytes of all rows as a bundle
 * (common/snapshot/bundle.h).  Rank 0 writes rows that are equal on all ranks; each rank writes its own rows.  A
 * restored bundle is kept for rows that are added later.
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
    STATE_ROW_MAX    = BUNDLE_ROW_MAX, /* bytes of one row */
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
    void *kept; /* the bundle of the restored snapshot; NULL: none */
    size_t kept_bytes;
    int64_t kept_step;
} state_table;

void state_table_init(state_table *t);
void state_table_fini(state_table *t);

/* data is BORROWED, read and written, until the row is removed.  A restored snapshot fills it at once.
 * Errors  INVALID_ARGUMENT  the name, the size, or a second row of this name.   NO_MEMORY */
pen_status state_table_add(state_table *t, const char *name, void *data, size_t size,
                           bool is_per_rank, pen_error *why);
void state_table_remove(state_table *t, const char *name); /* an unknown name is fine */

/* A bundle of the rows that this rank contributes: its own, and with `shares` those of all ranks.
 * Ownership  *bytes belongs to the caller: free(); NULL: the bundle is empty. */
pen_status state_table_pack(state_table *t, bool shares, void **bytes, size_t *size,
                            pen_error *why);

/* Fills the rows from the bundle, and keeps it for rows that are added later.
 * Errors  CORRUPT  the bundle is invalid; no row was changed.  MISMATCH  names a row whose size differs.
 *         NO_MEMORY */
pen_status state_table_restore(state_table *t, int64_t step, const void *bytes, size_t size,
                               pen_error *why);

#endif
