/* core_state.h - the scheduler core's memory, and what its files say to each other. */
#ifndef SCHEDULER_CORE_STATE_H
#define SCHEDULER_CORE_STATE_H

#include "common/log.h"
#include "common/why.h"
#include "proto/plan.h"
#include "scheduler/core.h"
#include "scheduler/meet.h"
#include "scheduler/sentence.h"

enum {
    CORE_INQUEST_MS    = 250,  /* servers may take that long to say what a dead worker owes */
    CORE_END_MS        = 5000, /* how long the end of others is waited for                  */
    CORE_ASKERS_MAX    = 64,
    CORE_SNAPSHOTS_MAX = 8 /* being written at once; more than two do not happen in good order */
};

typedef enum {
    PHASE_JOINING,
    PHASE_REGISTERING,
    PHASE_LOADING,
    PHASE_TRAINING,
    PHASE_STOPPING,
    PHASE_FAILED,
    PHASE_ENDED
} core_phase;

typedef struct { /* a worker died; servers are being asked what it owes */
    seat *dead;  /* NULL: none */
    uint64_t died_ms, due_ms;
    uint32_t tensor; /* of the least debt known: index in the model */
    int64_t step;    /* -1: none known */
} core_inquest;

typedef struct {
    bool is_used;
    int64_t step;
    uint64_t serial; /* order of the first part; later than an asker's: its answer */
    pen_status status;
    uint32_t n_parts;
    bool *has_part; /* [n_servers] */
    char text[256];
} core_snapshot;

typedef struct {
    uint64_t incarnation, serial;
} core_asker;

struct scheduler_core {
    scheduler_settings settings;
    scheduler_actions actions;
    char master[256], address[256], host[256], job[64];
    uint64_t term, start_ms, promised_ms;
    uint32_t incarnations;
    uint64_t refused;

    core_phase phase;
    roster roster;
    uint32_t n_servers; /* 0: not known yet */
    bool has_begun;     /* somebody joined; since joining_ms */
    uint64_t joining_ms, end_ms;
    int64_t job_step;

    keep kept;
    wire_model model;
    seat *model_of; /* whose REGISTER it is; NULL: none yet */
    plan *plan;
    uint32_t *shard; /* [plan->n_partitions] */
    int64_t restore, applied;

    meet_table meets;
    core_inquest inquest;

    core_snapshot snapshot[CORE_SNAPSHOTS_MAX];
    core_asker asker[CORE_ASKERS_MAX];
    uint32_t n_askers;
    uint64_t serial;
    int64_t newest_snapshot;

    bool has_verdict;
    pen_error verdict;

    pen_error will; /* as it was last sent to all */
    uint64_t will_ms;

    uint32_t *peers; /* scratch of core_send_all */
    uint32_t peers_capacity;
};

enum { /* sets of roles */
       TO_WORKERS = 1 << PEN_WORKER,
       TO_SERVERS = 1 << PEN_SERVER,
       TO_GUESTS  = 1 << WIRE_LAUNCHER | 1 << WIRE_OBSERVER
};

/* core.c: saying */
void core_send(scheduler_core *core, const seat *s, const wire_control *message);
void core_send_peer(scheduler_core *core, uint32_t peer, const wire_control *message);
/* To all of these roles that are connected and have neither left nor died. */
void core_send_all(scheduler_core *core, unsigned roles, const wire_control *message);
void core_log(scheduler_core *core, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void core_end(scheduler_core *core, pen_status status);
bool core_move(scheduler_core *core, seat *s,
               member_event event); /* false: refused; logs what changes */

/* core_join.c */
void core_hello(scheduler_core *core, uint32_t peer, const wire_control *message, uint64_t now_ms);
void core_join_tick(scheduler_core *core, uint64_t now_ms);
void core_refuse(scheduler_core *core, uint32_t peer, pen_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5))); /* a verdict for that process alone */

/* core_model.c: REGISTER, PLAN, READY, COMMITTED; catch_up sends again what `s` may have missed */
void core_register(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms);
void core_ready(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms);
void core_model_catch_up(scheduler_core *core, const seat *s);
const char *core_model_setting(const wire_model *model, const char *key); /* NULL: not there */
/* The first tensor a server holds part of, and how many; NULL before the plan. */
const char *core_model_held(const scheduler_core *core, const seat *server, uint32_t *n_tensors);

/* restore.c: pure */
pen_status restore_choose(const roster *r, const wire_model *model, int64_t *step, pen_error *why);

/* core_meet.c */
void core_meet(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms);
void core_meet_left(scheduler_core *core, const seat *s, uint64_t now_ms);
void core_meet_tick(scheduler_core *core, uint64_t now_ms);
uint64_t core_meet_next_ms(const scheduler_core *core);
void core_meet_waiting(const scheduler_core *core, const meet *m, uint64_t now_ms, sentence *text);

/* core_end.c */
void core_bye(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms);
void core_dismiss(scheduler_core *core, seat *guest, uint64_t now_ms);
void core_exited(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms);
/* Ends a job whose workers ended without joining, and one of which only some did. */
void core_pass_by(scheduler_core *core, uint64_t now_ms);
void core_failure(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms);
void core_missing(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms);
void core_verdict(scheduler_core *core, const pen_error *why, uint64_t now_ms);
void core_tell(scheduler_core *core, seat *s); /* the verdict, to one who is bound */
void core_lose(scheduler_core *core, seat *s, member_event event, const char *how, uint64_t now_ms);
void core_settle(scheduler_core *core,
                 uint64_t now_ms); /* ends what nobody is waited for any more */
void core_end_tick(scheduler_core *core, uint64_t now_ms);

/* core_snapshot.c */
void core_snapshot_please(scheduler_core *core, seat *s, const wire_control *message,
                          uint64_t now_ms);
void core_snapshot_part(scheduler_core *core, seat *s, const wire_control *message,
                        uint64_t now_ms);
void core_snapshot_fini(scheduler_core *core);

/* core_will.c */
void core_will_write(scheduler_core *core);
void core_will_tell(scheduler_core *core, const seat *s);
void core_will_heard_step(scheduler_core *core, uint64_t now_ms); /* the first makes it due */
void core_will_tick(scheduler_core *core, uint64_t now_ms);
uint64_t core_will_next_ms(const scheduler_core *core);

/* core_command.c */
void core_command(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms);
void core_reply(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms);

/* core_status.c */
void core_status(scheduler_core *core, uint32_t peer, uint64_t now_ms);
const char *core_phase_name(core_phase phase);

#endif
