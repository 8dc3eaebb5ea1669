/* reduce_scalar.c - the reductions for any processor of the architecture. */
#include "common/compute/simd/reduce_level.h"

#define REDUCE_LEVEL reduce_scalar
#include "common/compute/simd/reduce_kernels.inc"
