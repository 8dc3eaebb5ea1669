/* init.h - initial values of a tensor or of a row of a table: a pure function of (seed, name, row, index).
 *
 * DESIGN.  The generator is counter-based: element i needs only i.  So the owner of a range computes it alone, and the
 * bits do not depend on the placement.  Philox4x32-10, with
 *   key      = the 64 bits of FNV-1a over the name, then over the 8 bytes of the seed (little-endian)
 *   counter  = i / 4 in its low 64 bits, above it the key of the row, 0 for a tensor; element i takes word i mod 4 of
 *              the result
 *   uniform  a + (b - a) * (word / 2^32), computed in double
 *   normal   Box-Muller: elements 4k and 4k+1 share words 0 and 1, 4k+2 and 4k+3 words 2 and 3:
 *            u = (word_even + 1) / 2^32, v = word_odd / 2^32,
 *            mean + std * sqrt(-2 ln u) * cos(2 pi v), and sin for the odd element
 * Logarithm and sine are polynomials of our own in double, because C libraries differ in the last bit.
 * Source  Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox4x32-10, with the
 *         known answers of Random123's kat_vectors); Box and Muller, 1958.
 */
#ifndef COMMON_INIT_H
#define COMMON_INIT_H

#include "penstock.h"
#include <stddef.h>
#include <stdint.h>

typedef enum { INIT_ZERO, INIT_CONST, INIT_NORMAL, INIT_UNIFORM } init_kind;

typedef struct {
    init_kind kind;
    double a, b; /* const: v in a; normal: mean, std; uniform: from, to */
} init_rule;

/* "zero", "const v=1", "normal mean=0 std=0.02", "uniform a=-0.1 b=0.1".  BAD_SETTING names the mistake. */
pen_status init_parse(const char *init, init_rule *rule, pen_error *why);

uint64_t init_key(uint64_t seed, const char *name);

/* Elements [start, start + n) of the tensor with this key. */
void init_values(const init_rule *rule, uint64_t key, uint64_t start, size_t n, float *to);

/* The same elements of one row of the table with this key. */
void init_row(const init_rule *rule, uint64_t key, uint64_t row, uint64_t start, size_t n,
              float *to);

void init_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]);

#endif
