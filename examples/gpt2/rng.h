/* rng.h - random numbers that are a pure function of (seed, stream): SplitMix64.
 *
 * Source  Steele, Lea & Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
 */
#ifndef GPT2_RNG_H
#define GPT2_RNG_H

#include <stdint.h>

typedef struct {
    uint64_t state;
} rng;

static inline uint64_t rng_next(rng *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z          = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z          = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The streams of one seed are independent for all practical purposes. */
static inline rng rng_seeded(uint64_t seed, uint64_t stream)
{
    rng r = {seed};
    r     = (rng){rng_next(&r) ^ stream};
    return (rng){rng_next(&r)};
}

/* 0 .. n-1, n below 2^32; the bias of at most n / 2^32 does not matter here. */
static inline uint32_t rng_below(rng *r, uint32_t n)
{
    return (uint32_t)((rng_next(r) >> 32) * n >> 32);
}

/* 0 .. 1, 1 not included. */
static inline double rng_unit(rng *r)
{
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

#endif
