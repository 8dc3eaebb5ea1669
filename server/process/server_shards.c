/* server_shards.c - the shards of one thread. */
#include "server/process/server_state.h"

#include "common/containers/arrays.h"
#include "common/trace/trace.h"

#include <stdlib.h>

void server_hosted_destroy(server_hosted *h)
{
    if (h == NULL) return;
    shard_destroy(h->shard);
    free(h);
}

server_hosted *server_shard_find(const server_shard *s, uint32_t number)
{
    for (uint32_t i = 0; i < s->n_hosted; i++)
        if (s->hosted[i]->number == number) return s->hosted[i];
    return NULL;
}

void server_shard_flush(server_shard *s)
{
    for (uint32_t i = 0; i < s->n_hosted; i++) {
        const uint64_t begun = trace_begin();
        shard_flush(s->hosted[i]->shard);
        trace_span(TRACE_REPLY, begun, &(trace_note){.shard = (int32_t)s->hosted[i]->number});
    }
}

bool server_shard_adopt(server_shard *s, server_hosted *h)
{
    if (!VEC_ROOM(s->hosted, s->hosted_capacity, s->n_hosted + 1)) return false;
    s->hosted[s->n_hosted++] = h;
    return true;
}
