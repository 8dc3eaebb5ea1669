/* clock.c - the real clock. */
#include "common/base/clock.h"

#include <time.h>

static uint64_t read_ns(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t real_now_ns(const clock_source *self)
{
    (void)self;
    return read_ns(CLOCK_MONOTONIC);
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

uint64_t clock_recent_ms(void)
{
    return read_ns(CLOCK_MONOTONIC_COARSE) / 1000000u;
}
