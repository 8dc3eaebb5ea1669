/* shard_fail.c - failure of a shard: reported once to its server, then all messages are ignored. */
#include "server/shard/shard_state.h"

void shard_fail(shard *s, const pen_error *error)
{
    if (s->has_failed) return;
    s->has_failed = true;
    s->outside.report(s->outside.user, error);
}

bool shard_no_memory(shard *s)
{
    pen_error error;
    why_set(&error, PEN_NO_MEMORY,
            "a shard of %u chunks ran out of memory; give the job more servers or memory",
            s->n_chunks);
    why_culprit(&error, PEN_SERVER, -1, -1, NULL);
    shard_fail(s, &error);
    return false;
}
