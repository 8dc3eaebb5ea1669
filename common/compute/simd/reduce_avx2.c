/* reduce_avx2.c - the reductions for processors with AVX2. */
#include "common/compute/simd/reduce_level.h"

#if defined(__x86_64__)
#define REDUCE_LEVEL reduce_avx2
#include "common/compute/simd/reduce_kernels.inc"
#endif
