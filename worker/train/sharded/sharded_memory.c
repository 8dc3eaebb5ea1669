/* sharded_memory.c - counted memory of the SDK. */
#include "worker/train/sharded/sharded_internal.h"

#include "common/system/segment.h"

void *sharded_hold(sharded *s, size_t bytes, stat_id as, pen_error *why)
{
    void *data = segment_alloc(bytes, why);
    if (data != NULL) stat_hold(&s->ctx->stats, as, (int64_t)bytes);
    return data;
}

void sharded_let_go(sharded *s, void *data, size_t bytes, stat_id as)
{
    if (data == NULL) return;
    stat_hold(&s->ctx->stats, as, -(int64_t)bytes);
    segment_free(data);
}

void *sharded_hold_there(sharded *s, size_t bytes, stat_id as, pen_error *why)
{
    void *data = place_alloc(&s->place, bytes, true, why);
    if (data != NULL) stat_hold(&s->ctx->stats, as, (int64_t)bytes);
    return data;
}

void sharded_let_go_there(sharded *s, void *data, size_t bytes, stat_id as)
{
    if (data == NULL) return;
    stat_hold(&s->ctx->stats, as, -(int64_t)bytes);
    place_free(&s->place, data, true);
}
