/* core_state.h - the scheduler core's memory, and what its files say to each other. */
#ifndef SCHEDULER_CORE_STATE_H
#define SCHEDULER_CORE_STATE_H

#include "common/log.h"
#include "common/why.h"
#include "proto/plan.h"
#include "scheduler/core.h"
#include "scheduler/kv.h"
#include "scheduler/placement.h"
#include "scheduler/sentence.h"
#include "scheduler/settle.h"

enum {
    CORE_INQUEST_MS    = 250,  /* servers may take that long to say what a dead worker owes */
    CORE_END_MS        = 5000, /* how long the end of others is waited for                  */
    CORE_ASKERS_MAX    = 64,
    CORE_SNAPSHOTS_MAX = 8, /* being written at once; more than two do not happen in good order */
    CORE_FAULTS_MAX    = 256,
    CORE_SHRINKS_MAX   = 64,
    CORE_OVERDUES_MAX  = 32,
    CORE_OVERDUE_RANKS = 32,
    CORE_LEFT_MS       = 2000, /* an OVERDUE is on its way for less */
    CORE_DRAINS_MAX    = 16,
    CORE_EVENTS_MAX    = 128, /* that are remembered */
    CORE_GATHER_MS     = 20,  /* learners that catch up one after another change the epoch once */
    CORE_LEAVE_MS      = 100, /* so long a worker that left is expected to be followed by others */
    CORE_SEAL_MS       = 10000,
    CORE_PROVE_MS      = 5000, /* who has not answered by then shares its memory with nobody */
    CORE_GAPS_MAX      = 64
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
    uint32_t n_parts; /* shards covered */
    bool *has_part;   /* [n_shards] */
    int64_t spare;    /* a server has no room, and this one that may go; -1: none */
    char text[256];
} core_snapshot;

typedef struct {
    uint64_t incarnation, serial;
} core_asker;

typedef struct { /* what all members of a group were told about a call that failed */
    uint64_t group, call;
    pen_error why;
} core_fault_note;

typedef struct {                 /* one worker has waited long in one call */
    const seat *asker;           /* NULL: unused */
    uint64_t waited_ms, said_ms; /* waited that long when it was said */
    uint32_t n_missing;
    int32_t missing[CORE_OVERDUE_RANKS];
    char what[200];
} core_overdue_note;

typedef struct {                   /* two workers may wait for each other: servers are asked */
    const core_overdue_note *note; /* NULL: nobody is suspected */
    const seat *waiting;           /* in a step, for who said it */
    uint64_t asked_ms;
} core_cycle;

typedef struct {
    bool is_used, is_over;
    uint64_t group, new_group, serial;
    uint32_t n;
    int32_t *rank;   /* [n]; when it is over: the survivors */
    bool *has_asked; /* [n] until it is over */
} core_shrink;

typedef struct { /* one member cannot reach another */
    seat *from, *to;
    uint64_t from_incarnation, to_incarnation, first_ms, newest_ms;
    bool is_confirmed; /* `from` has said it again after `to` had been heard */
    char address[320], words[96];
} core_gap;

typedef struct { /* a change of the epoch, wanted or under way */
    bool is_wanted, is_open;
    uint64_t due_ms;   /* wanted: when it begins; open: by when all servers must have sealed */
    uint64_t begun_ms; /* the first cause of it */
    const seat *lost;  /* a server whose death is a cause; NULL */
    char cause[160];
} core_change;

typedef struct { /* somebody waits for a server to be empty */
    uint64_t asker;
    int32_t server;
} core_drain;

typedef struct {
    uint64_t at_ms;
    int level;
    char text[352];
} core_event_note;

typedef struct { /* workers are being asked whose memory they can map */
    bool is_open;
    uint64_t round, due_ms;
} core_proof;

typedef struct {
    uint64_t due_ms, every_ms; /* 0: not begun */
    uint32_t n, n_metrics;
    scheduler_point point[SCHEDULER_POINTS_MAX];
    char metric[SCHEDULER_METRICS_MAX][SEAT_STAT_BYTES];
} core_history;

