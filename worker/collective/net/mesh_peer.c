/* mesh_peer.c - the state of each peer: its identity, whether it is suspected, whether it has left. */
#include "worker/collective/net/mesh_internal.h"

#include "common/base/clock.h"

#include <stdlib.h>
#include <string.h>

bool mesh_peer_init(mesh *m, int rank, uint64_t incarnation, const char *address, const char *host)
{
    mesh_peer *p = &m->peer[rank];
    *p           = (mesh_peer){.incarnation = incarnation,
                               .address     = strdup(address),
                               .host        = strdup(host != NULL ? host : "unknown"),
                               .link        = calloc(m->o.lanes, sizeof *p->link),
                               .caller      = calloc(m->o.lanes, sizeof *p->caller),
                               .dial        = calloc(m->o.lanes, sizeof *p->dial)};
    for (uint64_t i = 0; p->link != NULL && i < m->o.lanes; i++)
        p->link[i] = (mesh_link){.m = m, .rank = rank, .lane = (uint32_t)i};
    return p->address != NULL && p->host != NULL && p->link != NULL && p->caller != NULL &&
           p->dial != NULL;
}

void mesh_peer_fini(mesh_peer *p)
{
    free(p->link);
    free(p->caller);
    free(p->dial);
    free(p->address);
    free(p->host);
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
