/* bundle.c - rows of named bytes. */
#include "common/snapshot/bundle.h"

#include "common/containers/arrays.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = 16 };

static void put_le(uint8_t *to, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get_le(const uint8_t *from, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;) value = value << 8 | from[i];
    return value;
}

bundle_cursor bundle_open(const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    return (bundle_cursor){.at = at, .end = size > 0 ? at + size : at};
}

bool bundle_next(bundle_cursor *c)
{
    const size_t left = (size_t)(c->end - c->at);
    if (left < HEAD_BYTES) return false;
    const uint64_t name_bytes = get_le(c->at + 4, 4), size = get_le(c->at + 8, 8);
    if (name_bytes == 0 || name_bytes >= BUNDLE_NAME_BYTES || size > BUNDLE_ROW_MAX ||
        HEAD_BYTES + name_bytes + size > left)
        return false;
    c->row  = c->at;
    c->rank = (int32_t)(uint32_t)get_le(c->at, 4);
    memcpy(c->name, c->at + HEAD_BYTES, name_bytes);
    c->name[name_bytes] = '\0';
    c->data             = c->at + HEAD_BYTES + name_bytes;
    c->size             = size;
    c->at               = c->data + size;
    return true;
}

bool bundle_makes_sense(const void *bytes, size_t size)
{
    bundle_cursor c = bundle_open(bytes, size);
    while (bundle_next(&c)) {}
    return c.at == c.end;
}

size_t bundle_row_bytes(const char *name, uint64_t size)
{
    return HEAD_BYTES + strlen(name) + (size_t)size;
}

uint8_t *bundle_put(uint8_t *at, int32_t rank, const char *name, const void *data, uint64_t size)
{
    const size_t name_bytes = strlen(name);
    put_le(at, (uint32_t)rank, 4);
    put_le(at + 4, name_bytes, 4);
    put_le(at + 8, size, 8);
    memcpy(at + HEAD_BYTES, name, name_bytes);
    if (size > 0) memcpy(at + HEAD_BYTES + name_bytes, data, (size_t)size);
    return at + HEAD_BYTES + name_bytes + size;
}

static bool has(const uint8_t *bytes, size_t size, const bundle_cursor *row)
{
    bundle_cursor c = bundle_open(bytes, size);
    while (bundle_next(&c))
        if (c.rank == row->rank && strcmp(c.name, row->name) == 0) return true;
    return false;
}

bool bundle_merge(uint8_t **bytes, size_t *size, const void *more, size_t more_bytes)
{
    if (more_bytes == 0) return true;
    if (!bundle_makes_sense(more, more_bytes)) return false;
    size_t room = *size;
    if (!VEC_ROOM(*bytes, room, *size + more_bytes)) return false;
    bundle_cursor c = bundle_open(more, more_bytes);
    while (bundle_next(&c)) {
        if (has(*bytes, *size, &c)) continue;
        const size_t n = (size_t)(c.at - c.row);
        memcpy(*bytes + *size, c.row, n);
        *size += n;
    }
    return true;
}