typedef enum {                       /* what core.c has to act upon when a handler has returned */
               DUE_VERDICT = 1 << 0, /* there is one                                            */
               DUE_LOST    = 1 << 1, /* seats that `is_lost`                                    */
               DUE_END     = 1 << 2, /* somebody is gone for whom the end may have waited       */
               DUE_JOIN    = 1 << 3, /* somebody has come, or has answered                      */
               DUE_LEFT    = 1 << 4, /* a worker left, perhaps while others register            */
               DUE_MODEL   = 1 << 5, /* somebody has registered, is ready, or is not waited for */
               DUE_TAKEN_OVER =
                   1 << 6,         /* a server died, and others serve its shards              */
               DUE_MOVED = 1 << 7, /* copies lie elsewhere                                    */
               DUE_EPOCH = 1 << 8  /* its change is to be opened, or has perhaps been sealed  */
} core_due;

struct scheduler_core {
    unsigned due; /* set of core_due */
    scheduler_settings settings;
    scheduler_actions actions;
    char master[256], address[256], host[256], job[64];
    uint64_t term, start_ms, promised_ms, now_ms; /* now_ms: of the newest call from outside */
    uint32_t incarnations;
    uint64_t refused;

    core_phase phase;
    roster roster;
    bool servers_known;
    uint32_t n_servers;   /* 0: none, or not known yet */
    bool has_begun;       /* somebody joined, or is waited for; since joining_ms */
    bool is_for_machines; /* nobody joined: all that were started here have ended */
    uint64_t joining_ms, end_ms;
    core_proof proof;
    int64_t job_step;

    keep record_kept;
    wire_control record; /* the newest EPOCH, as all were told */
    uint64_t epoch;
    core_change change;
    placement place, goal;
    bool goal_is_old; /* servers came, went or are drained */
    uint32_t n_shards, ranks_max;
    uint64_t plan_term;  /* in which the plan was made */
    uint64_t amnesty_ms; /* nobody is declared dead before */
    core_drain drain[CORE_DRAINS_MAX];
    uint32_t n_drains;
    int32_t wanted_workers, wanted_servers; /* target numbers */

    keep kept;
    wire_model model;
    seat *model_of; /* whose REGISTER it is; NULL: none yet */
    plan *plan;
    uint32_t *shard; /* [plan->n_partitions] */
    int64_t restore, applied;
    void *states; /* of workers, in the snapshot that is restored; a bundle */
    size_t states_bytes;

    core_inquest inquest;

    core_snapshot snapshot[CORE_SNAPSHOTS_MAX];
    core_asker asker[CORE_ASKERS_MAX];
    uint32_t n_askers;
    uint64_t serial;
    int64_t newest_snapshot;
    bool has_made_room; /* for the snapshot that comes next */

    int32_t first_lost; /* worker that died and the job went on; -1: none has */
    core_fault_note *fault[CORE_FAULTS_MAX];
    uint64_t n_faults;
    core_overdue_note overdue[CORE_OVERDUES_MAX];
    core_cycle cycle;
    core_shrink shrink[CORE_SHRINKS_MAX];
    kv store;

    core_gap gap[CORE_GAPS_MAX];
    uint32_t n_gaps;
    uint64_t gap_due_ms, gap_end_ms; /* due 0: there are none */

    uint64_t
        turned_ms; /* since when lines about who was turned away are counted, and how many there were */
    uint32_t turned_n;
    bool has_verdict;
    bool is_empty; /* the job will not begin: nobody is waited for, only told */
    pen_error verdict;

    pen_error will; /* as it was last sent to all */
    uint64_t will_ms;

    core_event_note event[CORE_EVENTS_MAX]; /* a ring */
    uint64_t n_events;                      /* that there ever were */
    core_history history;
    stuck *report;    /* records that were asked for here; NULL: none */
    uint64_t reports; /* so many were; the number of the newest */

    uint32_t *peers; /* scratch of core_send_all */
    uint32_t peers_capacity;
};

