/* value_table.h - the values of pen_store_set() and its kin: by key, bounded, in this process.
 *
 * A counter is a value of eight bytes, an int64_t as this machine writes it.
 */
#ifndef SCHEDULER_VALUE_TABLE_H
#define SCHEDULER_VALUE_TABLE_H

#include "penstock.h"
#include <stddef.h>
#include <stdint.h>

enum {
    VALUE_BYTES_MAX       = 1 << 20,  /* of one value                        */
    VALUE_TABLE_BYTES_MAX = 64 << 20, /* of all keys and values of one table */
    VALUE_KEY_BYTES       = 512       /* of a key, with its NUL              */
};

typedef struct value_table value_table;

value_table *value_table_create(size_t bytes_max); /* NULL: no memory */
void value_table_destroy(value_table *table);      /* NULL is fine    */

/* Errors  UNSUPPORTED  the value, or all of them, would be too large.   NO_MEMORY */
pen_status value_table_set(value_table *table, const char *key, const void *data, size_t size,
                           pen_error *why);

/* The value, BORROWED until the table changes; NULL: it was never set. */
const void *value_table_get(const value_table *table, const char *key, size_t *size);

/* All of them, in no order. */
void value_table_each(const value_table *table,
                      void (*fn)(void *user, const char *key, const void *data, size_t size),
                      void *user);

/* Adds to the counter `key`, 0 at first; *value: what it is now.
 * Errors  MISMATCH  the key holds something else than a counter.   UNSUPPORTED   NO_MEMORY */
pen_status value_table_add(value_table *table, const char *key, int64_t delta, int64_t *value,
                           pen_error *why);

#endif
