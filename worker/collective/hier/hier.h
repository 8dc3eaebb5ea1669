/* hier.h - a group with several members on several hosts: inside each host by node.h, between hosts by mesh.h. */
#ifndef WORKER_COLL_HIER_H
#define WORKER_COLL_HIER_H

#include "worker/collective/net/mesh.h"
#include "worker/collective/shm/node.h"

#include <pthread.h>

typedef struct {
    pthread_mutex_t *mesh_lock;
    mesh *mesh;
    node_team *inside; /* members of this host, NULL: it is the only one */
    wire_team *flat;   /* all */
    /* members with the same position on their host; NULL where hosts differ in number */
    wire_team *across;
    int size, rank, inside_size, inside_rank, across_size, across_rank;
    const int *ranks;   /* [size] RANKs of the group */
    const int *host_of; /* [size] position of the first member on the same host */
    bool is_deterministic, is_forced;
} hier_options;
struct hier_team *
hier_team_create(const hier_options *o); /* takes inside and across; NULL: no memory */
void hier_team_destroy(struct hier_team *team);
bool hier_is_on_mesh(const struct hier_team *team); /* the part in progress goes between hosts */

#endif
