/* mesh_peer.c - the state of each peer: its identity, whether it is suspected, whether it has left. */
#include "worker/collective/net/mesh_internal.h"

#include "common/base/clock.h"

bool mesh_has_callers(const mesh *m, const mesh_peer *p)
{
    for (uint64_t lane = 0; lane < m->o.lanes; lane++)
        if (p->caller[lane] != 0) return true;
    return false;
}

bool mesh_is_away(const mesh *m, int rank)
{
    const mesh_peer *p = &m->peer[rank];
    return p->has_left && !mesh_has_callers(m, p);
}

void mesh_suspect(mesh *m, int rank)
{
    mesh_peer *p = &m->peer[rank];
    if (p->suspect_ms != 0) return;
    p->suspect_ms = clock_ms(&clock_real);
    m->n_suspects++;
}

void mesh_trust(mesh *m, mesh_peer *p)
{
    p->suspect_ms = 0;
    p->missed     = 0;
    p->is_cut_off = false;
    m->n_suspects--;
}
