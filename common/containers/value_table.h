/* value_table.h - the values of pen_store_set(), by key and bounded.
 *
 * A counter is a value of eight bytes, an int64_t in native byte order.
 */
#ifndef COMMON_VALUE_TABLE_H
#define COMMON_VALUE_TABLE_H

#include "penstock.h"
#include <stddef.h>
#include <stdint.h>

enum {
    VALUE_BYTES_MAX       = 1 << 20,  /* of one value */
    VALUE_TABLE_BYTES_MAX = 64 << 20, /* of all keys and values of a table */
    VALUE_KEY_BYTES       = 512       /* of a key, with its NUL */
};

typedef struct value_table value_table;

value_table *value_table_create(size_t bytes_max); /* NULL: no memory */
void value_table_destroy(value_table *table);      /* NULL is fine */

/* Errors  UNSUPPORTED  the value or the table would be too large.   NO_MEMORY */
pen_status value_table_set(value_table *table, const char *key, const void *data, size_t size,
                           pen_error *why);

/* BORROWED until the table changes; NULL: never set. */
const void *value_table_get(const value_table *table, const char *key, size_t *size);

void value_table_each(const value_table *table,
                      void (*fn)(void *user, const char *key, const void *data, size_t size),
                      void *user);

/* Adds to the counter `key`, which starts at 0; *value: the result.
 * Errors  MISMATCH  the value is not a counter.   UNSUPPORTED   NO_MEMORY */
pen_status value_table_add(value_table *table, const char *key, int64_t delta, int64_t *value,
                           pen_error *why);

#endif
