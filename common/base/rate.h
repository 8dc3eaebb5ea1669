/* rate.h - a token bucket: a burst, then a rate per second. */
#ifndef COMMON_RATE_H
#define COMMON_RATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct { /* zero: unused */
    uint64_t used, since_ms;
} rate;

/* Whether one more is allowed now; refusals are not counted.  now_ms never goes back. */
bool rate_take(rate *r, uint64_t burst, uint64_t a_second, uint64_t now_ms);

#endif
