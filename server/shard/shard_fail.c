/* shard_fail.c - a shard that cannot go on: its server is told once, and no message is taken any more. */
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