enum { /* sets of roles */
       TO_WORKERS = 1 << PEN_WORKER,
       TO_SERVERS = 1 << PEN_SERVER,
       TO_GUESTS  = 1 << WIRE_LAUNCHER | 1 << WIRE_OBSERVER
};

/* core_out.c: what leaves the core */
void core_send(scheduler_core *core, const seat *s, const wire_control *message);
void core_send_peer(scheduler_core *core, uint32_t peer, const wire_control *message);
/* To all of these roles that are connected and have neither left nor died. */
void core_send_all(scheduler_core *core, unsigned roles, const wire_control *message);
void core_log(scheduler_core *core, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool core_move(scheduler_core *core, seat *s,
               member_event event); /* false: refused; logs what changes */

/* core_events.c: what has happened */
void core_event(scheduler_core *core, int level, const char *text);
void core_event_moved(scheduler_core *core, const seat *s);             /* its state is new */
uint32_t core_events_fill(const scheduler_core *core, wire_event *out); /* [CORE_EVENTS_MAX] */

/* core_history.c: a worker's beat has come */
void core_history_beat(scheduler_core *core);

bool core_has_launcher(const scheduler_core *core);
void core_announce(scheduler_core *core,
                   const char *line); /* launchers print it; without one the log says it */
void core_refuse(scheduler_core *core, uint32_t peer, pen_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5))); /* a verdict for that process alone */

/* core_rules.c: what the settings of the job and its phase allow */
bool core_may_change(const scheduler_core *core); /* it trains with servers */
bool core_waits(const scheduler_core *core);      /* on_worker_loss=wait, and it can */
bool core_goes_on(const scheduler_core *core);    /* =continue, and it can */
bool core_is_elastic(const scheduler_core *core);
bool core_may_sit(const scheduler_core *core, const seat *s);
bool core_may_replace(const scheduler_core *core, const seat *s);
bool core_is_late(const scheduler_core *core, const seat *s); /* here, and not in the record yet */
const seat *core_loss_lowest(const scheduler_core *core); /* of the workers that live; NULL: none */
const pen_error *core_loss_of(const scheduler_core *core, int32_t rank); /* NULL: not lost */
/* Settings that no job with so many servers can have; the sentence says why */
pen_status core_check_kind(const scheduler_settings *settings, uint32_t n_servers, pen_error *why);

/* core_cause.c: noted, and acted upon by core.c when the handler has returned */
void core_verdict(scheduler_core *core, const pen_error *why);
void core_lose(scheduler_core *core, seat *s, member_event event, const char *how);
void core_left_early(scheduler_core *core, seat *s);  /* others wait for it */
void core_tell(scheduler_core *core, seat *s);        /* the verdict, to one who is bound */
void core_bound_claim(const seat *s, pen_error *why); /* what a member says of itself or others */
void core_failure(scheduler_core *core, seat *s, const wire_control *message);

/* core_join.c.  hello: false: somebody must go first, and then it is to be called again. */
bool core_hello(scheduler_core *core, uint32_t peer, const wire_control *message);
void core_join_begin(scheduler_core *core); /* once all are here and proven */
void core_join_tick(scheduler_core *core);
uint64_t core_join_next_ms(const scheduler_core *core);

/* core_machines.c: nodes and local ranks.  place: of all, when the job begins; false: there is a verdict. */
bool core_machines_place(scheduler_core *core);
void core_machines_place_late(const scheduler_core *core, seat *worker);

/* core_prove.c: PROVE, PROVEN: who can map whose memory.  done: false while that is being asked. */
bool core_prove_done(scheduler_core *core);
void core_prove_anew(
    scheduler_core *core); /* somebody else is here: what was found does not count */
void core_prove_tell(scheduler_core *core,
                     const seat *s); /* one that may have missed the question */
void core_proven(scheduler_core *core, seat *s, const wire_control *message);

/* core_model.c: REGISTER, READY */
void core_register(scheduler_core *core, seat *s, const wire_control *message);
void core_ready(scheduler_core *core, seat *s, const wire_control *message);
void core_model_advance(scheduler_core *core); /* once nobody is waited for */

