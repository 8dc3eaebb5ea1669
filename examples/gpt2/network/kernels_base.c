/* kernels_base.c - the kernels for any processor of the architecture. */
#define KERNELS      gpt2_kernels_base
#define KERNELS_NAME "base"
#define KERNELS_HERE 1
#include "kernels.inc"
