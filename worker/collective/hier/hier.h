/* hier.h - groups with several members on several hosts: node.h or device.h inside each host, mesh.h between hosts. */
#ifndef WORKER_COLL_HIER_H
#define WORKER_COLL_HIER_H

#include "worker/collective/device/device.h"
#include "worker/collective/net/mesh.h"
#include "worker/collective/shm/node.h"

#include <pthread.h>

typedef struct {
    pthread_mutex_t *mesh_lock;
    mesh *mesh;
    node_team *inside; /* members of this host; NULL: only this one */
    wire_team *flat;   /* all */
    /* members with the same position on their host, in the order of the hosts' first members; NULL if hosts have
     * different numbers of members */
    wire_team *across;
    int size, rank, inside_size, inside_rank, across_size, across_rank;
    const int *ranks;     /* [size] RANKs of the group */
    const int *host_of;   /* [size] position of the first member on the same host */
    const int *place;     /* [size] of each member on its host */
    bool may_fold_in_two; /* SUM, PROD and AVG of floats: first inside hosts, then between them */
} hier_options;
/* OWNS inside and across; NULL: no memory. */
struct hier_team *hier_team_create(const hier_options *o);
void hier_team_destroy(struct hier_team *team);
bool hier_is_on_mesh(const struct hier_team *team); /* the part in progress uses the mesh */

/* ---- device memory: hier_device.c ---- */
/* Whether such a call can begin and end on the devices of each host, so that only the host's share passes through host
 * memory.  The same on every member; any call that is not staged must be one. */
bool hier_fits_devices(const struct hier_team *team, const coll_call *call);
/* Before the first such call: the members of this host, in the group's order.  BORROWED, with ops and stats. */
typedef struct {
    device_team *inside;
    const device_ops *ops;
    stat_set *stats;
    int device;
} hier_devices;
void hier_take_devices(struct hier_team *team, const hier_devices *devices);
/* After a call that failed with UNSUPPORTED: no data was moved, the same on every member, because the devices of some
 * host cannot work together. */
bool hier_refuses_devices(const struct hier_team *team);
/* Before hier_team_destroy() and after device_team_destroy(): waits for the device, at most some seconds.  Memory that a
 * device still uses then is not freed. */
void hier_leave_devices(struct hier_team *team);

#endif
