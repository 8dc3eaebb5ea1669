/* roster.h - the member slots of a job: one per rank of the workers and of the servers, and one per guest.
 *
 * A slot is a rank; the process in it has an incarnation.  Guests (launchers, observers) have a slot but no rank, and
 * nobody waits for them.  Pointers to slots stay valid until roster_fini(), those of guests until roster_dismiss().
 */
#ifndef SCHEDULER_ROSTER_H
#define SCHEDULER_ROSTER_H

#include "scheduler/core/keep.h"
#include "scheduler/core/membership/member.h"

enum {
    ROSTER_WORKERS_MAX = 16384,
    ROSTER_SERVERS_MAX = 1024,
    ROSTER_GUESTS_MAX  = 64,
    SEAT_HOST_BYTES    = 256,
    SEAT_MACHINE_BYTES = 384,
    SEAT_CALL_BYTES    = 160,
    SEAT_STATS_MAX     = 64,
    SEAT_STAT_BYTES    = 48
};

typedef struct {
    char name[SEAT_STAT_BYTES];
    double value;
} seat_stat;

typedef struct seat seat;
struct seat {
    int32_t role, rank; /* guests: rank -1 */
    member_state state;

    bool is_bound; /* `peer` is its connection */
    uint32_t peer;
    seat *next, *prev; /* of those in one bucket of the roster */

    uint64_t nonce, incarnation; /* of the process here now or last; 0: none yet */
    int32_t pid;
    char host[SEAT_HOST_BYTES], machine[SEAT_MACHINE_BYTES];
    int32_t said_local_rank, said_local_size, said_node; /* as its launcher set them */
    int32_t local_rank, node;                            /* as machines.h derives them */

    /* Workers. */
    uint64_t number; /* lies in its memory, for those that can map it; 0: nobody may */
    int32_t sharing; /* lowest rank of the workers that can map each other's memory */
    uint8_t *opened; /* during PROVE: a bit for each rank it can map; NULL: no answer yet */

    keep kept; /* holds what the next five point to */
    const char *store;
    uint32_t n_addresses, n_snapshots;
    const char *const *address;
    const int64_t *snapshot;

    uint64_t last_seen_ms, down_ms;
    uint64_t rival, rival_ms; /* nonce of another process that asks for this slot, and since when */
    int64_t step;             /* of its last beat; -1: none */
    char call[SEAT_CALL_BYTES];
    uint64_t call_ms, beat_ms; /* it was in `call` for call_ms at beat_ms */
    uint32_t n_stats;
    seat_stat *stat;

    bool is_registered;   /* worker: its model was compared */
    bool is_ready;        /* server: took its plan; worker: reached all that it needs */
    bool is_told;         /* the verdict was sent while it was connected */
    bool is_heard;        /* server: answered the death query */
    bool has_passed;      /* worker: ended with code 0 and never joined */
    bool has_ended;       /* worker: its process ended with code 0 */
    bool has_said_bye;    /* worker: its step is as of BYE */
    bool is_missed;       /* silent before the job began, and announced */
    bool was_missed;      /* it was, or another process in this slot */
    bool has_left_early;  /* worker: with BYE, while others wait for it */
    bool has_no_restarts; /* worker: its launcher will not start it again */
    bool is_lost;         /* dead, and core.c has not acted upon it yet */

    uint64_t in_record;  /* its incarnation in the newest epoch record; 0: not in it */
    bool is_new;         /* late worker: COMMITTED has not been sent yet */
    bool is_draining;    /* server */
    bool is_stopped;     /* STOP was sent while others stay */
    bool has_come_back;  /* another process was in this slot before */
    uint64_t awaited_ms; /* worker: dead, a replacement is awaited until then; 0: none is */
    int64_t begin_step, begin_applied; /* late worker: where it begins; -1: at the beginning */
    pen_error *loss;       /* worker: dead, and the job goes on: its sentence; else NULL */
    uint64_t made_wait_ms; /* worker: how long others have waited for it */

    bool holds_state; /* it is sealed when an epoch ends, and reports its position */
    bool is_sealed;   /* it has reported in the open epoch change */
    uint32_t n_reports;
    size_t reports_capacity;
    wire_sealed_report *report;
};

typedef struct {
    seat **at;
    uint32_t n;
    size_t capacity;
} seat_list;

enum { ROSTER_BUCKETS = 1024 };
typedef struct {
    seat_list workers, servers, guests;
    seat *by_peer[ROSTER_BUCKETS];
} roster;

void roster_fini(roster *self); /* zero is an empty roster */

/* Adds slots up to rank n - 1.  PEN_NO_MEMORY or PEN_OK. */
pen_status roster_grow(seat_list *list, int32_t role, uint32_t n);

/* Removes the slots from n on: servers may come before their number is known. */
void roster_shrink(roster *self, seat_list *list, uint32_t n);

seat *roster_find(const roster *self, int32_t role, int32_t rank); /* NULL: no such slot  */
seat *roster_at_peer(const roster *self, uint32_t peer);           /* NULL: nobody        */
seat *roster_of(const roster *self, uint64_t incarnation);         /* NULL: nobody        */
seat *roster_guest(roster *self, int32_t role, uint64_t nonce);    /* new or known; NULL: full */
void roster_dismiss(roster *self, seat *guest);

/* Makes `peer` the connection of `s`; both lose what they were bound to. */
void roster_bind(roster *self, seat *s, uint32_t peer);
void roster_unbind(roster *self, seat *s);

/* for each slot of a list, declared here as s; none is added meanwhile. */
#define SEAT_EACH(s, list)                                                                         \
    for (seat * s, **s##_at = (list)->at;                                                          \
         (size_t)(s##_at - (list)->at) < (list)->n && (s = *s##_at, true); s##_at++)

/* for each slot, declared here as s: workers, then servers, then guests. */
#define ROSTER_EACH(s, self)                                                                       \
    for (uint32_t s##_i = 0; s##_i != UINT32_MAX; s##_i = UINT32_MAX)                              \
        for (seat * s; (s = roster_next(self, &s##_i)) != NULL;)
seat *roster_next(const roster *self, uint32_t *cursor);

uint32_t roster_count(const seat_list *list, member_state state);

/* Frees the slot for another process.  in_record, awaited_ms and loss stay: the others were told them. */
void seat_vacate(seat *s);

/* Copies SEALED.  PEN_NO_MEMORY or PEN_OK. */
pen_status seat_seal(seat *s, const wire_control *sealed);

/* Copies what HELLO says of the process.  PEN_NO_MEMORY or PEN_OK. */
pen_status seat_describe(seat *s, const wire_control *hello);

/* Forgets the answer to PROVE. */
void seat_close(seat *s);

void seat_beat(seat *s, const wire_control *beat, uint64_t now_ms);
bool seat_is_here(const seat *s);    /* joining, active or away */
bool seat_is_counted(const seat *s); /* active or away          */

#endif
