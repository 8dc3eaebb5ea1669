/* mt19937.h - the Mersenne Twister, seeded and read as PyTorch does on the CPU.
 *
 * Source   Matsumoto and Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed uniform
 *          pseudo-random number generator", ACM TOMACS 8(1), 1998; seeding as init_genrand() of
 *          2002.  PyTorch: c10 mt19937 and at::CPUGeneratorImpl.
 */
#ifndef WORKER_DATA_MT19937_H
#define WORKER_DATA_MT19937_H

#include <stdint.h>

enum { MT19937_WORDS = 624 };

typedef struct {
    uint32_t word[MT19937_WORDS];
    uint32_t used; /* words of word[] already returned */
} mt19937;

/* Uses only the low 32 bits of the seed, as torch.manual_seed() does. */
void mt19937_seed(mt19937 *g, uint64_t seed);

uint32_t mt19937_next(mt19937 *g);
uint64_t mt19937_next64(mt19937 *g); /* two draws; the first is the upper half */

#endif
