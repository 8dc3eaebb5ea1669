/* server_inbox.c - main handles the events of other threads. */
#include "server/process/server_state.h"

/* The scheduler decides what a failure means for the others; its verdict ends this server too. */
static void failed(server *s, const pen_error *error)
{
    const wire_control c = {.kind = WIRE_FAILURE, .u.verdict = *error};
    if (s->member.incarnation != 0 && s->member.is_up)
        server_send(s, &c);
    else
        server_end(s, error);
}

static void unreached(server *s, const server_unreached *u)
{
    const wire_control c = {
        .kind        = WIRE_UNREACHED,
        .u.unreached = {
            .role = PEN_SERVER, .rank = u->rank, .address = u->address, .words = u->words}};
    server_send(s, &c);
}

/* The first capture of a step triggers the idle shards, which get no gradient. */
static void capture_begun(server *s, int64_t step)
{
    for (uint32_t i = 0; i < s->settings.shards && !s->has_ended; i++) {
        const server_sign sign = {&s->shard[i], step};
        (void)server_post(s->shard[i].loop, server_shard_capture_idle, &sign, sizeof sign);
    }
}

void server_take(server *s, server_event event, void *value)
{
    switch (event) {
    case SERVER_PREPARED: server_prepared(value); break;
    case SERVER_MADE: server_made(value); break;
    case SERVER_REACHED: server_place_reached(s); break;
    case SERVER_SEALED:
        server_sealed(value);
        server_control_after(s);
        break;
    case SERVER_PART_WRITTEN: server_part_written(value); break;
    case SERVER_ANSWERED: server_answer(value); break;
    case SERVER_CAPTURE_BEGUN: capture_begun(s, *(const int64_t *)value); break;
    case SERVER_UNREACHED: unreached(s, value); break;
    case SERVER_SAYS: server_send(s, value); break;
    case SERVER_FAILED: failed(s, value); break;
    }
}
