/* clock.c - the real clock. */
#include "common/base/clock.h"

#include <time.h>

static uint64_t real_now_ns(const clock_source *self)
{
    (void)self;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

const clock_source clock_real = {.now_ns = real_now_ns};

uint64_t clock_ns(const clock_source *source)
{
    return source->now_ns(source);
}

uint64_t clock_ms(const clock_source *source)
{
    return clock_ns(source) / 1000000u;
}
