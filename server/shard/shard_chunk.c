/* shard_chunk.c - one chunk's memory: copy on write, and its encoded values. */
#include "server/shard/shard_state.h"

#include "common/base/crc.h"
#include "common/compute/simd/simd.h"
#include "common/net/transport/lend.h"

#include <string.h>

/* Values sent unencoded are lendable, so that workers of this host read them in place. */
static buf *array_new(shard *s, const shard_chunk *k, bool are_values)
{
    return recycler_take(s->recycler, k->count * sizeof(float), are_values && k->dtype == PEN_F32);
}

static buf *zeroed(buf *b)
{
    if (b != NULL) memset(b->data, 0, b->size);
    return b;
}

bool shard_chunk_allocate(shard *s, shard_chunk *k)
{
    bool done = true;
    if (k->extent[0] == OFFLOAD_NO_EXTENT)
        done = (k->values = zeroed(array_new(s, k, true))) != NULL;
    for (uint32_t i = 0; done && i < k->slots; i++)
        if (k->extent[1 + i] == OFFLOAD_NO_EXTENT)
            done = (k->slot[i] = zeroed(array_new(s, k, false))) != NULL;
    return done;
}

void shard_chunk_free(shard_chunk *k)
{
    buf_release(k->values);
    buf_release(k->encoded);
    buf_release(k->holder);
    buf_release(k->before.holder);
    for (int i = 0; i < OPTIM_SLOTS_MAX; i++) buf_release(k->slot[i]);
}

void shard_chunk_first_slots(shard *s, shard_chunk *k)
{
    const shard_group *group = &s->group[k->group];
    if (!k->trained || group->optim->slot_init == NULL) return;
    optim_span span = {.param = k->values->data, .n = k->count};
    for (int i = 0; i < (int)k->slots; i++) span.slot[i] = k->slot[i]->data;
    group->optim->slot_init(&group->hyper, &span);
}

/* Replaces memory with other holders by new memory; *old is the previous buffer, or NULL. */
static bool renew(shard *s, shard_chunk *k, buf **b, buf **old)
{
    *old = NULL;
    if (*b == NULL || buf_is_alone(*b)) return true;
    buf *fresh = array_new(s, k, b == &k->values);
    if (fresh == NULL) return false;
    *old = *b;
    *b   = fresh;
    return true;
}

/* Bytes of buffers with other holders, which shard_chunk_renew() replaces. */
static size_t shared_bytes(const shard_chunk *k)
{
    size_t bytes = k->values != NULL && !buf_is_alone(k->values) ? k->values->size : 0;
    for (int i = 0; i < OPTIM_SLOTS_MAX; i++)
        if (k->slot[i] != NULL && !buf_is_alone(k->slot[i])) bytes += k->slot[i]->size;
    return bytes;
}

bool shard_chunk_renew(shard *s, shard_chunk *k, shard_chunk_origin *from)
{
    const size_t bytes = shared_bytes(k);
    *from              = (shard_chunk_origin){.values = NULL};
    if (bytes == 0) return true;
    if (s->outside.copying != NULL) s->outside.copying(s->outside.user, bytes);
    bool done = renew(s, k, &k->values, &from->values);
    for (int i = 0; done && i < OPTIM_SLOTS_MAX; i++)
        done = renew(s, k, &k->slot[i], &from->slot[i]);
    return done || shard_no_memory(s);
}

static void copy_range(buf *to, const buf *from, uint64_t at, uint64_t n)
{
    if (from != NULL)
        memcpy((float *)to->data + at, (const float *)from->data + at, n * sizeof(float));
}

void shard_chunk_copy_range(shard_chunk *k, const shard_chunk_origin *from, uint64_t at, uint64_t n)
{
    copy_range(k->values, from->values, at, n);
    for (int i = 0; i < OPTIM_SLOTS_MAX; i++) copy_range(k->slot[i], from->slot[i], at, n);
}

void shard_chunk_origin_release(shard_chunk_origin *from)
{
    buf_release(from->values);
    for (int i = 0; i < OPTIM_SLOTS_MAX; i++) buf_release(from->slot[i]);
}

bool shard_chunk_make_writable(shard *s, shard_chunk *k)
{
    shard_chunk_origin from;
    const bool done = shard_chunk_renew(s, k, &from);
    if (done) shard_chunk_copy_range(k, &from, 0, k->count);
    shard_chunk_origin_release(&from);
    return done;
}

void shard_chunk_changed(shard_chunk *k)
{
    buf_release(k->encoded);
    k->encoded = NULL;
    k->has_crc = false;
}

/* Values in the program's type; cached for the next pull if values are in memory. */
static buf *encode(shard *s, shard_chunk *k)
{
    if (k->encoded != NULL) return buf_acquire(k->encoded);
    buf *values = shard_offload_array(s, k, 0);
    buf *fresh  = values != NULL ? lend_buf_new(k->count * plan_dtype_bytes(k->dtype)) : NULL;
    if (fresh != NULL)
        simd()->encode(fresh->data, values->data, k->dtype, k->count);
    else
        shard_no_memory(s);
    buf_release(values);
    if (fresh != NULL && k->extent[0] == OFFLOAD_NO_EXTENT) k->encoded = buf_acquire(fresh);
    return fresh;
}

buf *shard_chunk_wire(shard *s, shard_chunk *k)
{
    buf *wire = k->dtype == PEN_F32 ? shard_offload_array(s, k, 0) : encode(s, k);
    if (wire == NULL) return NULL;
    if (!k->has_crc) k->crc = crc32c(0, wire->data, wire->size);
    k->has_crc = true;
    return wire;
}
