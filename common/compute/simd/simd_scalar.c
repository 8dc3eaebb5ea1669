/* simd_scalar.c - kernels and reductions for any processor, and the reference for the other levels. */
#include "common/compute/simd/reduce_level.h"
#include "common/compute/simd/simd.h"

static bool usable(void)
{
    return true;
}

#define SIMD_LEVEL      simd_scalar
#define SIMD_LEVEL_NAME "scalar"
#include "common/compute/simd/simd_kernels.inc"

#define REDUCE_LEVEL reduce_scalar
#include "common/compute/simd/reduce_kernels.inc"
