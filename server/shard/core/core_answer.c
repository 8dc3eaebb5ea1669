/* core_answer.c - the core's actions, and answers that wait for slower ranks. */
#include "server/shard/core/core_state.h"

#include "common/base/mutation.h"
#include "common/containers/list.h"

#include <stdlib.h>

/* ---- actions --------------------------------------------------------------------------------- */
shard_core_action *shard_core_send(shard_core *c, shard_core_verb verb, uint32_t index)
{
    shard_core_action *a = &c->action[c->n_actions++];
    *a = (shard_core_action){.verb = verb, .index = index, .rank = -1, .peer = CORE_EVERYONE};
    return a;
}

shard_core_actions shard_core_sent(const shard_core *c)
{
    return (shard_core_actions){c->n_actions, c->action};
}

shard_core_actions shard_core_refuse(shard_core *c, uint32_t chunk, int32_t rank, uint32_t peer,
                                     uint64_t seq, pen_status status, const char *reason)
{
    shard_core_action *a = shard_core_send(c, CORE_REFUSE, chunk);
    a->rank              = rank;
    a->peer              = peer;
    a->seq               = seq;
    a->status            = status;
    a->reason            = reason;
    return shard_core_sent(c);
}

/* ---- waiting answers ------------------------------------------------------------------------- */
sync_view shard_core_view(const shard_core *c, uint32_t chunk, int32_t rank, uint64_t seq,
                          uint64_t slowest)
{
    const uint64_t clock = *shard_core_clock(c, chunk, rank);
    const bool forgets   = mutation(MUTATION_DEDUP_OFF_BY_ONE) ||
                         (mutation(MUTATION_EPOCH_IN_IDENTITY) && c->epochs > 1);
    return (sync_view){.seq     = seq,
                       .clock   = forgets && clock == seq + 1 ? seq : clock,
                       .slowest = slowest,
                       .round   = c->chunk[chunk].round};
}

static bool may_leave(const shard_core *c, uint32_t chunk, const shard_core_waiting *h,
                      uint64_t slowest)
{
    const shard_core_chunk *k = &c->chunk[chunk];
    if (!k->has_values) return false;
    if (h->initial || !k->desc.trained) return true;
    const shard_core_group *group = shard_core_group_of(c, k);
    const sync_view view          = shard_core_view(c, chunk, h->rank, h->seq, slowest);
    return group->ops->serve(&group->hyper, &view);
}

void shard_core_serve(shard_core *c, uint32_t chunk, const shard_core_waiting *h, uint64_t slowest)
{
    const shard_core_chunk *k = &c->chunk[chunk];
    const uint64_t clock      = *shard_core_clock(c, chunk, h->rank);
    shard_core_action *a      = shard_core_send(c, h->bare ? CORE_APPLIED : CORE_SERVE, chunk);
    a->rank                   = h->rank;
    a->peer                   = h->peer;
    a->seq                    = h->initial ? clock : h->seq; /* where its pushes begin */
    a->initial                = h->initial;
    if (!shard_core_group_of(c, k)->ops->averages && !h->initial && clock > slowest)
        a->staleness = clock - slowest > UINT32_MAX ? UINT32_MAX : (uint32_t)(clock - slowest);
}

bool shard_core_hold(shard_core *c, uint32_t chunk, const shard_core_waiting *answer)
{
    uint32_t n = 0;
    LIST_EACH(h, c->chunk[chunk].held) {
        if (h->rank != answer->rank) continue;
        if (h->seq == answer->seq && h->initial == answer->initial) { /* asked again */
            h->peer = answer->peer;
            return true;
        }
        if (++n == CORE_WAITING_PER_RANK_MAX) return false;
    }
    shard_core_waiting *h = c->spare != NULL ? c->spare : malloc(sizeof *h);
    if (h == NULL) return false;
    if (c->spare != NULL) c->spare = h->next;
    *h = *answer;
    LIST_PREPEND(c->chunk[chunk].held, h);
    return true;
}

static void unlink_waiting(shard_core *c, uint32_t chunk, shard_core_waiting *h)
{
    LIST_REMOVE(c->chunk[chunk].held, h);
    h->next  = c->spare;
    c->spare = h;
}

void shard_core_serve_waiting(shard_core *c, uint32_t chunk)
{
    if (c->chunk[chunk].held == NULL) return;
    const uint64_t slowest = shard_core_slowest(c, chunk);
    LIST_EACH(h, c->chunk[chunk].held) {
        if (!may_leave(c, chunk, h, slowest)) continue;
        shard_core_serve(c, chunk, h, slowest);
        unlink_waiting(c, chunk, h);
    }
}

/* rank -1, peer CORE_EVERYONE: of any. */
static void forget(shard_core *c, uint32_t chunk, int32_t rank, uint32_t peer)
{
    LIST_EACH(h, c->chunk[chunk].held)
        if ((rank < 0 || h->rank == rank) && (peer == CORE_EVERYONE || h->peer == peer))
            unlink_waiting(c, chunk, h);
}

void shard_core_forget_waiting_of(shard_core *c, uint32_t chunk, int32_t rank)
{
    forget(c, chunk, rank, CORE_EVERYONE);
}

void shard_core_forget_waiting(shard_core *c)
{
    for (uint32_t k = 0; k < c->n_chunks; k++) forget(c, k, -1, CORE_EVERYONE);
}

void shard_core_peer_down(shard_core *c, uint32_t peer)
{
    for (uint32_t k = 0; k < c->n_chunks; k++) forget(c, k, -1, peer);
}

bool shard_core_answer(shard_core *c, uint32_t chunk, const shard_core_waiting *h, bool *held)
{
    const uint64_t slowest = shard_core_slowest(c, chunk);
    *held                  = !may_leave(c, chunk, h, slowest);
    if (*held) return shard_core_hold(c, chunk, h);
    shard_core_serve(c, chunk, h, slowest);
    return true;
}
