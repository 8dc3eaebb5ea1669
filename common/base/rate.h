/* rate.h - how often somebody may do something: so many times at once, and so many times a second from then on. */
#ifndef COMMON_RATE_H
#define COMMON_RATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct { /* zero is somebody who has done nothing yet */
    uint64_t used, since_ms;
} rate;

/* Whether it may be done once more now; what may not be done is not counted.  now_ms never goes back. */
bool rate_take(rate *r, uint64_t burst, uint64_t a_second, uint64_t now_ms);

#endif
