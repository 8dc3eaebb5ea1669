/* cluster_view.c - a process's copy of an epoch's record, and its clock. */
#include "tests/sim/cluster_state.h"

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
static const wire_member *take_members(message_copy *kept, const wire_member *from, uint32_t n)
{
    wire_member *to = sim_need(message_copy_bytes(kept, from, n * sizeof *from));
    for (uint32_t i = 0; i < n; i++) {
        to[i].host    = message_copy_text(kept, from[i].host);
        to[i].address = message_copy_texts(kept, from[i].address, from[i].n_addresses);
    }
    return to;
}

static void take_replicas(sim_view *r, const wire_replica *from, uint32_t n)
{
    r->replica    = sim_need(message_copy_bytes(&r->kept, from, n * sizeof *from));
    r->n_replicas = n;
}

void sim_view_take(sim_view *r, const wire_control *m)
{
    message_copy_clear(&r->kept);
    *r        = (sim_view){.term            = m->u.epoch.term,
                           .epoch           = m->u.epoch.epoch,
                           .step            = m->u.epoch.step,
                           .members_changed = m->u.epoch.members_changed,
                           .has_decision    = m->u.epoch.has_decision,
                           .decision        = m->u.epoch.decision,
                           .n_workers       = m->u.epoch.n_workers,
                           .n_servers       = m->u.epoch.n_servers};
    r->worker = take_members(&r->kept, m->u.epoch.worker, r->n_workers);
    r->server = take_members(&r->kept, m->u.epoch.server, r->n_servers);
    take_replicas(r, m->u.epoch.replica, m->u.epoch.n_replicas);
}

void sim_view_place(sim_view *r, const wire_control *m)
{
    if (r->n_replicas == 0) take_replicas(r, m->u.plan.replica, m->u.plan.n_replicas);
}

void sim_view_clear(sim_view *r)
{
    message_copy_clear(&r->kept);
    memset(r, 0, sizeof *r);
}

bool sim_view_is_newer(uint64_t term, uint64_t epoch, const sim_view *r)
{
    return term > r->term || (term == r->term && epoch > r->epoch);
}

const wire_member *sim_view_server(const sim_view *r, int32_t rank)
{
    for (uint32_t i = 0; i < r->n_servers; i++)
        if (r->server[i].rank == rank) return &r->server[i];
    return NULL;
}

const wire_replica *sim_view_primary(const sim_view *r, uint32_t number)
{
    for (uint32_t i = 0; i < r->n_replicas; i++)
        if (r->replica[i].shard == number && r->replica[i].role == WIRE_PRIMARY)
            return &r->replica[i];
    return NULL;
}
