/* reduce.c - maps operations to types, and runs them at the chosen level. */
#include "common/compute/simd/reduce.h"

#include "common/compute/simd/reduce_level.h"
#include "common/compute/simd/simd.h"
#include <string.h>

/* In the order of simd_all: a level of simd.h and its reductions belong together. */
#if defined(__x86_64__)
static const reduce_level *const levels[] = {&reduce_avx512, &reduce_avx2, &reduce_scalar};
#else
static const reduce_level *const levels[] = {&reduce_scalar};
#endif

static const reduce_level *level(void)
{
    const simd_level *chosen = simd();
    int i                    = 0;
    while (simd_all[i] != chosen) i++; /* terminates: simd() is in the list */
    return levels[i];
}

static bool is_float(pen_dtype dtype)
{
    return dtype == PEN_F16 || dtype == PEN_BF16 || dtype == PEN_F32 || dtype == PEN_F64;
}

static bool is_integer(pen_dtype dtype)
{
    return dtype >= PEN_I8 && dtype <= PEN_U64;
}

bool reduce_is_legal(pen_op op, pen_dtype dtype)
{
    if (op >= PEN_SUM && op <= PEN_MAX) return is_float(dtype) || is_integer(dtype);
    return op >= PEN_LAND && op <= PEN_BXOR && is_integer(dtype);
}

void reduce(const reduce_args *args, size_t begin, size_t count)
{
    if (count > 0) level()->run(args, begin, count);
}

/* Smaller copies are likely still in a cache, or needed there soon. */
enum { STREAM_FROM_BYTES = 2 << 20 };

void copy_past(void *out, const void *in, size_t bytes)
{
    if (bytes > 0) level()->copy(out, in, bytes);
}

void copy_stream(void *out, const void *in, size_t bytes)
{
    if (bytes >= STREAM_FROM_BYTES)
        level()->copy(out, in, bytes);
    else if (bytes > 0)
        memcpy(out, in, bytes);
}
