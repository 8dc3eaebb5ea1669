/* mesh_peer.c - the state of each peer: its identity, whether it is suspected, whether it has left. */
#include "worker/collective/net/mesh_internal.h"

#include "common/base/clock.h"

#include <stdlib.h>
#include <string.h>

/* One block for all of it: a job may have thousands of peers. */
bool mesh_peer_init(mesh *m, int rank, uint64_t incarnation, const char *address, const char *host)
{
    mesh_peer *p         = &m->peer[rank];
    const size_t lanes   = m->o.lanes;
    const char *who      = host != NULL ? host : "unknown";
    const size_t numbers = lanes * (sizeof *p->link + sizeof *p->caller + sizeof *p->dial);
    p->link              = calloc(1, numbers + strlen(address) + strlen(who) + 2);
    if (p->link == NULL) return false;
    p->incarnation = incarnation;
    p->caller      = (uint64_t *)(p->link + lanes);
    p->dial        = (uint32_t *)(p->caller + lanes);
    p->address     = strcpy((char *)(p->dial + lanes), address);
    p->host        = strcpy((char *)(p->dial + lanes) + strlen(address) + 1, who);
    for (uint32_t i = 0; i < lanes; i++) p->link[i] = (mesh_link){.m = m, .rank = rank, .lane = i};
    return true;
}

void mesh_peer_fini(mesh_peer *p)
{
    free(p->link);
}

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
