/* retry.h - when unanswered messages are sent again: the whole retry policy of a worker. */
#ifndef WORKER_RETRY_H
#define WORKER_RETRY_H

#include <stdint.h>

typedef enum {
    RETRY_SILENCE, /* sent, no answer */
    RETRY_RECEIPT, /* the shard has it; its answer is lost or not due yet */
    RETRY_REFUSED, /* the shard had no room, or a checksum did not match */
    RETRY_FULL     /* our own queue to that shard is full */
} retry_reason;

typedef struct {
    uint64_t silence_ms; /* first wait after silence; doubles with each try */
    uint64_t most_ms;    /* longest wait */
    uint64_t seed;       /* of the jitter: ranks that failed together must not retry together */
} retry_policy;

retry_policy retry_policy_make(uint64_t silence_ms, uint64_t seed);

/* Milliseconds to wait before try number `tries` + 1 (tries from 1).  Half is fixed, half is drawn
 * from *draws, which the caller initialises with policy->seed.  Pure except for *draws. */
uint64_t retry_wait_ms(const retry_policy *policy, retry_reason reason, uint32_t tries,
                       uint64_t *draws);

#endif
