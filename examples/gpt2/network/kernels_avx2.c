/* kernels_avx2.c - the kernels for x86-64 with AVX2 and FMA; compiled with its instructions. */
#define KERNELS      gpt2_kernels_avx2
#define KERNELS_NAME "avx2"
#define KERNELS_HERE (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#include "kernels.inc"
