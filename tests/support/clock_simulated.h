/* clock_simulated.h - a clock that its owner advances. */
#ifndef TESTS_SUPPORT_CLOCK_SIMULATED_H
#define TESTS_SUPPORT_CLOCK_SIMULATED_H

#include "common/base/clock.h"

typedef struct {
    clock_source source; /* first: the clock is found by this address */
    uint64_t ns;
} clock_simulated;

static inline uint64_t clock_simulated_now_ns(const clock_source *source)
{
    return ((const clock_simulated *)source)->ns;
}

static inline clock_simulated clock_simulated_at(uint64_t ns)
{
    return (clock_simulated){{clock_simulated_now_ns}, ns};
}

#endif
