/* retry.c - exponential back-off with jitter.
 *
 * TCP loses nothing while a connection stands, and a reconnect sends lost messages again.  So silence
 * is rare and the first wait may be long: repeating a message that is merely slow would load a full
 * link even more.
 */
#include "worker/ps/retry.h"

enum {
    RECEIPT_FACTOR = 6, /* after a receipt waiting is normal: ask rarely */
    REFUSED_MS     = 4,
    FULL_MS        = 2,
    DOUBLINGS_MAX  = 16
};

retry_policy retry_policy_make(uint64_t silence_ms, uint64_t seed)
{
    return (retry_policy){.silence_ms = silence_ms, .most_ms = 12 * silence_ms, .seed = seed};
}

/* splitmix64 (Steele, Lea, Flood 2014) */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z          = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z          = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t first_ms(const retry_policy *policy, retry_reason reason)
{
    switch (reason) {
    case RETRY_SILENCE: return policy->silence_ms;
    case RETRY_RECEIPT: return RECEIPT_FACTOR * policy->silence_ms;
    case RETRY_REFUSED: return REFUSED_MS;
    case RETRY_FULL: break;
    }
    return FULL_MS;
}

uint64_t retry_wait_ms(const retry_policy *policy, retry_reason reason, uint32_t tries,
                       uint64_t *draws)
{
    uint64_t wait = first_ms(policy, reason), most = policy->most_ms;
    if (reason == RETRY_FULL) return wait;
    if (reason == RETRY_REFUSED && most > 1000)
        most = 1000; /* room appears when other ranks catch up */

    uint32_t doublings = tries > 0 ? tries - 1 : 0;
    for (uint32_t i = 0; i < doublings && i < DOUBLINGS_MAX && wait < most; i++) wait *= 2;
    if (wait > most) wait = most;
    uint64_t half = wait / 2;
    return wait - half + (half > 0 ? draw(draws) % (half + 1) : 0);
}
