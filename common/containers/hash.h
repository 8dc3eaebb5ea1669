/* hash.h - hash tables (uthash) and their hash function (xxHash).  Only this file includes uthash.h. */
#ifndef COMMON_HASH_H
#define COMMON_HASH_H

#include <stddef.h>
#include <stdint.h>

/* XXH3-64; never 0, so that 0 can mean empty.  For this process only, never sent or stored. */
uint64_t hash_bytes(const void *data, size_t size);

/* Out of memory: the element is not added (hh.tbl stays NULL), instead of exit(). */
#define HASH_NONFATAL_OOM                1
#define HASH_FUNCTION(data, size, value) ((value) = (unsigned)hash_bytes(data, size))
#include <uthash.h>

#endif
