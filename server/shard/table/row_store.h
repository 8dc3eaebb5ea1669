/* row_store.h - the rows of one part of a table: values, slots and number of updates, by 64-bit key.
 *
 * DESIGN.  Rows lie one after the other in blocks, of 64 KiB at first and of 2 MiB later, in the order in which they
 * were made:
 *   u64 key, u32 updates, u32 length, float32 values[length], float32 slot[length] for each slot of the rule, or
 *   slot[1] of a rule of rows; padded to 8
 * and a hash table (open addressing, linear probing) finds them.  A block is a buf, COPY-ON-WRITE like the arrays of
 * tensors: a snapshot, or a copy on another server, is references to all blocks, and takes no time.  A block says how
 * much of it is used, so the blocks alone are the whole state; a copy that gets them, and then the same updates in the
 * same order, has equal blocks.
 *   Rows of a batch are anywhere, so what is large is in huge pages, and what finds the rows of a message is fetched
 * before the first is read.
 *   A row is made by its first update.  Its first values are a pure function of (seed, table, key); until then a read
 * computes them, so reads change nothing.
 * Thread: one at a time.
 */
#ifndef SERVER_ROW_STORE_H
#define SERVER_ROW_STORE_H

#include "common/compute/init.h"
#include "common/compute/optim/optim.h"
#include "common/containers/buf.h"
#include "proto/rows.h"

typedef struct row_store row_store;

typedef struct {
    uint32_t dim; /* values of every row; 0: the first update of a row decides */
    const optim_ops *optim;
    optim_hyper hyper;
    init_rule init;
    uint64_t seed; /* init_key() of the table */
} row_store_rules;

row_store *row_store_create(const row_store_rules *rules); /* NULL: no memory */
void row_store_destroy(row_store *self);                   /* NULL is fine */

/* Whether an update with these rows fits those that exist: INVALID_ARGUMENT names a key whose length is another. */
pen_status row_store_check(const row_store *self, const rows *r, pen_error *why);

/* Updates each row with its gradient (dtype) x gscale, and makes the missing ones.  Norms of a rule that needs those of
 * the whole tensor are those of the row.  NO_MEMORY: some rows were updated.  *crc, unless NULL: of the changed rows.
 * Cost  O(rows); copies blocks that have another holder. */
pen_status row_store_update(row_store *self, const rows *r, pen_dtype dtype, double lr,
                            double gscale, uint32_t *crc, pen_error *why);

/* Soon needed: fetches what finds these keys into the cache. */
void row_store_ahead(const row_store *self, const rows *r);

/* Values that an answer about these keys has; 0 for rows that do not exist if their length is not known. */
uint64_t row_store_elements(const row_store *self, const rows *asked);

/* Writes lengths and values of `answer`, which rows_lay() made for row_store_elements(), in this type. */
void row_store_read(const row_store *self, const rows *asked, const rows *answer, pen_dtype dtype);

uint64_t row_store_bytes(const row_store *self); /* of blocks and the hash table */

/* The blocks; block is BORROWED, keep it with buf_acquire(): the store then copies it before it changes it.  Only
 * row_store_used() of it matters. */
uint32_t row_store_blocks(const row_store *self);
buf *row_store_block(row_store *self, uint32_t i);
size_t row_store_used(const buf *block);

/* Adds a block of a primary or a snapshot, which is checked: CORRUPT says what does not fit. */
pen_status row_store_add_block(row_store *self, const void *data, size_t size, pen_error *why);
void row_store_clear(row_store *self);

#endif
