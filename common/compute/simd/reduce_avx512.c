/* reduce_avx512.c - the reductions for processors with AVX-512 F, BW, DQ and VL. */
#include "common/compute/simd/reduce_level.h"

#if defined(__x86_64__)
#define REDUCE_LEVEL reduce_avx512
#include "common/compute/simd/reduce_kernels.inc"
#endif
