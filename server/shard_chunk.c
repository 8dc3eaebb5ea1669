/* shard_chunk.c - one chunk's memory: copy on write, and what travels of it. */
#include "server/shard_state.h"

#include "common/crc.h"
#include "common/simd/simd.h"

#include <string.h>

static buf *zeros(size_t bytes)
{
    buf *b = buf_new(bytes);
    if (b != NULL) memset(b->data, 0, bytes);
    return b;
}

bool shard_chunk_allocate(shard_chunk *k, int slots)
{
    const size_t bytes = k->count * sizeof(float);
    k->values          = zeros(bytes);
    if (k->values == NULL) return false;
    for (int i = 0; i < slots; i++)
        if ((k->slot[i] = zeros(bytes)) == NULL) return false;
    return true;
}

void shard_chunk_free(shard_chunk *k)
{
    buf_release(k->values);
    buf_release(k->encoded);
    buf_release(k->holder);
    for (int i = 0; i < OPTIM_SLOTS_MAX; i++) buf_release(k->slot[i]);
}

void shard_chunk_first_slots(shard *s, shard_chunk *k)
{
    const shard_group *group = &s->group[k->group];
    if (!k->trained || group->optim->slot_init == NULL) return;
    optim_span span = {.param = k->values->data, .n = k->count};
    for (int i = 0; i < group->optim->slot_count; i++) span.slot[i] = k->slot[i]->data;
    group->optim->slot_init(&group->hyper, &span);
}

static bool make_alone(buf **b)
{
    if (*b == NULL || buf_is_alone(*b)) return true;
    buf *copy = buf_new((*b)->size);
    if (copy == NULL) return false;
    memcpy(copy->data, (*b)->data, copy->size);
    buf_release(*b);
    *b = copy;
    return true;
}

bool shard_chunk_make_writable(shard *s, shard_chunk *k)
{
    bool done = make_alone(&k->values);
    for (int i = 0; done && i < OPTIM_SLOTS_MAX; i++) done = make_alone(&k->slot[i]);
    return done || shard_no_memory(s);
}

void shard_chunk_changed(shard_chunk *k)
{
    buf_release(k->encoded);
    k->encoded = NULL;
    k->has_crc = false;
}

static bool encode(shard_chunk *k)
{
    if (k->dtype == PEN_F32 || k->encoded != NULL) return true;
    k->encoded = buf_new(k->count * plan_dtype_bytes(k->dtype));
    if (k->encoded == NULL) return false;
    simd()->encode(k->encoded->data, k->values->data, k->dtype, k->count);
    return true;
}

buf *shard_chunk_wire(shard *s, shard_chunk *k)
{
    if (!encode(k)) {
        shard_no_memory(s);
        return NULL;
    }
    buf *wire = k->dtype == PEN_F32 ? k->values : k->encoded;
    if (!k->has_crc) k->crc = crc32c(0, wire->data, wire->size);
    k->has_crc = true;
    return wire;
}
