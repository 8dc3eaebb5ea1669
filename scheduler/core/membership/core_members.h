/* core_members.h - the present and expected members, and those that cannot reach each other. */
#ifndef SCHEDULER_CORE_MEMBERS_H
#define SCHEDULER_CORE_MEMBERS_H

#include "scheduler/core/membership/roster.h"

enum {
    CORE_QUERY_MS    = 250, /* longest wait for servers to answer a death query */
    CORE_GAPS_MAX    = 64,
    CORE_DRAINS_MAX  = 16,
    CORE_LEAVE_MS    = 100,  /* members that leave within it change the epoch once */
    CORE_PROVE_MS    = 5000, /* a worker that has not answered PROVE by then shares no memory */
    CORE_SHARING_MAX = 64    /* workers in one set that shares memory */
};

typedef struct {       /* death query: asks servers which pushes a dead worker owes */
    member_slot *dead; /* NULL: none */
    uint64_t died_ms, due_ms;
    uint32_t tensor; /* of the first owed push known: index in the model */
    int64_t step;    /* -1: none known */
} core_query;

typedef struct { /* one member cannot reach another */
    member_slot *from, *to;
    uint64_t from_incarnation, to_incarnation, first_ms, newest_ms;
    bool is_confirmed; /* `from` repeated it after a message of `to` */
    char address[320], words[96];
} core_gap;

typedef struct { /* an observer waits until a server is empty */
    uint64_t asker;
    int32_t server;
} core_drain;

typedef struct { /* PROVE was sent */
    bool is_open;
    uint64_t round, due_ms;
    uint32_t n_missing; /* answers */
} core_proof;

typedef struct {
    roster roster;
    bool has_begun;       /* a member joined or is awaited, since joining_ms */
    bool is_for_machines; /* none joined: all workers started here have ended */
    uint64_t joining_ms;
    core_proof proof;

    uint32_t ranks_max;
    int32_t wanted_workers, wanted_servers; /* target numbers */
    core_drain drain[CORE_DRAINS_MAX];
    uint32_t n_drains;

    core_query query;
    int32_t first_lost; /* first worker whose death the job survived; -1: none */
    core_gap gap[CORE_GAPS_MAX];
    uint32_t n_gaps;
    uint64_t gap_due_ms, gap_end_ms; /* due 0: none */
} core_members;

/* core_reach.c: forgets what this member could not reach */
void core_reached(core_members *self, const member_slot *s);

/* core_history.c: at a BEAT; the one before it came at since_ms (0: none) */
void core_slow_beat(const member_slots *workers, const member_slot *waiting, uint64_t since_ms,
                    uint64_t now_ms);

/* restore.c */
pen_status restore_choose(const roster *r, const wire_model *model, int64_t *step, pen_error *why);

#endif
