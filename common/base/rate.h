/* rate.h - a token bucket: a burst, then a rate per second. */
#ifndef COMMON_RATE_H
#define COMMON_RATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct { /* zero: unused */
    uint64_t used, since_ms;
} rate;

/* Whether one more is allowed now; refusals are not counted.  now_ms never goes back. */
static inline bool rate_take(rate *r, uint64_t burst, uint64_t a_second, uint64_t now_ms)
{
    const uint64_t forgiven = (now_ms - r->since_ms) * a_second / 1000;
    if (forgiven > 0) {
        r->used     = r->used > forgiven ? r->used - forgiven : 0;
        r->since_ms = now_ms;
    }
    if (r->used >= burst) return false;
    r->used++;
    return true;
}

#endif
