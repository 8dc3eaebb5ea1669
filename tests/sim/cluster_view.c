/* cluster_view.c - a process's copy of an epoch's record, and its clock. */
#include "tests/sim/cluster_state.h"

#include <stdlib.h>
#include <string.h>

/* ---- clocks ---------------------------------------------------------------------------------- */
sim_clock sim_clock_draw(cluster *c)
{
    const uint32_t percent = c->plan.skew_percent;
    if (percent == 0) return (sim_clock){.per_mille = 1000};
    return (sim_clock){.per_mille =
                           draw_between(&c->chance, 1000 - 10 * percent, 1000 + 10 * percent),
                       .offset_ms = draw_below(&c->chance, 1000000)};
}

uint64_t sim_now(const cluster *c, const sim_clock *k)
{
    return k->offset_ms + c->now_ms * k->per_mille / 1000;
}

uint64_t sim_when(const cluster *c, const sim_clock *k, uint64_t local)
{
    if (local == UINT64_MAX) return UINT64_MAX;
    if (local <= sim_now(c, k)) return c->now_ms;
    return ((local - k->offset_ms) * 1000 + k->per_mille - 1) / k->per_mille;
}

/* ---- records --------------------------------------------------------------------------------- */
void sim_view_take(wire_epoch *r, wire_arena **kept, const wire_control *m)
{
    wire_control copy;
    if (!wire_control_copy(m, kept, &copy)) abort();
    *r = copy.u.epoch;
}

void sim_view_place(wire_epoch *r, wire_arena **kept, const wire_control *m)
{
    wire_control placed = {.kind = WIRE_EPOCH, .u.epoch = *r};
    if (r->n_replicas > 0) return;
    placed.u.epoch.replica    = m->u.plan.replica;
    placed.u.epoch.n_replicas = m->u.plan.n_replicas;
    sim_view_take(r, kept, &placed);
}

void sim_view_clear(wire_epoch *r, wire_arena **kept)
{
    wire_arena_destroy(*kept);
    *kept = NULL;
    *r    = (wire_epoch){0};
}

bool sim_view_is_newer(uint64_t term, uint64_t epoch, const wire_epoch *r)
{
    return term > r->term || (term == r->term && epoch > r->epoch);
}

const wire_member *sim_view_server(const wire_epoch *r, int32_t rank)
{
    for (uint32_t i = 0; i < r->n_servers; i++)
        if (r->server[i].rank == rank) return &r->server[i];
    return NULL;
}

const wire_replica *sim_view_primary(const wire_epoch *r, uint32_t number)
{
    for (uint32_t i = 0; i < r->n_replicas; i++)
        if (r->replica[i].shard == number && r->replica[i].role == WIRE_PRIMARY)
            return &r->replica[i];
    return NULL;
}
