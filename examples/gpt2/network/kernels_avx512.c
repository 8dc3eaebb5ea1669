/* kernels_avx512.c - the kernels for x86-64 with AVX-512; compiled with its instructions. */
#define KERNELS      gpt2_kernels_avx512
#define KERNELS_NAME "avx512"
#define KERNELS_HERE                                                                               \
    (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&                    \
     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
#include "kernels.inc"
