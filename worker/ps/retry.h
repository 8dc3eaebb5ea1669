/* retry.h - when to send again what has no answer: the whole retry policy of a worker. */
#ifndef WORKER_RETRY_H
#define WORKER_RETRY_H

#include <stdint.h>

typedef enum {
    RETRY_SILENCE, /* sent, and nothing came back                                             */
    RETRY_RECEIPT, /* the shard has it; only its later answer may be lost, or is simply not due */
    RETRY_REFUSED, /* the shard had no room, or a checksum did not match                       */
    RETRY_FULL     /* our own queue to that shard is full                                      */
} retry_reason;

typedef struct {
    uint64_t silence_ms; /* first wait after silence; doubles with each try          */
    uint64_t most_ms;    /* no wait is longer                                        */
    uint64_t seed;       /* of the jitter: ranks that failed together must not retry together */
} retry_policy;

retry_policy retry_policy_make(uint64_t silence_ms, uint64_t seed);

/* How long to wait before try number `tries` + 1 (tries from 1).  Half of it is fixed, half is
 * drawn from *draws, which the caller starts with policy->seed.  Pure but for *draws. */
uint64_t retry_wait_ms(const retry_policy *policy, retry_reason reason, uint32_t tries,
                       uint64_t *draws);

#endif
