/* clock.h - the time: real, or simulated.
 *
 * CLOCK_MONOTONIC, which stops while a laptop sleeps: a lease must not expire behind a closed lid.  Cores never read a
 * clock; every event carries `now`.
 */
#ifndef COMMON_CLOCK_H
#define COMMON_CLOCK_H

#include <stdint.h>

typedef struct clock_source {
    uint64_t (*now_ns)(const struct clock_source *self);
} clock_source;

extern const clock_source clock_real;

uint64_t clock_ns(const clock_source *source);
uint64_t clock_ms(const clock_source *source);

/* clock_ms(&clock_real) up to 10 ms ago, for a fifth of its cost: for what people read. */
uint64_t clock_recent_ms(void);

#endif
