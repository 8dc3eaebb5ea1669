/* hash.c - hashes bytes and numbers with xxHash. */
#include "common/containers/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t hash_bytes(const void *data, size_t size)
{
    const uint64_t hash = XXH3_64bits(data, size);
    return hash != 0 ? hash : 1;
}
