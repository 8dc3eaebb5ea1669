/* simd_avx2.c - kernels and reductions for processors with AVX2 and F16C. */
#include "common/compute/simd/reduce_level.h"
#include "common/compute/simd/simd.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* Read from cpuid: clang 14 has no name for F16C in __builtin_cpu_supports(). */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static bool usable(void)
{
    return __builtin_cpu_supports("avx2") && has_f16c();
}

#define SIMD_LEVEL      simd_avx2
#define SIMD_LEVEL_NAME "avx2"
#include "common/compute/simd/simd_kernels.inc"

#define REDUCE_LEVEL reduce_avx2
#include "common/compute/simd/reduce_kernels.inc"
#endif
