/* reduce_level.h - the loops of reduce.h that exist once per level; private to common/compute/simd/. */
#ifndef COMMON_SIMD_REDUCE_LEVEL_H
#define COMMON_SIMD_REDUCE_LEVEL_H

#include "common/compute/simd/reduce.h"

typedef struct {
    void (*run)(const reduce_args *args, size_t begin, size_t count); /* count > 0 */
    void (*copy_past)(void *out, const void *in, size_t bytes);       /* past the caches */
    void (*copy_near)(void *out, const void *in, size_t bytes);       /* into them */
} reduce_level;

extern const reduce_level reduce_scalar, reduce_avx2, reduce_avx512;

#endif
