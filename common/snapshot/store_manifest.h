/* store_manifest.h - the content of a part's file: keys, values, the manifest.  Shared by store*.c only. */
#ifndef COMMON_STORE_MANIFEST_H
#define COMMON_STORE_MANIFEST_H

#include "common/snapshot/store.h"
#include "common/snapshot/store_env.h"

/* Keys are big-endian, so that a walk meets them in order.
 *     "M"                              the manifest
 *     "V" tensor u32, what u8, start u64   CRC32C u64, count u64, float32[count]; tensor is its row in the manifest,
 *                                      what is 0 for parameters and 1 + k for slot k
 *     "B" name                         CRC32C u64, then bytes
 * A CRC covers the key as well, so that a value cannot pass for another. */
enum {
    STORE_VALUE_KEY_BYTES  = 14,
    STORE_VALUE_HEAD_BYTES = 16,
    STORE_BLOB_HEAD_BYTES  = 8,
    STORE_KEY_ROOM         = 1 + STORE_NAME_BYTES
};

void store_put_be(uint8_t *out, uint64_t value, size_t bytes);
uint64_t store_get_be(const uint8_t *in, size_t bytes);

store_bytes store_value_key(uint8_t key[STORE_VALUE_KEY_BYTES], uint32_t tensor, int what,
                            uint64_t start);
store_bytes store_blob_key(uint8_t key[STORE_KEY_ROOM], const char *name);
bool store_blob_name(store_bytes key, char name[STORE_NAME_BYTES]); /* and back; false: too long */

/* Encodes a manifest.  OWNED by the caller: free().  NULL: no memory. */
uint8_t *store_manifest_encode(const store_manifest *m, size_t *size);

/* The manifest in `bytes`, one block of memory: free().
 * Errors     CORRUPT; UNSUPPORTED: a later format, and the version that wrote it; NO_MEMORY. */
pen_status store_manifest_decode(store_bytes bytes, const char *file, store_manifest **m,
                                 pen_error *why);

/* -1: not found.  hint: the likely index. */
int store_find_tensor(const store_manifest *m, const char *name, uint32_t hint);
/* 0 for "param", 1 + k for slot k, -1 if the tensor lacks it; and back. */
int store_find_what(const store_tensor *row, const char *what);
const char *store_what_name(const store_tensor *row, int what);

#endif