/* core_plan.c: what has been agreed; catch_up sends again what `s` may have missed */
void core_model_catch_up(scheduler_core *core, const seat *s);
const char *core_model_setting(const wire_model *model, const char *key); /* NULL: not there */
/* The first tensor a server holds part of, and how many; NULL before the plan. */
const char *core_model_held(const scheduler_core *core, const seat *server, uint32_t *n_tensors);

/* Tells a process that takes part from now on what the model is; one that is late is compared with it. */
wire_control core_model_committed(const scheduler_core *core, const seat *worker);
wire_control core_model_plan(const scheduler_core *core, bool with_model);
bool core_model_adopt(scheduler_core *core,
                      const wire_control *kept); /* false: it cannot be ours */

/* core_epoch_record.c: the record.  write: of core->epoch, anew; `s` NULL: nothing is settled; false: no
 * memory, and the old one stays.  note: who is in what has just been written. */
bool core_epoch_write(scheduler_core *core, const settled *s, bool members_changed);
void core_epoch_note(scheduler_core *core);
uint64_t
core_epoch_listed(const seat *s); /* the incarnation a record made now has of it; 0: none */
bool core_epoch_describe(keep *kept, const seat *s, wire_member *m); /* false: no memory */
void core_epoch_fail(scheduler_core *core);                          /* there is no memory for it */
wire_control core_epoch_seal(const scheduler_core *core);
void core_epoch_tell(scheduler_core *core, const seat *s); /* the record, and SEAL if one is open */

