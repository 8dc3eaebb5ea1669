/* roster.h - the member slots of a job: one per rank of the workers and of the servers, and one per observer.
 *
 * A slot is a rank; the process in it has an incarnation.  Observers and launchers have a slot but no rank, and no
 * member waits for them.  Pointers to slots stay valid until roster_fini(), those of observers until roster_dismiss().
 */
#ifndef SCHEDULER_ROSTER_H
#define SCHEDULER_ROSTER_H

#include "scheduler/core/membership/member.h"
#include "proto/wire/wire.h"

enum {
    ROSTER_WORKERS_MAX   = 16384,
    ROSTER_SERVERS_MAX   = 1024,
    ROSTER_GUESTS_MAX    = 64,
    MEMBER_HOST_BYTES    = 256,
    MEMBER_MACHINE_BYTES = 384,
    MEMBER_CALL_BYTES    = 160,
    MEMBER_STATS_MAX     = 64,
    MEMBER_STAT_BYTES    = 48
};

typedef struct {
    char name[MEMBER_STAT_BYTES];
    double value;
} member_slot_stat;

typedef struct member_slot member_slot;
struct member_slot {
    int32_t role, rank; /* observers: rank -1 */
    member_state state;

    bool is_bound; /* `peer` is its connection */
    uint32_t peer;
    member_slot *next, *prev; /* others in the same bucket of the roster */

    uint64_t nonce, incarnation; /* of the current or last process; 0: none yet */
    int32_t pid;
    char host[MEMBER_HOST_BYTES], machine[MEMBER_MACHINE_BYTES];
    int32_t said_local_rank, said_local_size, said_node; /* as set by its launcher */
    int32_t local_rank, node;                            /* as machines.h derives them */

    /* Workers. */
    uint64_t number; /* in its memory, for members that can map it; 0: not shared */
    int32_t sharing; /* lowest rank of the workers that can map each other's memory */
    int32_t trying;  /* during PROVE: lowest rank of those that try it; -1: it has not been asked */
    uint8_t *opened; /* during PROVE: a bit for each rank it can map; NULL: no answer yet */

    wire_arena *kept; /* owns the data of the next five */
    const char *store;
    uint32_t n_addresses, n_snapshots;
    const char *const *address;
    const int64_t *snapshot;

    uint64_t last_seen_ms, down_ms;
    uint64_t rival, rival_ms; /* nonce of another process that asks for this slot, and since when */
    int64_t step;             /* of its last beat; -1: none */
    char call[MEMBER_CALL_BYTES];
    uint64_t call_ms, beat_ms; /* at beat_ms it had been in `call` for call_ms */
    uint32_t n_stats;
    member_slot_stat *stat;

    bool is_registered;   /* worker: its model was compared */
    bool is_ready;        /* server: took its plan; worker: reached all required members */
    bool is_told;         /* the verdict was sent while it was connected */
    bool is_heard;        /* server: answered the death query */
    bool has_passed;      /* worker: ended with code 0 and never joined */
    bool has_ended;       /* worker: its process ended with code 0 */
    bool has_said_bye;    /* worker: its step is as of BYE */
    bool is_missed;       /* silent before the job began, and announced */
    bool was_missed;      /* it was, or another process in this slot */
    bool has_left_early;  /* worker: with BYE, while others wait for it */
    bool has_no_restarts; /* worker: its launcher will not start it again */
    bool is_lost;         /* dead, and core.c has not acted on it yet */

    uint64_t in_view;    /* its incarnation in the newest epoch view; 0: not in it */
    bool is_new;         /* late worker: COMMITTED has not been sent yet */
    bool is_draining;    /* server */
    bool is_stopped;     /* STOP was sent while others stay */
    bool has_come_back;  /* another process was in this slot before */
    uint64_t lost_ms;    /* when that one was lost; 0: it was not */
    uint64_t awaited_ms; /* worker: dead, a replacement is awaited until then; 0: none is */
    int64_t begin_step, begin_applied; /* late worker: where it begins; -1: at the beginning */
    pen_error *loss;       /* worker: dead, and the job continues: its sentence; else NULL */
    uint64_t made_wait_ms; /* worker: how long others have waited for it */

    bool holds_state; /* it is sealed when an epoch ends, and reports its position */
    bool is_sealed;   /* it has reported in the open epoch change */
    uint32_t n_reports;
    size_t reports_capacity;
    wire_sealed_report *report;
};

typedef struct {
    member_slot **at;
    uint32_t n;
    size_t capacity;
} member_slots;

enum { ROSTER_BUCKETS = 1024 };
typedef struct {
    member_slots workers, servers, observers;
    member_slot *by_peer[ROSTER_BUCKETS];
} roster;

void roster_fini(roster *self); /* zero is an empty roster */

/* Adds slots up to rank n - 1.  PEN_NO_MEMORY or PEN_OK. */
pen_status roster_grow(member_slots *list, int32_t role, uint32_t n);

/* Removes the slots from n on: servers may join before their number is known. */
void roster_shrink(roster *self, member_slots *list, uint32_t n);

member_slot *roster_find(const roster *self, int32_t role, int32_t rank); /* NULL: no such slot */
member_slot *roster_at_peer(const roster *self, uint32_t peer);           /* NULL: none */
member_slot *roster_of(const roster *self, uint64_t incarnation);         /* NULL: none */
member_slot *roster_observer(roster *self, int32_t role,
                             uint64_t nonce); /* new or known; NULL: full */
void roster_dismiss(roster *self, member_slot *observer);

/* Makes `peer` the connection of `s`; both lose their previous binding. */
void roster_bind(roster *self, member_slot *s, uint32_t peer);
void roster_unbind(roster *self, member_slot *s);

/* for each slot of a list, declared here as s; none is added meanwhile. */
#define MEMBER_SLOT_EACH(s, list)                                                                  \
    for (member_slot * s, **s##_at = (list)->at;                                                   \
         (size_t)(s##_at - (list)->at) < (list)->n && (s = *s##_at, true); s##_at++)

/* for each slot, declared here as s: workers, then servers, then observers. */
#define ROSTER_EACH(s, self)                                                                       \
    for (uint32_t s##_i = 0; s##_i != UINT32_MAX; s##_i = UINT32_MAX)                              \
        for (member_slot * s; (s = roster_next(self, &s##_i)) != NULL;)
member_slot *roster_next(const roster *self, uint32_t *cursor);

uint32_t roster_count(const member_slots *list, member_state state);

/* Frees the slot for another process.  in_view, awaited_ms and loss stay: they were sent to the others. */
void member_slot_vacate(member_slot *s);

/* Copies SEALED.  PEN_NO_MEMORY or PEN_OK. */
pen_status member_slot_seal(member_slot *s, const wire_control *sealed);

/* Copies HELLO's description of the process.  PEN_NO_MEMORY or PEN_OK. */
pen_status member_slot_describe(member_slot *s, const wire_control *hello);

/* Forgets the answer to PROVE. */
void member_slot_close(member_slot *s);

void member_slot_beat(member_slot *s, const wire_control *beat, uint64_t now_ms);
/* EXITED says where it was, which is newer than its last beat. */
void member_slot_place(member_slot *s, const wire_control *exited);
bool member_slot_is_here(const member_slot *s);    /* joining, active or away */
bool member_slot_is_counted(const member_slot *s); /* active or away */

#endif
