/* shard_pool.c - accumulators kept for the next step, so that a step in steady state allocates
 * nothing. */
#include "server/shard_state.h"

#include "common/simd/simd.h"

#include <assert.h>
#include <stdlib.h>

enum { ALIGNMENT = 64 };

struct shard_spare { /* written into the unused accumulator itself */
    shard_spare *next;
};

/* Below one block by powers of two (at least a cache line), above by whole blocks: a model has few
 * sizes of chunk. */
static int class_of(size_t count, size_t *room)
{
    if (count > SIMD_BLOCK / 2) {
        const size_t blocks = (count + SIMD_BLOCK - 1) / SIMD_BLOCK;
        *room               = blocks * SIMD_BLOCK;
        return 11 + (int)blocks;
    }
    int class = 4;
    while ((size_t)1 << class < count) class ++;
    *room = (size_t)1 << class;
    return class;
}

float *shard_pool_take(shard_pool *pool, size_t count)
{
    size_t room;
    const int class = class_of(count, &room);
    assert(class < SHARD_POOL_CLASSES);
    shard_spare *spare = pool->spare[class];
    if (spare == NULL) return aligned_alloc(ALIGNMENT, room * sizeof(float));
    pool->spare[class] = spare->next;
    return (float *)(void *)spare;
}

void shard_pool_give(shard_pool *pool, float *numbers, size_t count)
{
    size_t room;
    const int class    = class_of(count, &room);
    shard_spare *spare = (shard_spare *)(void *)numbers;
    spare->next        = pool->spare[class];
    pool->spare[class] = spare;
}

void shard_pool_fini(shard_pool *pool)
{
    for (int class = 0; class < SHARD_POOL_CLASSES; class ++) {
        while (pool->spare[class] != NULL) {
            shard_spare *spare = pool->spare[class];
            pool->spare[class] = spare->next;
            free(spare);
        }
    }
}
