/* group.h - a pen_group: members in order, the path that carries their calls, and the queue of those calls.
 *
 * DESIGN
 * Names.     All members compute a group's id alike, without a message: a hash of its parent's id, its members' RANKs
 *            and how often the same members formed a group before.  The world's id is 1.
 * Paths.     Chosen when the group is made, from what every member knows of every other, so all choose alike:
 *            alone: self; one host: node; one member on each host: wire; several on several: hier.  If one member
 *            finds that it cannot map the others, all learn it in the group's first call (node.h, hier.c).
 * Order.     Calls run one after another, in call order.  Fields below the line belong to engine_drive.c.
 */
#ifndef WORKER_COLL_GROUP_H
#define WORKER_COLL_GROUP_H

#include "common/compute/simd/reduce.h"
#include "worker/collective/coll.h"

struct coll_engine;
struct device_stop;
struct device_team;
struct engine_stage;
struct engine_call;
struct engine_message;
struct hier_team;
struct node_team;
struct wire_team;

typedef enum { GROUP_SELF, GROUP_NODE, GROUP_WIRE, GROUP_HIER } group_carrier;

typedef struct { /* a set of members that became a group, and how often */
    uint64_t members;
    uint32_t times;
} group_child;

struct pen_group {
    pen_ctx *ctx;
    struct coll_engine *engine; /* NULL until the job has joined */
    uint64_t id;
    int size, rank;
    int *ranks;          /* [size] RANK of each position */
    bool is_world;       /* perhaps of an earlier epoch: queries are answered by the present one */
    reduce_order *order; /* of folds; NULL: rank order */
    group_carrier carrier;
    const coll_path *path;
    void *team; /* path's */
    struct node_team *node;
    struct wire_team *wire; /* of every group of two or more: also carries point to point */
    struct hier_team *hier;
    struct device_team *device; /* created by the driver of the first call on device memory */
    bool device_is_settled;     /* all members have agreed on device_carries */
    bool was_on_device;         /* the newest call */
    bool device_carries;        /* devices carry the group's calls */
    bool device_is_stopped;     /* after the group has failed */
    bool has_rung;              /* its device has done something in this turn of the driver */
    struct engine_stage
        *stages; /* host memory for calls on device memory; its copies may be in progress */
    uint64_t path_seq, device_seq; /* calls that each has carried: a team's count up by one */
    group_child *child;
    uint32_t n_children;

    /* ---- under the engine's lock ---- */
    uint64_t seq;             /* of the newest call */
    struct engine_call *head; /* a list, in call order */
    int waiters;              /* threads that wait for a call of the group, and drive it */
    bool is_driven;           /* a thread is inside the path */
    uint64_t idle_ns;         /* since when drivers have found nothing to do; 0: not now */
    bool has_failed;          /* for good; every later call fails with: */
    pen_error failure;
    struct device_stop *stop; /* for kernels; see coll_stop_word(); of: */
    const device_ops *stop_ops;
    bool names_call;             /* the call in progress is added to that sentence */
    bool has_shrunk;             /* coll_engine_shrunk() was called, with: */
    uint64_t successor;          /* id of the group that continues */
    int *survivors, n_survivors; /* RANKs */
    pen_error shrink_why;
};

/* Makes a group of members ranks[n] (RANKs), this one among them, and adds it to the engine.  Dials its members, but
 * waits for none. */
pen_status group_create(struct coll_engine *engine, uint64_t id, const int *ranks, int n,
                        pen_group **g, pen_error *why);
void group_destroy(pen_group *g); /* no call in progress; NULL is fine */

/* The world of a context that has not joined yet: it has members, but no path. */
pen_group *group_create_world(pen_ctx *ctx, int size, int rank);
/* Chooses its path, creates the teams, and adds it to the engine. */
pen_status group_connect(struct coll_engine *engine, pen_group *g, pen_error *why);

/* Dials the members that its calls need a connection to. */
pen_status group_reach(struct coll_engine *engine, const pen_group *g, pen_error *why);

/* Switches to sockets, whatever its path was.  Under the engine's lock, by its driver. */
void group_take_wire(pen_group *g);

/* ---- group_make.c ---- */
/* The members of this worker's node, or those with its local rank.  BORROWED from the engine, which is NULL before the
 * job has begun.  NULL: *why. */
pen_group *group_of_kind(struct coll_engine *engine, pen_group_kind kind, pen_error *why);

/* All new members call it, which are ranks[n] of the parent; waits for them, as the next two for patience_ms at most, 0
 * without limit.  On failure *g is NULL. */
pen_status group_new(pen_group *parent, const int *ranks, int n, uint64_t patience_ms,
                     pen_group **g, pen_error *why);

/* All members of the parent call it.  color -1: no new group here, and *g is unchanged. */
pen_status group_split(pen_group *parent, int color, int key, uint64_t patience_ms, pen_group **g,
                       pen_error *why);

/* ---- group_shrink.c ---- */
/* Waits until the survivors of a failed group agree on their list. */
pen_status engine_shrink(pen_group *g, uint64_t patience_ms, pen_group **survivors, pen_error *why);

/* Records this set of members as a child and returns its id, the same on all members; 0: no memory. */
uint64_t group_child_id(pen_group *parent, const int *ranks, int n);
uint64_t group_hash(uint64_t seed, const void *data, size_t size);

const char *group_carrier_name(group_carrier carrier);

#endif