/* core_epoch.c: EPOCH, SEAL, SEALED: who is in, where the copies lie, and what becomes of an open step */
void core_epoch_begin(scheduler_core *core); /* the first record */
void core_epoch_plan(scheduler_core *core);  /* puts the placement into it */
/* Wants a change at `due_ms`. */
void core_epoch_want(scheduler_core *core, uint64_t due_ms, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool core_epoch_survives(const scheduler_core *core); /* every shard has a copy of R that lives */
void core_epoch_lost(scheduler_core *core, const seat *server);
void core_sealed(scheduler_core *core, seat *s, const wire_control *message);
void core_caught_up(scheduler_core *core, seat *s, const wire_control *message);
void core_suspect(scheduler_core *core, seat *s, const wire_control *message);
void core_epoch_advance(scheduler_core *core); /* opens the change, or decides it */
void core_epoch_tick(scheduler_core *core);
uint64_t core_epoch_next_ms(const scheduler_core *core);
bool core_epoch_adopt(scheduler_core *core, const wire_control *epoch); /* a kept record */
void core_epoch_fini(scheduler_core *core);
/* Copies on servers; the caller frees.  NULL: no memory. */
placement_server *core_epoch_servers(const scheduler_core *core);

/* core_wait.c: on_worker_loss=wait */
void core_wait_for(scheduler_core *core, seat *dead);
void core_wait_in_vain(scheduler_core *core, const seat *s); /* if it is */
void core_wait_tick(scheduler_core *core);
uint64_t core_wait_next_ms(const scheduler_core *core);

/* core_slow.c: a beat has come, the one before it at since_ms (0: none) */
void core_slow_beat(scheduler_core *core, const seat *waiting, uint64_t since_ms);

/* core_reach.c: UNREACHED */
void core_unreached(scheduler_core *core, seat *s, const wire_control *message);
void core_reached(scheduler_core *core, const seat *s); /* all that it needs, after all */
void core_reach_tick(scheduler_core *core);

/* Adds who else cannot reach it, and where to look, when it is its silence of which it is known that it is gone. */
void core_add_silence(const scheduler_core *core, const seat *s, uint64_t at_ms, pen_error *why);
/* It has joined, is silent, and the job has not begun. */
void core_missed(const scheduler_core *core, const seat *s, uint64_t waits_ms, pen_error *why);
uint64_t core_reach_next_ms(const scheduler_core *core);

/* core_scale.c: SCALE, DRAIN */
void core_scale(scheduler_core *core, seat *s, const wire_control *message);
void core_drain_ask(scheduler_core *core, seat *s, const wire_control *message);
void core_scale_settle(scheduler_core *core); /* lets servers go that are empty */
bool core_scale_may_go(const scheduler_core *core, const seat *server);

/* core_keep.c: what outlives this process.  False: it could not be kept, and there is a verdict. */
bool core_keep(scheduler_core *core);

/* restore.c: pure */
pen_status restore_choose(const roster *r, const wire_model *model, int64_t *step, pen_error *why);

/* core_death.c: what does a dead worker owe? */
void core_judge(scheduler_core *core, seat *dead);
void core_missing(scheduler_core *core, seat *s, const wire_control *message);
void core_death_tick(scheduler_core *core);
uint64_t core_death_next_ms(const scheduler_core *core);

/* core_leave.c */
void core_bye(scheduler_core *core, seat *s, const wire_control *message);
void core_dismiss(scheduler_core *core, seat *guest);
void core_exited(scheduler_core *core, seat *s, const wire_control *message);
/* Ends a job whose workers ended without joining, and one of which only some did. */
void core_pass_by(scheduler_core *core);

/* core_end.c */
void core_verdict_tell(scheduler_core *core);
void core_stop(scheduler_core *core);   /* all workers have left in good order */
void core_settle(scheduler_core *core); /* ends what nobody is waited for any more */
void core_end_tick(scheduler_core *core);
uint64_t core_end_next_ms(const scheduler_core *core);

/* core_loss.c: the job goes on without a worker */
void core_go_on(scheduler_core *core, seat *dead);
void core_loss_catch_up(scheduler_core *core, const seat *s);
void core_loss_missing(scheduler_core *core, const wire_control *message);

/* core_fault.c, core_shrink.c: what collectives ask */
void core_fault(scheduler_core *core, seat *s, const wire_control *message);
void core_overdue(scheduler_core *core, seat *s, const wire_control *message);
/* Of waits that were overdue and, as far as is known, still last: the index-th place; false: none is in it. */
bool core_overdue_waiting(const scheduler_core *core, int index, uint64_t now_ms, sentence *text);
bool core_overdue_lasts(const core_overdue_note *note);
void core_fault_fini(scheduler_core *core);
void core_shrink_ask(scheduler_core *core, seat *s, const wire_control *message);
void core_shrink_settle(scheduler_core *core); /* somebody has died or left */
void core_shrink_fini(scheduler_core *core);

/* core_cycle.c: waits that cannot end */
void core_cycle_beat(scheduler_core *core, seat *waiting); /* its beat has come */
void core_cycle_missing(scheduler_core *core, const wire_control *message);
void core_left_registering(scheduler_core *core);

/* core_store.c, core_record.c */
void core_store_ask(scheduler_core *core, seat *s, const wire_control *message);
void core_record_ask(scheduler_core *core, seat *s, const wire_control *message);
void core_record(scheduler_core *core, seat *s, const wire_control *message);

/* core_snapshot.c */
void core_snapshot_fail(scheduler_core *core, const char *text); /* those that are being written */
void core_snapshot_please(scheduler_core *core, seat *s, const wire_control *message);
void core_snapshot_part(scheduler_core *core, seat *s, const wire_control *message);
void core_snapshot_fini(scheduler_core *core);

/* core_will.c */
void core_will_write(scheduler_core *core);
void core_will_tell(scheduler_core *core, const seat *s);
void core_will_heard_step(scheduler_core *core); /* the first makes it due */
void core_will_tick(scheduler_core *core);
uint64_t core_will_next_ms(const scheduler_core *core);

/* core_command.c */
void core_command(scheduler_core *core, seat *s, const wire_control *message);
void core_reply(scheduler_core *core, seat *s, const wire_control *message);

/* core_status.c */
void core_status(scheduler_core *core, uint32_t peer);
const char *core_phase_name(core_phase phase);

#endif
