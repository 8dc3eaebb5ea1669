/* permutation.h - torch.randperm(n) on the CPU, bit for bit.
 *
 * Source   PyTorch, aten/src/ATen/native/TensorFactories.cpp, randperm_cpu: below PERMUTATION_LARGE
 *          elements a forward Fisher-Yates shuffle with 32-bit numbers; from there on, where 32 bits
 *          would make the remainder uneven, the inside-out shuffle with 64-bit numbers.  (Versions of
 *          PyTorch before that change use the first for all n; large lists differ from theirs.)
 */
#ifndef WORKER_DATA_PERMUTATION_H
#define WORKER_DATA_PERMUTATION_H

#include "penstock.h"

#define PERMUTATION_LARGE (UINT32_MAX / 20)

typedef struct { /* all zeros: holds nothing */
    uint64_t n;
    uint32_t *narrow; /* [n], if every index fits */
    uint64_t *wide;   /* [n], otherwise */
} permutation;

/* Draws n indices: 4 bytes each up to 2^32, else 8.  Reuses the memory for the same n.  NO_MEMORY
 * leaves *p unchanged. */
pen_status permutation_draw(permutation *p, uint64_t n, uint64_t seed, pen_error *why);

/* The same, by the rule of large n for any n. */
pen_status permutation_draw_large(permutation *p, uint64_t n, uint64_t seed, pen_error *why);

uint64_t permutation_at(const permutation *p, uint64_t i); /* i < n */

void permutation_free(permutation *p); /* all zeros again */

#endif
