/* draw.h - seeded random numbers: the only source of chance in a simulation. */
#ifndef TESTS_SIM_DRAW_H
#define TESTS_SIM_DRAW_H

#include <stdbool.h>
#include <stdint.h>

/* splitmix64 (Steele, Lea, Flood 2014) */
static inline uint64_t draw_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline uint64_t draw(uint64_t *state)
{
    return draw_mix(*state += 0x9e3779b97f4a7c15u);
}

static inline uint64_t draw_below(uint64_t *state, uint64_t n)
{
    return draw(state) % n;
}

static inline uint64_t draw_between(uint64_t *state, uint64_t least, uint64_t most)
{
    return least + draw_below(state, most - least + 1);
}

static inline bool draw_chance(uint64_t *state, uint32_t percent)
{
    return draw_below(state, 100) < percent;
}

#endif
