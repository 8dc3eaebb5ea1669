/* shard_pool.c - reuses accumulators, so that a step in steady state allocates nothing.
 *
 * An accumulator is a buf, because the log of a shard with copies sends it directly.  If it is returned while still
 * referenced, it waits in a second queue: the first sent is the first free. */
#include "server/shard/shard_state.h"

#include "common/compute/simd/simd.h"
#include "common/containers/list.h"

#include <assert.h>
#include <stdlib.h>

enum { ALIGNMENT = 64 };

struct shard_spare {
    buf base;
    shard_spare *next, *prev;
};
_Static_assert(sizeof(shard_spare) <= ALIGNMENT, "the numbers begin on the next cache line");

/* Below one block in powers of two (at least a cache line), above in whole blocks: a model has few chunk sizes. */
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

static void release(buf *self)
{
    free(self);
}

static shard_spare *make_spare(size_t count, size_t room)
{
    shard_spare *made = aligned_alloc(ALIGNMENT, ALIGNMENT + room * sizeof(float));
    if (made == NULL) return NULL;
    buf_init(&made->base, (char *)made + ALIGNMENT, count * sizeof(float), release);
    return made;
}

buf *shard_pool_take(shard_pool *pool, size_t count)
{
    size_t room;
    const int class = class_of(count, &room);
    assert(class < SHARD_POOL_CLASSES);
    shard_spare **line = &pool->spare[class];
    if (*line == NULL && pool->lent[class] != NULL && buf_is_alone(&pool->lent[class]->base))
        line = &pool->lent[class];
    if (*line == NULL) return (buf *)make_spare(count, room);
    shard_spare *taken = *line;
    LIST_REMOVE(*line, taken);
    taken->base.size = count * sizeof(float);
    return &taken->base;
}

void shard_pool_give(shard_pool *pool, buf *numbers)
{
    size_t room;
    const int class    = class_of(numbers->size / sizeof(float), &room);
    shard_spare *given = (shard_spare *)numbers;
    if (buf_is_alone(numbers))
        LIST_PREPEND(pool->spare[class], given);
    else
        LIST_APPEND(pool->lent[class], given);
}

static void free_line(shard_spare *line)
{
    LIST_EACH(spare, line) buf_release(&spare->base);
}

void shard_pool_fini(shard_pool *pool)
{
    for (int class = 0; class < SHARD_POOL_CLASSES; class ++) {
        free_line(pool->spare[class]);
        free_line(pool->lent[class]);
    }
}
