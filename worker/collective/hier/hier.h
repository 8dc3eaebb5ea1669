/* hier.h - groups with several members on several hosts: node.h inside each host, mesh.h between hosts. */
#ifndef WORKER_COLL_HIER_H
#define WORKER_COLL_HIER_H

#include "worker/collective/net/mesh.h"
#include "worker/collective/shm/node.h"

#include <pthread.h>

typedef struct {
    pthread_mutex_t *mesh_lock;
    mesh *mesh;
    node_team *inside; /* members of this host; NULL: only this one */
    wire_team *flat;   /* all */
    /* members with the same position on their host; NULL if hosts have different numbers of members */
    wire_team *across;
    int size, rank, inside_size, inside_rank, across_size, across_rank;
    const int *ranks;   /* [size] RANKs of the group */
    const int *host_of; /* [size] position of the first member on the same host */
    bool is_deterministic, is_forced;
} hier_options;
/* OWNS inside and across; NULL: no memory. */
struct hier_team *hier_team_create(const hier_options *o);
void hier_team_destroy(struct hier_team *team);
bool hier_is_on_mesh(const struct hier_team *team); /* the part in progress uses the mesh */

#endif
