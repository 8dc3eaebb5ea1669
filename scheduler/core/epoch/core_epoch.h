/* core_epoch.h - the model that all have agreed on, where its copies lie, and the record of who takes part. */
#ifndef SCHEDULER_CORE_EPOCH_H
#define SCHEDULER_CORE_EPOCH_H

#include "proto/plan.h"
#include "scheduler/core/epoch/placement.h"
#include "scheduler/core/membership/roster.h"
#include "scheduler/core/epoch/settle.h"

enum {
    CORE_GATHER_MS = 20, /* learners that catch up one after another change the epoch once */
    CORE_SEAL_MS   = 10000
};

typedef struct { /* a change of the epoch, wanted or under way */
    bool is_wanted, is_open;
    uint64_t due_ms;   /* wanted: when it begins; open: by when all servers must have sealed */
    uint64_t begun_ms; /* the first cause of it */
    const seat *lost;  /* a server whose death is a cause; NULL */
    char cause[160];
} core_change;

typedef struct {
    uint64_t number;
    wire_control record; /* the newest EPOCH, as all were told */
    keep kept;           /* holds what it points to */
    core_change change;
    placement place, goal;
    bool goal_is_old; /* servers came, went or are drained */
} core_epoch;

typedef struct {
    wire_model wire;
    keep kept;       /* holds what it points to */
    seat *of;        /* whose REGISTER it is; NULL: none yet */
    plan *plan;      /* NULL: none yet, or there are no servers */
    uint32_t *shard; /* [plan->n_partitions] */
    uint32_t n_shards;
    uint64_t plan_term; /* in which the plan was made */
    int64_t restore, applied;
    void *states; /* of workers, in the snapshot that is restored; a bundle */
    size_t states_bytes;
} core_model;

const char *core_model_setting(const wire_model *model, const char *key); /* NULL: not there */

/* core_epoch_record.c: the record */
bool core_epoch_adopt(core_epoch *self, const wire_control *epoch); /* a kept one */
uint64_t
core_epoch_listed(const seat *s); /* the incarnation a record made now has of it; 0: none */
wire_member core_epoch_member(const seat *s); /* BORROWED from the seat */
bool core_epoch_is_part(const seat *s);       /* of the record that is, and of a change of it */
void core_epoch_fini(core_epoch *self);

#endif
