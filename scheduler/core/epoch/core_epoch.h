/* core_epoch.h - the agreed model, the placement of its copies, and the epoch record. */
#ifndef SCHEDULER_CORE_EPOCH_H
#define SCHEDULER_CORE_EPOCH_H

#include "proto/plan.h"
#include "scheduler/core/epoch/placement.h"
#include "scheduler/core/epoch/resolve.h"
#include "scheduler/core/membership/roster.h"

enum {
    CORE_GATHER_MS = 20, /* learners that catch up within it change the epoch once */
    CORE_SEAL_MS   = 10000
};

typedef struct { /* a change of the epoch, wanted or in progress */
    bool is_wanted, is_open;
    uint64_t due_ms;         /* wanted: when it begins; open: when all must have sealed */
    uint64_t begun_ms;       /* when its first cause came */
    const member_slot *lost; /* a server whose death is a cause; else NULL */
    bool has_joined;         /* a server has */
    char cause[160];
} core_change;

typedef struct {
    uint64_t number;
    wire_control view; /* the newest EPOCH */
    wire_arena *kept;  /* of `view` */
    core_change change;
    placement place, goal;
    bool goal_is_old; /* servers came, left or are being drained */
} core_epoch;

typedef struct {
    wire_model wire;
    wire_arena *kept; /* of `wire` */
    member_slot *of;  /* whose REGISTER it is; NULL: none yet */
    plan *plan;       /* NULL: none yet, or no servers */
    uint32_t *shard;  /* [plan->n_partitions] */
    uint32_t n_shards;
    uint64_t plan_term; /* of the plan */
    int64_t restore, applied;
    void *states; /* of workers, from the restored snapshot; a bundle */
    size_t states_bytes;
} core_model;

const char *core_model_setting(const wire_model *model, const char *key); /* NULL: not found */

/* core_epoch_view.c: the view */
uint64_t core_epoch_listed(const member_slot *s); /* its incarnation in a view made now; 0: none */
wire_member core_epoch_member(const member_slot *s); /* BORROWED from the member slot */
bool core_epoch_is_part(const member_slot *s);       /* alive and in the current view */
void core_epoch_fini(core_epoch *self);

#endif
