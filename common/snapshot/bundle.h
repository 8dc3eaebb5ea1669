/* bundle.h - named bytes of one or more ranks, concatenated: how a snapshot stores data that are not tensors.
 *
 * A row is {rank i32, length of its name u32, size u64, name, bytes}, little-endian.  Rank -1: the same on all ranks.
 * Bundles come from disks and the network and are not trusted.  Pure.
 */
#ifndef COMMON_STORE_BUNDLE_H
#define COMMON_STORE_BUNDLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    BUNDLE_NAME_BYTES = 64,    /* including the terminator */
    BUNDLE_ROW_MAX    = 65536, /* bytes of one row */
    BUNDLE_BYTES_MAX  = 1 << 20,
    BUNDLE_ALL_RANKS  = -1
};

typedef struct {
    const uint8_t *at, *end;
    const uint8_t *row; /* start of the row that was read */
    int32_t rank;
    char name[BUNDLE_NAME_BYTES];
    const uint8_t *data;
    uint64_t size;
} bundle_cursor;

bundle_cursor bundle_open(const void *bytes, size_t size);

/* False at the end, or at invalid bytes; after invalid bytes c->at differs from c->end. */
bool bundle_next(bundle_cursor *c);
bool bundle_makes_sense(const void *bytes, size_t size);

size_t bundle_row_bytes(const char *name, uint64_t size);
uint8_t *bundle_put(uint8_t *at, int32_t rank, const char *name, const void *data, uint64_t size);

/* Adds the rows of `more` that *bytes, from malloc(), does not have.  False: no memory, or invalid bytes; nothing
 * is added. */
bool bundle_merge(uint8_t **bytes, size_t *size, const void *more, size_t more_bytes);

#endif
