/* mt19937.c - the recurrence, 624 words at a time, and the tempering of each word. */
#include "worker/data/mt19937.h"

enum { MIDDLE = 397 };

void mt19937_seed(mt19937 *g, uint64_t seed)
{
    g->word[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < MT19937_WORDS; i++)
        g->word[i] = 1812433253u * (g->word[i - 1] ^ (g->word[i - 1] >> 30)) + i;
    g->used = MT19937_WORDS;
}

static void refill(mt19937 *g)
{
    uint32_t *w = g->word;
    for (uint32_t i = 0; i < MT19937_WORDS; i++) {
        const uint32_t lower  = w[(i + 1) % MT19937_WORDS];
        const uint32_t middle = w[(i + MIDDLE) % MT19937_WORDS];
        const uint32_t both   = (w[i] & 0x80000000u) | (lower & 0x7fffffffu);
        w[i]                  = middle ^ (both >> 1) ^ ((lower & 1) != 0 ? 0x9908b0dfu : 0);
    }
    g->used = 0;
}

uint32_t mt19937_next(mt19937 *g)
{
    if (g->used == MT19937_WORDS) refill(g);
    uint32_t x = g->word[g->used++];
    x ^= x >> 11;
    x ^= (x << 7) & 0x9d2c5680u;
    x ^= (x << 15) & 0xefc60000u;
    return x ^ (x >> 18);
}

uint64_t mt19937_next64(mt19937 *g)
{
    const uint64_t upper = mt19937_next(g);
    return upper << 32 | mt19937_next(g);
}
