#include "common/base/rate.h"

enum { MS_OF_A_SECOND = 1000 };

bool rate_take(rate *r, uint64_t burst, uint64_t a_second, uint64_t now_ms)
{
    const uint64_t forgiven = (now_ms - r->since_ms) * a_second / MS_OF_A_SECOND;
    if (forgiven > 0) {
        r->used     = r->used > forgiven ? r->used - forgiven : 0;
        r->since_ms = now_ms;
    }
    if (r->used >= burst) return false;
    r->used++;
    return true;
}
