/* core_answer.c - the core's actions, and answers that wait for slower ranks. */
#include "server/shard/core/core_state.h"

#include "common/base/plant.h"
#include "common/containers/list.h"

#include <stdlib.h>

/* ---- actions --------------------------------------------------------------------------------- */
server_core_action *server_core_say(server_core *c, server_core_verb verb, uint32_t index)
{
    server_core_action *a = &c->action[c->n_actions++];
    *a = (server_core_action){.verb = verb, .index = index, .rank = -1, .peer = CORE_EVERYONE};
    return a;
}

server_core_actions server_core_said(const server_core *c)
{
    return (server_core_actions){c->n_actions, c->action};
}

server_core_actions server_core_refuse(server_core *c, uint32_t chunk, int32_t rank, uint32_t peer,
                                       uint64_t seq, pen_status status, const char *reason)
{
    server_core_action *a = server_core_say(c, CORE_REFUSE, chunk);
    a->rank               = rank;
    a->peer               = peer;
    a->seq                = seq;
    a->status             = status;
    a->reason             = reason;
    return server_core_said(c);
}

/* ---- waiting answers ------------------------------------------------------------------------- */
sync_view server_core_view(const server_core *c, uint32_t chunk, int32_t rank, uint64_t seq,
                           uint64_t slowest)
{
    const uint64_t clock = *server_core_clock(c, chunk, rank);
    const bool forgets =
        plant(PLANT_DEDUP_OFF_BY_ONE) || (plant(PLANT_EPOCH_IN_IDENTITY) && c->epochs > 1);
    return (sync_view){.seq     = seq,
                       .clock   = forgets && clock == seq + 1 ? seq : clock,
                       .slowest = slowest,
                       .round   = c->chunk[chunk].round};
}

static bool may_leave(const server_core *c, uint32_t chunk, const server_core_held *h,
                      uint64_t slowest)
{
    const server_core_chunk *k = &c->chunk[chunk];
    if (!k->has_values) return false;
    if (h->initial || !k->desc.trained) return true;
    const server_core_group *group = server_core_group_of(c, k);
    const sync_view view           = server_core_view(c, chunk, h->rank, h->seq, slowest);
    return group->ops->serve(&group->hyper, &view);
}

void server_core_serve(server_core *c, uint32_t chunk, const server_core_held *h, uint64_t slowest)
{
    const server_core_chunk *k = &c->chunk[chunk];
    const uint64_t clock       = *server_core_clock(c, chunk, h->rank);
    server_core_action *a      = server_core_say(c, h->bare ? CORE_APPLIED : CORE_SERVE, chunk);
    a->rank                    = h->rank;
    a->peer                    = h->peer;
    a->seq                     = h->initial ? clock : h->seq; /* where its pushes begin */
    a->initial                 = h->initial;
    if (!server_core_group_of(c, k)->ops->averages && !h->initial && clock > slowest)
        a->staleness = clock - slowest > UINT32_MAX ? UINT32_MAX : (uint32_t)(clock - slowest);
}

bool server_core_hold(server_core *c, uint32_t chunk, const server_core_held *answer)
{
    uint32_t n = 0;
    LIST_EACH(h, c->chunk[chunk].held) {
        if (h->rank != answer->rank) continue;
        if (h->seq == answer->seq && h->initial == answer->initial) { /* asked again */
            h->peer = answer->peer;
            return true;
        }
        if (++n == CORE_HELD_PER_RANK_MAX) return false;
    }
    server_core_held *h = c->spare != NULL ? c->spare : malloc(sizeof *h);
    if (h == NULL) return false;
    if (c->spare != NULL) c->spare = h->next;
    *h = *answer;
    LIST_PREPEND(c->chunk[chunk].held, h);
    return true;
}

static void unlink_held(server_core *c, uint32_t chunk, server_core_held *h)
{
    LIST_REMOVE(c->chunk[chunk].held, h);
    h->next  = c->spare;
    c->spare = h;
}

void server_core_serve_held(server_core *c, uint32_t chunk)
{
    if (c->chunk[chunk].held == NULL) return;
    const uint64_t slowest = server_core_slowest(c, chunk);
    LIST_EACH(h, c->chunk[chunk].held) {
        if (!may_leave(c, chunk, h, slowest)) continue;
        server_core_serve(c, chunk, h, slowest);
        unlink_held(c, chunk, h);
    }
}

/* rank -1, peer CORE_EVERYONE: of any. */
static void forget(server_core *c, uint32_t chunk, int32_t rank, uint32_t peer)
{
    LIST_EACH(h, c->chunk[chunk].held)
        if ((rank < 0 || h->rank == rank) && (peer == CORE_EVERYONE || h->peer == peer))
            unlink_held(c, chunk, h);
}

void server_core_forget_held_of(server_core *c, uint32_t chunk, int32_t rank)
{
    forget(c, chunk, rank, CORE_EVERYONE);
}

void server_core_forget_held(server_core *c)
{
    for (uint32_t k = 0; k < c->n_chunks; k++) forget(c, k, -1, CORE_EVERYONE);
}

void server_core_peer_down(server_core *c, uint32_t peer)
{
    for (uint32_t k = 0; k < c->n_chunks; k++) forget(c, k, -1, peer);
}

bool server_core_answer(server_core *c, uint32_t chunk, const server_core_held *h, bool *held)
{
    const uint64_t slowest = server_core_slowest(c, chunk);
    *held                  = !may_leave(c, chunk, h, slowest);
    if (*held) return server_core_hold(c, chunk, h);
    server_core_serve(c, chunk, h, slowest);
    return true;
}
