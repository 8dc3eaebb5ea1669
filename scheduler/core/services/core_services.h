/* core_services.h - services for members: snapshots, faults and overdue calls, smaller groups, the key-value store. */
#ifndef SCHEDULER_CORE_SERVICES_H
#define SCHEDULER_CORE_SERVICES_H

#include "scheduler/core/core_out.h"
#include "scheduler/core/services/kv.h"

enum {
    CORE_ASKERS_MAX    = 64,
    CORE_SNAPSHOTS_MAX = 8, /* in progress; normally at most two */
    CORE_FAULTS_MAX    = 256,
    CORE_SHRINKS_MAX   = 64,
    CORE_OVERDUES_MAX  = 32,
    CORE_OVERDUE_RANKS = 32,
    CORE_LEFT_MS       = 2000 /* an OVERDUE arrives sooner */
};

typedef struct {
    bool is_used;
    int64_t step;
    uint64_t serial; /* of its first part; it answers askers with a lower one */
    pen_status status;
    uint32_t n_parts; /* shards covered */
    bool *has_part;   /* [n_shards] */
    int64_t spare;    /* a server has no room and may delete this step; -1: none */
    char text[288];
} core_snapshot;

typedef struct {
    uint64_t incarnation, serial;
} core_asker;

typedef struct {
    core_snapshot at[CORE_SNAPSHOTS_MAX];
    core_asker asker[CORE_ASKERS_MAX];
    uint32_t n_askers;
    uint64_t serial;
    int64_t newest;
    bool has_made_room; /* for the next one */
    uint64_t said;      /* hash of why the newest failed; 0: it is complete */
} core_snapshots;

typedef struct { /* FAULTED of a call */
    uint64_t group, call;
    pen_error why;
} core_fault_note;

typedef struct {                 /* OVERDUE of a worker */
    const member_slot *asker;    /* NULL: unused */
    uint64_t waited_ms, said_ms; /* it had waited this long at said_ms */
    uint32_t n_missing;
    int32_t missing[CORE_OVERDUE_RANKS];
    char what[200];
} core_overdue_note;

typedef struct {                   /* two workers may wait for each other: asks servers */
    const core_overdue_note *note; /* NULL: no suspicion */
    const member_slot *waiting;    /* in a step, for the asker of the note */
    uint64_t asked_ms;
} core_cycle;

typedef struct {
    bool is_used, is_over;
    uint64_t group, new_group, serial;
    uint32_t n;
    int32_t *rank;   /* [n]; when it is over: the survivors */
    bool *has_asked; /* [n] until it is over */
    size_t ranks_capacity, asked_capacity;
} core_shrink;

typedef struct {
    core_shrink at[CORE_SHRINKS_MAX];
    uint64_t serial;
} core_shrinks;

typedef struct {
    core_snapshots snapshots;
    core_fault_note fault[CORE_FAULTS_MAX];
    uint64_t n_faults; /* since the beginning */
    core_overdue_note overdue[CORE_OVERDUES_MAX];
    core_cycle cycle;
    core_shrinks shrinks;
    kv store;
} core_services;

/* core_shrink.c */
void core_shrink_ask(core_shrinks *self, const core_out *out, const member_slot *s,
                     const wire_control *message);
void core_shrink_settle(core_shrinks *self, const core_out *out); /* a member died or left */
void core_shrink_fini(core_shrinks *self);

bool core_overdue_lasts(const core_overdue_note *note);

/* core_command.c */
void core_command(const core_out *out, const member_slot *s, const wire_control *message);
void core_reply(const core_out *out, const member_slot *s, const wire_control *message);

#endif
