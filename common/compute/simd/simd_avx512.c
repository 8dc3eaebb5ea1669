/* simd_avx512.c - kernels and reductions for processors with AVX-512 F, BW, DQ and VL. */
#include "common/compute/simd/reduce_level.h"
#include "common/compute/simd/simd.h"

#if defined(__x86_64__)
static bool usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#define SIMD_LEVEL      simd_avx512
#define SIMD_LEVEL_NAME "avx512"
#include "common/compute/simd/simd_kernels.inc"

#define REDUCE_LEVEL reduce_avx512
#include "common/compute/simd/reduce_kernels.inc"
#endif
