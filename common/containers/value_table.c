/* value_table.c - values by key, with a bound of their bytes. */
#include "common/containers/value_table.h"
#include "common/base/why.h"
#include "common/containers/hash.h"
#include <stdlib.h>
#include <string.h>

typedef struct {
    UT_hash_handle hh;
    size_t size;
    uint8_t *data; /* OWNED, never NULL */
    char key[];
} entry;

struct value_table {
    size_t bytes, bytes_max;
    entry *all; /* by key */
};

value_table *value_table_create(size_t bytes_max)
{
    value_table *made = calloc(1, sizeof *made);
    if (made) made->bytes_max = bytes_max;
    return made;
}

void value_table_destroy(value_table *table)
{
    if (!table) return;
    entry *e, *next;
    HASH_ITER(hh, table->all, e, next) {
        HASH_DELETE(hh, table->all, e);
        free(e->data);
        free(e);
    }
    free(table);
}

static entry *find_entry(const value_table *table, const char *key)
{
    entry *e;
    HASH_FIND_STR(table->all, key, e);
    return e;
}

/* Without a value.  NULL: no memory. */
static entry *add_entry(value_table *table, const char *key)
{
    const size_t length = strlen(key) + 1;
    entry *e            = calloc(1, sizeof *e + length);
    if (!e) return NULL;
    memcpy(e->key, key, length);
    HASH_ADD_STR(table->all, key, e);
    if (!e->hh.tbl) {
        free(e);
        return NULL;
    }
    table->bytes += sizeof *e + length;
    return e;
}

static pen_status check_room(const value_table *table, const entry *old, const char *key,
                             size_t size, pen_error *why)
{
    const size_t more = old ? 0 : sizeof *old + strlen(key) + 1, less = old ? old->size : 0;
    if (size > VALUE_BYTES_MAX)
        return why_set(why, PEN_UNSUPPORTED,
                       "'%.200s' would have %zu bytes; a value has at most %d", key, size,
                       VALUE_BYTES_MAX);
    if (table->bytes - less + more + size > table->bytes_max)
        return why_set(
            why, PEN_UNSUPPORTED,
            "no room for the %zu bytes of '%.200s': all keys and values together have at "
            "most %zu bytes",
            size, key, table->bytes_max);
    return PEN_OK;
}

pen_status value_table_set(value_table *table, const char *key, const void *data, size_t size,
                           pen_error *why)
{
    entry *e                = find_entry(table, key);
    const pen_status status = check_room(table, e, key, size, why);
    if (status != PEN_OK) return status;
    uint8_t *copy = malloc(size + 1);
    if (!copy || (!e && !(e = add_entry(table, key)))) {
        free(copy);
        return why_set(why, PEN_NO_MEMORY, "no memory for the %zu bytes of '%.200s'", size, key);
    }
    if (size) memcpy(copy, data, size);
    free(e->data);
    table->bytes = table->bytes - e->size + size;
    e->data      = copy;
    e->size      = size;
    return PEN_OK;
}

const void *value_table_get(const value_table *table, const char *key, size_t *size)
{
    const entry *e = find_entry(table, key);
    if (!e) return NULL;
    *size = e->size;
    return e->data;
}

pen_status value_table_add(value_table *table, const char *key, int64_t delta, int64_t *value,
                           pen_error *why)
{
    const entry *e = find_entry(table, key);
    int64_t count  = 0;
    if (e && e->size != sizeof count)
        return why_set(why, PEN_MISMATCH, "'%.200s' holds %zu bytes, a counter has %zu", key,
                       e->size, sizeof count);
    if (e) memcpy(&count, e->data, sizeof count);
    count                   = (int64_t)((uint64_t)count + (uint64_t)delta);
    const pen_status status = value_table_set(table, key, &count, sizeof count, why);
    if (status == PEN_OK) *value = count;
    return status;
}

void value_table_each(const value_table *table,
                      void (*fn)(void *user, const char *key, const void *data, size_t size),
                      void *user)
{
    for (const entry *e = table->all; e; e = e->hh.next) fn(user, e->key, e->data, e->size);
}
